"""Data sets whose official files you bring, since they may not be passed on or are too large to fetch unasked."""

import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection, Labelled, divided
from feddle.data.pictures import Files, require_pillow
from feddle.data.places import cache_folder, expanded
from feddle.data.readers.decoders import Unusable, find_file, read_bytes
from feddle.data.readers.folder import read_folder, read_table
from feddle.data.readers.leaf import read_celeba, read_femnist


@dataclass(frozen=True)
class Brought:
    """A data set to bring: what it is, where its files can be had, and how they are read."""

    name: str
    title: str
    images: str  # the shape of an image, in words
    counts: tuple[str, str, str]  # of training images, test images and classes, in words
    get: str  # what to get from where
    put: str  # what the folder should then hold
    read: Callable[[Path], Collection]


def read_cifar100(place: Path) -> Collection:
    """CIFAR-100: the 20 superclasses are the labels, the 100 fine classes what a Dirichlet partition spreads."""
    halves = []
    for name in ("train.bin", "test.bin"):
        records = np.frombuffer(_cifar100_file(place, name), np.uint8)
        if not len(records) or len(records) % _RECORD:
            raise Unusable(f"{name} should hold records of {_RECORD} bytes, but has {len(records)} bytes")
        records = records.reshape(-1, _RECORD)
        coarse, fine = (torch.from_numpy(records[:, i].astype(np.int64)) for i in (0, 1))
        if int(coarse.max()) >= _SUPERCLASSES or int(fine.max()) >= _FINE:
            raise Unusable(f"{name} should hold labels below {_SUPERCLASSES} and {_FINE}")
        pixels = torch.from_numpy(records[:, 2:].reshape(-1, 3, 32, 32).copy())
        halves.append(Labelled(pixels, coarse, kinds=fine))
    return Collection("cifar-100", halves[0], halves[1], _SUPERCLASSES)


_RECORD, _SUPERCLASSES, _FINE = 2 + 3 * 32 * 32, 20, 100
_CIFAR100 = "cifar-100-binary"


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


def read_isic(place: Path) -> Collection:
    """ISIC 2019: a line of the ground truth has a 1 for its diagnosis; a diagnosis of no image is no class (UNK)."""
    require_pillow("isic-2019")
    table = find_file(place, "ISIC_2019_Training_GroundTruth.csv")
    header, lines = read_table(table)
    rows = [row for _, row in lines]
    try:
        truth = np.array([[float(value) for value in row[1:]] for row in rows])
    except ValueError as error:
        raise Unusable(f"{table.name} should hold numbers after the image's name") from error
    if header[0] != "image" or truth.shape[1] < 2:
        raise Unusable(f"{table.name} should have a column image, then one for each diagnosis")
    named = (truth == 1).sum(axis=1)
    if not (named == 1).all():
        raise Unusable(f"{table.name} should name one diagnosis for {rows[int((named != 1).argmax())][0]}")
    used = truth.any(axis=0)
    labels = torch.from_numpy(truth[:, used].argmax(axis=1))
    inside = place / "ISIC_2019_Training_Input"
    folder = inside / inside.name if (inside / inside.name).is_dir() else inside
    files = Files.of(folder.resolve(), [f"{row[0]}.jpg" for row in rows])
    files.require()
    return divided("isic-2019", Labelled(files, labels), None, int(used.sum()))


def read_imagenet(place: Path) -> Collection:
    """ImageNet: train/WNID/*.JPEG; val too if it has been sorted into such folders."""
    inside = place / "ILSVRC" / "Data" / "CLS-LOC"
    root = inside if inside.is_dir() else place
    if not (root / "train").is_dir():
        raise Unusable("it holds no folder train")
    sorted_val = (root / "val").is_dir() and any(p.is_dir() for p in (root / "val").iterdir())
    return replace(read_folder(root, tests=("val",) if sorted_val else ()), name="imagenet")


_LEAF = "https://github.com/TalwalkarLab/leaf"
SETS = (
    Brought(
        "cifar-100",
        "CIFAR-100: colour photos, 100 fine classes spread over the clients, 20 superclasses to learn",
        "3×32×32",
        ("50,000", "10,000", "20"),
        "cifar-100-binary.tar.gz (the binary version) from https://www.cs.toronto.edu/~kriz/cifar.html",
        "that archive",
        read_cifar100,
    ),
    Brought(
        "femnist",
        "FEMNIST: handwritten characters, a client a person; the first 40 classes",
        "1×28×28",
        ("all", "a share", "40"),
        f"LEAF from {_LEAF} and run `./preprocess.sh` in its data/femnist",
        "the folder all_data, or train and test, of its data/femnist/data",
        read_femnist,
    ),
    Brought(
        "celeba",
        "CelebA: faces, a client a person; smiling or not",
        "3×218×178",
        ("all", "a share", "2"),
        f"LEAF from {_LEAF}, the files that its data/celeba/README.md names, and run `./preprocess.sh` there",
        "the folders all_data (or train and test) and raw/img_align_celeba of its data/celeba/data",
        read_celeba,
    ),
    Brought(
        "isic-2019",
        "ISIC 2019: photos of skin lesions, eight diagnoses",
        "3×any size",
        ("25,331", "a share", "8"),
        "ISIC_2019_Training_Input.zip and ISIC_2019_Training_GroundTruth.csv from "
        "https://challenge.isic-archive.com/data/#2019",
        "the unpacked folder ISIC_2019_Training_Input and that CSV file",
        read_isic,
    ),
    Brought(
        "imagenet",
        "ImageNet: photos of a thousand kinds of things",
        "3×any size",
        ("1,281,167", "50,000", "1000"),
        "ILSVRC2012_img_train.tar from https://image-net.org/download-images and unpack it, each class in a folder",
        "train/WNID/*.JPEG (and val/WNID/*.JPEG, else a share of train measures accuracy)",
        read_imagenet,
    ),
)
NAMES = tuple(each.name for each in SETS)


def read_official(name: str, folder: Path | None) -> Collection:
    """The data set from a folder, by default that of its name in the cache folder."""
    wanted, place = next(each for each in SETS if each.name == name), place_of(name, folder)
    try:
        if not place.is_dir():
            raise Unusable("there is no such folder")
        return wanted.read(place)
    except Unusable as reason:
        raise FeddleError(
            f"{name} needs files of your own, and {place} does not serve ({reason}): get {wanted.get}; "
            f"put {wanted.put} there, or name the folder that holds them with data.folder"
        ) from reason


def place_of(name: str, folder: Path | None = None) -> Path:
    """Where its files are looked for."""
    if folder is None:
        return cache_folder() / name
    folder = expanded(folder)
    return folder / name if (folder / name).is_dir() else folder
