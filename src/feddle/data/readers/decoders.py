"""Read the official files of the image data sets into tensors."""

import gzip
import io
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = "test_batch.bin"
DIGITS_FILES = ("optdigits.tes", "digits.csv", "digits.csv.gz")
DIGITS_LEVELS = 16  # a pixel counts the dark points of a 4 × 4 block
CHEST_FOLDER = "sofiimg/datasets/pneumonia"
JPEG_LIMIT = 1 << 20  # bytes of one file; the largest has 12,433


class Unusable(Exception):  # noqa: N818 - it is a reason to try the next source, not yet an error
    """A source gave nothing that can be used; the text is the short reason."""


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


def decode_idx(folder: Path, contents: Contents) -> Arrays:
    """Read the four idx files of MNIST or Fashion-MNIST, gzipped or not."""
    counts = (contents.train, contents.train, contents.test, contents.test)
    tensors = []
    for name, count in zip(IDX_FILES, counts, strict=True):
        path = find_file(folder, f"{name}.gz", name)
        if "images" in name:
            images = _read_idx(path, (count, *contents.shape[1:]))
            tensors.append(_images(images, contents.shape))
        else:
            tensors.append(_labels(_read_idx(path, (count,)), contents.num_classes, path))
    return Arrays(*tensors)


def decode_cifar(folder: Path, contents: Contents) -> Arrays:
    """Read the binary batches of CIFAR-10: a record is a label byte, then the image channel by channel."""
    inside = folder / CIFAR_FOLDER
    folder = inside if inside.is_dir() else folder
    batch = contents.train // len(CIFAR_TRAIN)
    parts = [_read_records(find_file(folder, name), batch, contents) for name in CIFAR_TRAIN]
    test = _read_records(find_file(folder, CIFAR_TEST), contents.test, contents)
    train_images, train_labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return Arrays(train_images, train_labels, *test)


