"""Official files that are decoded as a whole: idx (MNIST), the digits, CIFAR in binary, and the chest X-rays."""

import gzip
import math
import tarfile
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from feddle.data.collection import Collection, Labelled
from feddle.data.pictures import decode_picture
from feddle.data.source import Unusable, contents_hash, find_file, find_folder

_LIMIT = 1 << 28  # bytes; the largest official file has 154 MB
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_FOLDER = "cifar-10-batches-bin"
CHEST_FOLDER = "sofiimg/datasets/pneumonia"
_CHEST_SIZE = 224
_DIGITS = ("optdigits.tes", "digits.csv", "digits.csv.gz")
_LEVELS = 16  # a pixel of the digits counts the dark points of a 4 × 4 block
_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_CIFAR100 = "cifar-100-binary"
_CIFAR_SHAPE = (3, 32, 32)
_SUPERCLASSES, _FINE = 20, 100


class Arrays(NamedTuple):
    """The four tensors of a data set: uint8 images (n, C, H, W) and int64 labels (n,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def decode_idx(folder: Path) -> dict[str, Tensor]:
    """MNIST and Fashion-MNIST: four idx files, gzipped or not."""
    return Arrays(*(_read_idx(find_file(folder, f"{name}.gz", name)) for name in IDX_FILES))._asdict()


def _read_idx(path: Path) -> Tensor:
    """Four bytes, the last of which is the number of dimensions; the dimensions, four bytes each; then the values."""
    content = _read_bytes(path)
    try:
        _, *sizes = np.frombuffer(content, ">u4", count=1 + content[3]).tolist()
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)
        return _tensor(values, 1, *sizes[1:]) if sizes[1:] else _tensor(values)
    except (IndexError, ValueError) as error:
        raise Unusable(f"{path.name} is not a complete idx file") from error


def decode_digits(folder: Path) -> dict[str, Tensor]:
    """A table of text: 64 pixels from 0 to 16 and the label per line; the last fifth of the lines is the test set."""
    path = find_file(folder, *_DIGITS)
    try:
        rows = [line.split(b",") for line in _read_bytes(path).split()]
        table = np.array(rows, dtype=np.int64).reshape(-1, 65)
    except ValueError as error:
        raise Unusable(f"{path.name} is not a table of 65 whole numbers per line") from error
    images, labels = _tensor(table[:, :64] * 255 // _LEVELS, 1, 8, 8), _tensor(table[:, 64])
    split = round(0.8 * len(table))
    return Arrays(images[:split], labels[:split], images[split:], labels[split:])._asdict()


def decode_cifar(folder: Path) -> dict[str, Tensor]:
    """CIFAR-10: five training batches and a test batch."""
    paths = [find_file(folder, name, f"{CIFAR_FOLDER}/{name}") for name in _BATCHES]
    *train, test = (_records(_read_bytes(path), path.name, labels=1) for path in paths)
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
    """Records of one or two label bytes and an image, channel by channel: the images, then each column of labels."""
    width = labels + math.prod(_CIFAR_SHAPE)
    if not content or len(content) % width:
        raise Unusable(f"{name} should hold records of {width} bytes, but has {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, width)
    return [_tensor(records[:, labels:], *_CIFAR_SHAPE), *(_tensor(records[:, i]) for i in range(labels))]


def _cifar100_file(place: Path, name: str) -> bytes:
    """A file of the archive, which may be unpacked or not."""
    archive = place / f"{_CIFAR100}.tar.gz"
    if not archive.is_file():
        return _read_bytes(find_file(place, name, f"{_CIFAR100}/{name}"))
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(f"{_CIFAR100}/{name}")
            return b"" if member is None else member.read(_LIMIT)
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise Unusable(f"{archive.name} cannot be read ({error})") from error


def decode_jpegs(folder: Path) -> dict[str, Tensor]:
    """The chest X-rays, whose hash was checked; the classes are numbered in the order of their names."""
    files = _jpeg_files(folder)
    classes = sorted({path.parent.name for path in files})
    tensors = []
    for split in ("train", "test"):
        paths = [path for path in files if path.parts[-3] == split]
        tensors.append(torch.stack([decode_picture(path, _CHEST_SIZE, 1, path.name) for path in paths]))
        tensors.append(torch.tensor([classes.index(path.parent.name) for path in paths]))
    return Arrays(*tensors)._asdict()


def _jpeg_files(folder: Path) -> list[Path]:
    """The grey JPEG files in train/CLASS, then those in test/CLASS, in the order of class and name."""
    root = find_folder(folder, f"{CHEST_FOLDER}/train", "pneumonia/train", "train").parent
    # File browsers create files whose names begin with a dot.
    found = [path for split in ("train", "test") for path in (root / split).glob("[!.]*/[!.]*.jpeg")]
    return sorted(found, key=lambda path: (path.parts[-3] == "test", path.parts[-2:]))


def jpegs_hash(folder: Path) -> str:
    """SHA-256 over place (train/CLASS/NAME), length and bytes of the chest X-rays.

    Pixels are not hashed: the standard lets decoders differ in the last bit, and users have other versions.
    """
    return contents_hash(("/".join(path.parts[-3:]), _read_bytes(path)) for path in _jpeg_files(folder))


def _tensor(values: "np.ndarray[tuple[int, ...], np.dtype[np.integer]]", *shape: int) -> Tensor:
    """Labels as an int64 tensor (n,), or with a shape (C, H, W), pixels as a uint8 tensor (n, C, H, W)."""
    # astype copies, since the bytes of a file cannot be written to
    return torch.from_numpy(values.reshape(-1, *shape).astype(np.uint8 if shape else np.int64))


def _read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if it is gzipped."""
    if not path.is_file():
        raise Unusable(f"{path.name} is not a regular file")
    try:
        with path.open("rb") as raw:
            # The first bytes decide, not the name: a web server may unzip a .gz file on the way.
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            content = stream.read(_LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Unusable(f"{path.name} cannot be read ({error})") from error
    if len(content) > _LIMIT:
        raise Unusable(f"{path.name} is larger than {_LIMIT >> 20} MB")
    return content
