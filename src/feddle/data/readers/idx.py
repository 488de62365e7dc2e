"""MNIST and Fashion-MNIST: four idx files."""

import struct
from pathlib import Path

import numpy as np

from feddle.data.readers.files import (
    Arrays,
    Bytes,
    Contents,
    Unusable,
    as_images,
    as_labels,
    find_file,
    read_bytes,
    times,
)

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def decode_idx(folder: Path, contents: Contents) -> Arrays:
    """Read the four idx files, gzipped or not."""
    counts = (contents.train, contents.train, contents.test, contents.test)
    tensors = []
    for name, count in zip(IDX_FILES, counts, strict=True):
        path = find_file(folder, f"{name}.gz", name)
        if "images" in name:
            tensors.append(as_images(_read_idx(path, (count, *contents.shape[1:])), contents.shape))
        else:
            tensors.append(as_labels(_read_idx(path, (count,)), contents.num_classes, path))
    return Arrays(*tensors)


def _read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The bytes of an idx file as an array, after a check of its magic number, counts and length."""
    head = 4 * (1 + len(shape))
    content = read_bytes(path, limit=head + int(np.prod(shape)))
    if len(content) < head:
        raise Unusable(f"{path.name} should begin with {head} header bytes, but has only {len(content)} bytes")
    magic, *dims = struct.unpack(f">{1 + len(shape)}I", content[:head])
    expected = 0x0800 + len(shape)  # 08: unsigned bytes
    if magic != expected:
        raise Unusable(f"{path.name} should begin with the magic number {expected}, not {magic}")
    if tuple(dims) != shape:
        raise Unusable(f"{path.name} should hold {times(shape)} values, but its header says {times(dims)}")
    if len(content) - head != np.prod(shape):
        raise Unusable(f"{path.name} should hold {np.prod(shape)} values, but has {len(content) - head}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)
