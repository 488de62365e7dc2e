"""CIFAR-10 and CIFAR-100, binary version: a record is one or two label bytes, then the image channel by channel."""

import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddle.data.collection import Collection, Labelled
from feddle.data.readers.files import LIMIT, Arrays, Unusable, as_tensor, find_file, read_bytes

CIFAR_FOLDER = "cifar-10-batches-bin"
_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_CIFAR100 = "cifar-100-binary"
_SHAPE = (3, 32, 32)
_SUPERCLASSES, _FINE = 20, 100


def decode_cifar(folder: Path) -> dict[str, Tensor]:
    """CIFAR-10: five training batches and a test batch."""
    inside = folder / CIFAR_FOLDER
    paths = [find_file(inside if inside.is_dir() else folder, name) for name in _BATCHES]
    *train, test = (_records(read_bytes(path), path.name, labels=1) for path in paths)
    images, labels = (torch.cat(tensors) for tensors in zip(*train, strict=True))
    return Arrays(images, labels, *test)._asdict()


def read_cifar100(place: Path) -> Collection:
    """CIFAR-100: the 20 superclasses are the labels; a Dirichlet partition spreads the 100 fine classes."""
    halves = []
    for name in ("train.bin", "test.bin"):
        images, coarse, fine = _records(_cifar100_file(place, name), name, labels=2)
        if int(coarse.max()) >= _SUPERCLASSES or int(fine.max()) >= _FINE:
            raise Unusable(f"{name} should hold labels below {_SUPERCLASSES} and {_FINE}")
        halves.append(Labelled(images, coarse, kinds=fine))
    return Collection("cifar-100", halves[0], halves[1], _SUPERCLASSES)


def _records(content: bytes, name: str, labels: int) -> list[Tensor]:
    """The images of a file, then its labels: one tensor for each of the label bytes of a record."""
    width = labels + int(np.prod(_SHAPE))
    if not content or len(content) % width:
        raise Unusable(f"{name} should hold records of {width} bytes, but has {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, width)
    return [as_tensor(records[:, labels:], *_SHAPE), *(as_tensor(records[:, i]) for i in range(labels))]


def _cifar100_file(place: Path, name: str) -> bytes:
    """A file of the archive, which may be unpacked or not."""
    archive, folder = place / f"{_CIFAR100}.tar.gz", place / _CIFAR100
    if not archive.is_file():
        return read_bytes(find_file(folder if folder.is_dir() else place, name))
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(f"{_CIFAR100}/{name}")
            return b"" if member is None else member.read(LIMIT)
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise Unusable(f"{archive.name} cannot be read ({error})") from error
