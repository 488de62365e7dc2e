"""CIFAR-10 and CIFAR-100, binary version: a record is one or two label bytes, then the image channel by channel."""

import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddle.data.collection import Collection, Labelled
from feddle.data.readers.files import Arrays, Contents, Unusable, as_images, as_labels, find_file, read_bytes

CIFAR_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_CIFAR100 = "cifar-100-binary"
_RECORD, _SUPERCLASSES, _FINE = 2 + 3 * 32 * 32, 20, 100


def decode_cifar(folder: Path, contents: Contents) -> Arrays:
    """CIFAR-10: five training batches and a test batch."""
    inside = folder / CIFAR_FOLDER
    folder = inside if inside.is_dir() else folder
    batch = contents.train // len(_TRAIN)
    parts = [_read_batch(find_file(folder, name), batch, contents) for name in _TRAIN]
    test = _read_batch(find_file(folder, _TEST), contents.test, contents)
    train_images, train_labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return Arrays(train_images, train_labels, *test)


def _read_batch(path: Path, count: int, contents: Contents) -> tuple[Tensor, Tensor]:
    width = 1 + int(np.prod(contents.shape))
    content = read_bytes(path, limit=count * width)
    if len(content) != count * width:
        raise Unusable(f"{path.name} should hold {count} records of {width} bytes, but has {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(count, width)
    return as_images(records[:, 1:], contents.shape), as_labels(records[:, 0], contents.num_classes, path)


def read_cifar100(place: Path) -> Collection:
    """CIFAR-100: the 20 superclasses are the labels; a Dirichlet partition spreads the 100 fine classes."""
    halves = []
    for name in ("train.bin", "test.bin"):
        records = np.frombuffer(_cifar100_file(place, name), np.uint8)
        if not len(records) or len(records) % _RECORD:
            raise Unusable(f"{name} should hold records of {_RECORD} bytes, but has {len(records)} bytes")
        records = records.reshape(-1, _RECORD)
        coarse, fine = (torch.from_numpy(records[:, i].astype(np.int64)) for i in (0, 1))
        if int(coarse.max()) >= _SUPERCLASSES or int(fine.max()) >= _FINE:
            raise Unusable(f"{name} should hold labels below {_SUPERCLASSES} and {_FINE}")
        halves.append(Labelled(as_images(records[:, 2:], (3, 32, 32)), coarse, kinds=fine))
    return Collection("cifar-100", halves[0], halves[1], _SUPERCLASSES)


def _cifar100_file(place: Path, name: str) -> bytes:
    """A file of the archive, which may be unpacked or not."""
    archive, limit = place / f"{_CIFAR100}.tar.gz", 50_000 * _RECORD
    if not archive.is_file():
        folder = place / _CIFAR100
        return read_bytes(find_file(folder if folder.is_dir() else place, name), limit=limit)
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(f"{_CIFAR100}/{name}")
            return b"" if member is None else member.read(limit + 1)
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise Unusable(f"{archive.name} cannot be read ({error})") from error
