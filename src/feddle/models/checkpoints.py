"""Named tensors from the files of other libraries: torch, ONNX, timm. Nothing that is in a file is run."""

import io
import math
import pickle
import re
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from feddle.core.errors import one_line
from feddle.data.fetch.fetching import Tensors
from feddle.data.source import Unusable

_FLOAT = 1  # TensorProto.DataType of ONNX
_VARINT, _BYTES = 0, 2  # wire types of protobuf; the messages that are read have no other


def read_checkpoint(path: Path) -> Tensors:
    """The tensors of a .safetensors file, of torch's own format (.pth, .pt, .bin), or of a plain pickle (.pkl)."""
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns of deprecated formats, and before some errors
            match path.suffix:
                case ".safetensors":
                    found: object = load_file(path)
                case ".pkl":
                    found = TensorUnpickler(io.BytesIO(path.read_bytes())).load()
                case _:
                    found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle can end in nearly any error
        raise Unusable(f"{path.name} cannot be read ({_reason(error)})") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise Unusable(f"{path.name} holds {type(found).__name__}, not a table of tensors")
    return {str(name): tensor for name, tensor in found.items()}


def _reason(error: Exception) -> str:
    """Why a checkpoint cannot be read; not in torch's words, which advise to load it unsafely."""
    if named := re.search(r"GLOBAL (\S+)", str(error)):
        return f"it refers to {named[1]}, which tensors do not need"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return "it is a program or damaged, not a table of tensors"
    return in_words(error)


def in_words(error: Exception) -> str:
    """An error of a library on one line."""
    return one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", 200)


class TensorUnpickler(pickle.Unpickler):
    """Unpickles a table of tensors; any other global is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """One of the three globals that tensors need."""
        if (module, name) not in _GLOBALS:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")
        return _GLOBALS[module, name]


def _load_storage(content: bytes) -> Any:
    # torch's own function of this name would unpickle the content freely
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
    return torch.empty(0, dtype=storage.dtype).set_(storage.untyped(), offset, size, stride)


_GLOBALS = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch.storage", "_load_from_bytes"): _load_storage,
}


def read_onnx(path: Path) -> dict[str, Tensor]:
    """The float initialisers of an ONNX file, under the names that they have in the module that was exported.

    A linear layer's matrix is exported transposed and without its name. The node that multiplies by it gives the name:
    /backbone/encoder/layer.0/mlp/fc1/MatMul becomes backbone.encoder.layer.0.mlp.fc1.weight again. Only the part of
    protobuf that this needs is read here, so that no runtime is installed.
    """
    try:
        graph = _fields(_fields(memoryview(path.read_bytes()))[7][0])
        weights = dict(_initialiser(_fields(content)) for content in graph[5])
        for node in map(_fields, graph[1]):
            for matrix in map(_text, node[1]):
                if matrix.startswith("onnx::MatMul_") and matrix in weights:
                    layer = _text(node[3][0]).removeprefix("/").removesuffix("/MatMul").replace("/", ".")
                    weights[f"{layer}.weight"] = weights.pop(matrix).T
    except (OSError, IndexError, ValueError, TypeError) as error:
        raise Unusable(f"{path.name} cannot be read as an ONNX file ({in_words(error)})") from error
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def _initialiser(tensor: dict[int, list[Any]]) -> tuple[str, Tensor]:
    """A TensorProto: dims 1, data_type 2, name 8, raw_data 9."""
    shape, name, raw = tensor[1], _text(tensor[8][0]), b"".join(tensor[9])
    if tensor[2] != [_FLOAT] or len(raw) != 4 * math.prod(shape):
        return name, torch.zeros(0)  # an index or a shape of the graph, no weight
    return name, torch.from_numpy(np.frombuffer(raw, "<f4").astype(np.float32)).reshape(shape)


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _fields(message: memoryview) -> dict[int, list[Any]]:
    """The values of a protobuf message by field number: numbers, or the bytes of text and messages."""
    found: dict[int, list[Any]] = defaultdict(list)
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        value, place = _varint(message, place)
        if key & 7 == _BYTES:
            start, place = place, place + value
            value = message[start:place]
        if key & 7 not in (_VARINT, _BYTES) or place > len(message):
            raise ValueError("a field of another type, or one that does not fit")
        found[key >> 3].append(value)
    return found


def _varint(message: memoryview, place: int) -> tuple[Any, int]:
    end = place
    while message[end] > 127:
        end += 1
    return sum((byte & 127) << 7 * i for i, byte in enumerate(message[place : end + 1])), end + 1


_HEAD_WIDTH = 64  # of an attention head, in every plain ViT of timm's
_NAMES = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "norm": "vit.layernorm",
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def config_of_timm(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of transformers' ViTConfig, read from the shapes of the weights."""
    try:
        width, channels, patch, _ = state["patch_embed.proj.weight"].shape
        side = math.isqrt(state["pos_embed"].shape[1] - 1)
        hidden = state["blocks.0.mlp.fc1.weight"].shape[0]
    except (KeyError, ValueError, IndexError) as error:
        wrong = (
            "one of patch_embed.proj.weight, pos_embed and blocks.0.mlp.fc1.weight is missing or has the wrong shape"
        )
        raise Unusable(f"it is not a plain ViT, {wrong}") from error
    return {
        "hidden_size": width,
        "num_hidden_layers": len({name.split(".")[1] for name in state if name.startswith("blocks.")}),
        "num_attention_heads": (settings.get("model_args") or {}).get("num_heads", max(1, width // _HEAD_WIDTH)),
        "intermediate_size": hidden,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "layer_norm_eps": 1e-6,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
    }


def state_from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights except the head's; a tensor that a plain ViT does not have is refused."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        found = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+?)(\.weight|\.bias)?", name)
        block, layer, kind = found.groups(default="") if found else ("", name, "")
        prefix = f"vit.encoder.layer.{block}." if block else ""
        if block and layer == "attn.qkv":  # timm keeps the three in one matrix
            for part, values in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[f"{prefix}attention.attention.{part}{kind}"] = values.contiguous()
        elif layer in _NAMES and _NAMES[layer].startswith("vit.") != bool(block):
            renamed[f"{prefix}{_NAMES[layer]}{kind}"] = tensor
        elif block or layer != "head":
            raise Unusable(f"the checkpoint in timm's layout holds {name}, which a plain ViT does not have")
    return renamed
