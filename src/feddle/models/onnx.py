"""Read the weights of an ONNX file; of the format just what they need, so that no runtime has to be installed."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddle.data.readers.files import Unusable

_FLOAT = 1  # TensorProto.DataType
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
Field = tuple[int, "int | memoryview"]


def read_weights(path: Path) -> dict[str, Tensor]:
    """The float initialisers, under the names that they have in the module that was exported.

    A linear layer's matrix is exported transposed and without its name: it is told by the node that multiplies by it,
    /backbone/encoder/layer.0/mlp/fc1/MatMul, and is called backbone.encoder.layer.0.mlp.fc1.weight again here.
    """
    try:
        graph = _only(memoryview(path.read_bytes()), 7)
        weights = dict(_initialiser(content) for number, content in _fields(graph) if number == 5)
        nodes = [_node(content) for number, content in _fields(graph) if number == 1]
    except OSError as error:
        raise Unusable(f"{path.name} cannot be read ({error.strerror})") from error
    except (IndexError, ValueError, TypeError) as error:
        raise Unusable(f"{path.name} is no ONNX file, or a broken one ({error})") from error
    for kind, name, inputs in nodes:
        if kind == "MatMul" and len(inputs) == 2 and inputs[1].startswith("onnx::"):
            matrix = weights.pop(inputs[1], None)
            if matrix is not None:
                weights[name.removeprefix("/").removesuffix("/MatMul").replace("/", ".") + ".weight"] = matrix.T
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def _initialiser(content: "int | memoryview") -> tuple[str, Tensor]:
    """A TensorProto: dims 1, data_type 2, name 8, raw_data 9."""
    shape, name, kind, raw = [], "", 0, memoryview(b"")
    for number, value in _fields(_message(content)):
        if number == 1:
            shape += [value] if isinstance(value, int) else list(_varints(value))
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = str(_message(value), "utf-8")
        elif number == 9:
            raw = _message(value)
    if kind != _FLOAT or len(raw) != 4 * math.prod(shape):
        return name, torch.zeros(0)  # an index or a shape of the graph, no weight
    return name, torch.from_numpy(np.frombuffer(raw, "<f4").astype(np.float32)).reshape(shape)


def _node(content: "int | memoryview") -> tuple[str, str, list[str]]:
    """A NodeProto: input 1, name 3, op_type 4."""
    texts = [(number, str(value, "utf-8")) for number, value in _fields(_message(content)) if number in (1, 3, 4)]  # type: ignore[arg-type]
    first = dict(reversed(texts))
    return first.get(4, ""), first.get(3, ""), [text for number, text in texts if number == 1]


def _only(message: memoryview, wanted: int) -> memoryview:
    return _message(next((value for number, value in _fields(message) if number == wanted), 0))


def _message(value: "int | memoryview") -> memoryview:
    if isinstance(value, int):
        raise TypeError("a number where a message should be")
    return value


def _fields(message: memoryview) -> Iterator[Field]:
    """The fields of a protobuf message: number and value."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if key & 7 == _BYTES:
            size, place = _varint(message, place)
        else:
            size = {_FIXED32: 4, _FIXED64: 8}.get(key & 7, 0)
        if (not size and key & 7 != _BYTES) or place + size > len(message):
            raise ValueError("a field that does not fit")
        yield key >> 3, message[place : place + size]
        place += size


def _varints(packed: memoryview) -> Iterator[int]:
    place = 0
    while place < len(packed):
        value, place = _varint(packed, place)
        yield value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
