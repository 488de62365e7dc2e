"""What the readers of official files share: finding files, reading their bytes, and what they must hold."""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class Unusable(Exception):  # noqa: N818 - a reason to try the next origin, not yet an error
    """Files that cannot be used; the text is the short reason."""


class Arrays(NamedTuple):
    """The four tensors of a data set: uint8 images (n, C, H, W) and int64 labels (n,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Contents:
    """What a data set must hold: the shape (C, H, W) of an image, and the counts."""

    shape: tuple[int, int, int]
    train: int
    test: int
    num_classes: int


def find_file(folder: Path, *names: str) -> Path:
    """The first of these files that is in the folder."""
    if not folder.is_dir():
        raise Unusable("no such folder")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise Unusable(f"it holds no {' or '.join(names)}")


def read_bytes(path: Path, *, limit: int) -> bytes:
    """The content of a file, unzipped if it is gzipped; more than `limit` bytes are refused."""
    try:
        with path.open("rb") as raw:
            # The first bytes decide, not the name: a web server may unzip a .gz file on the way.
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            content = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Unusable(f"{path.name} cannot be read ({error})") from error
    if len(content) > limit:
        raise Unusable(f"{path.name} is longer than the expected {limit} bytes")
    return content


def as_images(values: Bytes, shape: tuple[int, int, int]) -> Tensor:
    """Pixels as a writable uint8 tensor (n, C, H, W)."""
    return torch.from_numpy(values.reshape(-1, *shape).copy())


def as_labels(values: "np.ndarray[tuple[int, ...], np.dtype[np.integer]]", num_classes: int, path: Path) -> Tensor:
    """Labels as an int64 tensor (n,), after a check of their range."""
    labels = torch.from_numpy(values.astype(np.int64))
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise Unusable(f"{path.name} should hold labels from 0 to {num_classes - 1}, not {int(labels.max())}")
    return labels


def times(numbers: Sequence[int]) -> str:
    """A shape in words: 60000 × 28 × 28."""
    return " × ".join(str(number) for number in numbers)