def decode_digits(folder: Path, contents: Contents) -> Arrays:
    """Read the digits: a line holds 64 pixels from 0 to 16 and the label; the last lines are the test set."""
    path = find_file(folder, *DIGITS_FILES)
    count = contents.train + contents.test
    # A number takes at most three characters with its comma.
    text = read_bytes(path, limit=count * (64 + 1) * 3)
    try:
        table = np.array([line.split(b",") for line in text.split()], dtype=np.int64)
    except ValueError as error:
        raise Unusable(f"{path.name} is not a table of whole numbers") from error
    if table.shape != (count, 65):
        raise Unusable(f"{path.name} should hold a table of {_times((count, 65))}, not {_times(table.shape)}")
    pixels, labels = table[:, :64], _labels(table[:, 64], contents.num_classes, path)
    if pixels.min() < 0 or pixels.max() > DIGITS_LEVELS:
        raise Unusable(f"{path.name} should hold pixels from 0 to {DIGITS_LEVELS}, not {pixels.max()}")
    images = _images((pixels * 255 // DIGITS_LEVELS).astype(np.uint8), contents.shape)
    split = contents.train
    return Arrays(images[:split], labels[:split], images[split:], labels[split:])


def decode_jpegs(folder: Path, contents: Contents) -> Arrays:
    """Read the JPEG files of train/CLASS and test/CLASS; the classes are numbered in the order of their names."""
    train, test = jpeg_files(folder, contents)
    classes = sorted({path.parent.name for path in train})
    tensors = []
    for paths in (train, test):
        tensors.append(torch.stack([_read_jpeg(path, contents.shape) for path in paths]))
        tensors.append(torch.tensor([classes.index(path.parent.name) for path in paths]))
    return Arrays(*tensors)


def jpeg_files(folder: Path, contents: Contents) -> tuple[list[Path], list[Path]]:
    """The JPEG files of train/CLASS and of test/CLASS, in the order of class and name."""
    places = (folder, folder / Path(CHEST_FOLDER).name, folder / CHEST_FOLDER)
    root = next((place for place in places if (place / "train").is_dir()), None)
    if root is None:
        raise Unusable("it holds no folder train")
    # Names that begin with a dot are what a file browser leaves behind.
    classes = sorted(path.name for path in (root / "train").glob("[!.]*/"))
    if len(classes) != contents.num_classes:
        raise Unusable(f"train should hold {contents.num_classes} folders, one a class, but holds {len(classes)}")
    train, test = (
        [path for name in classes for path in sorted((root / split / name).glob("[!.]*.jpeg"), key=lambda p: p.name)]
        for split in ("train", "test")
    )
    for split, paths, count in (("train", train, contents.train), ("test", test, contents.test)):
        if len(paths) != count:
            raise Unusable(
                f"{split} should hold {count} .jpeg files in {' and '.join(classes)}, but holds {len(paths)}"
            )
    return train, test


def find_file(folder: Path, *names: str) -> Path:
    """The first of these files that the folder holds."""
    if not folder.is_dir():
        raise Unusable("no such folder")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise Unusable(f"it holds no {' or '.join(names)}")


def read_bytes(path: Path, *, limit: int) -> bytes:
    """The content of a file, unzipped if it is gzipped; no more than `limit` bytes of it are accepted."""
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


def _read_idx(path: Path, shape: tuple[int, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """The bytes of an idx file as an array, after a check of its magic number, counts and length."""
    head = 4 * (1 + len(shape))
    content = read_bytes(path, limit=head + int(np.prod(shape)))
    if len(content) < head:
        raise Unusable(f"{path.name} should begin with {head} header bytes, but has only {len(content)} bytes")
    magic, *dims = struct.unpack(f">{1 + len(shape)}I", content[:head])
    expected = 0x0800 + len(shape)  # 08 says unsigned bytes
    if magic != expected:
        raise Unusable(f"{path.name} should begin with the magic number {expected}, not {magic}")
    if tuple(dims) != shape:
        raise Unusable(f"{path.name} should hold {_times(shape)} values, but its header says {_times(dims)}")
    if len(content) - head != np.prod(shape):
        raise Unusable(f"{path.name} should hold {np.prod(shape)} values, but has {len(content) - head}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _read_records(path: Path, count: int, contents: Contents) -> tuple[Tensor, Tensor]:
    """The images and labels of one CIFAR batch."""
    width = 1 + int(np.prod(contents.shape))
    content = read_bytes(path, limit=count * width)
    if len(content) != count * width:
        raise Unusable(f"{path.name} should hold {count} records of {width} bytes, but has {len(content)} bytes")
    records = np.frombuffer(content, np.uint8).reshape(count, width)
    return _images(records[:, 1:], contents.shape), _labels(records[:, 0], contents.num_classes, path)


def _read_jpeg(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """The pixels (1, H, W) of a grey JPEG file."""
    from PIL import Image  # of the extra feddle[images], which most data sets do without

    content = read_bytes(path, limit=JPEG_LIMIT)
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            pixels = np.array(image)
    except OSError as error:
        raise Unusable(f"{path.name} is not a JPEG file that Pillow can read") from error
    if pixels.shape != shape[1:]:
        raise Unusable(f"{path.name} should hold {_times(shape[1:])} grey pixels, not {_times(pixels.shape)}")
    return torch.from_numpy(pixels).reshape(shape)


def _images(values: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", shape: tuple[int, int, int]) -> Tensor:
    """Pixels as a writable uint8 tensor (n, C, H, W)."""
    return torch.from_numpy(values.reshape(-1, *shape).copy())


def _labels(values: "np.ndarray[tuple[int, ...], np.dtype[np.integer]]", num_classes: int, path: Path) -> Tensor:
    """Labels as an int64 tensor (n,), after a check of their range."""
    labels = torch.from_numpy(values.astype(np.int64))
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise Unusable(f"{path.name} should hold labels from 0 to {num_classes - 1}, not {int(labels.max())}")
    return labels


def _times(numbers: "tuple[int, ...] | list[int]") -> str:
    """A shape in words: 60000 × 28 × 28."""
    return " × ".join(str(number) for number in numbers)
