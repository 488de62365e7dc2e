"""Image files in a folder for each class."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.pictures import ENDINGS, Files, require_pillow
from feddle.data.readers.csv import SERVER, TEST, TRAIN, labelled_rows
from feddle.data.readers.files import Unusable


def read_folder(path: Path, tests: Sequence[str] = TEST) -> Collection:
    """A folder of images, a folder for each class; these may be below `train`, one of `tests` and `server`."""
    require_pillow(str(path))
    root = path.resolve()
    train = next((name for name in TRAIN if (root / name).is_dir()), None)
    if train is None:
        names, labels = _class_folders(root)
        return labelled_rows(str(path), Files.of(root, names), labels, None, None)
    test = next((name for name in tests if (root / name).is_dir()), None)
    places: list[str] = []
    labels, splits = [], []
    for folder, split in ((train, "train"), (test, "test"), (SERVER, SERVER)):
        if folder is not None and (root / folder).is_dir():
            names, own = _class_folders(root / folder)
            places += [f"{folder}/{name}" for name in names]
            labels += own
            splits += [split] * len(own)
    return labelled_rows(str(path), Files.of(root, places), labels, None, splits)


def read_imagenet(place: Path) -> Collection:
    """ImageNet: train/WNID/*.JPEG; val too if it has been sorted into such folders."""
    inside = place / "ILSVRC" / "Data" / "CLS-LOC"
    root = inside if inside.is_dir() else place
    if not (root / "train").is_dir():
        raise Unusable("it holds no folder train")
    sorted_val = (root / "val").is_dir() and any(p.is_dir() for p in (root / "val").iterdir())
    return replace(read_folder(root, tests=("val",) if sorted_val else ()), name="imagenet")


def _class_folders(root: Path) -> tuple[list[str], list[str]]:
    """The image files in the folders below, relative to the root, and the name of the folder that each is in."""
    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise FeddleError(f"{root} holds no folders; it should hold one for each class, with its images")
    names: list[str] = []
    labels: list[str] = []
    for folder in folders:
        inside = sorted(_image_files(root / folder))
        if not inside:
            raise FeddleError(f"{root / folder} holds no images (.jpg, .png, …); add some, or remove the folder")
        names += [f"{folder}/{name}" for name in inside]
        labels += [folder] * len(inside)
    return names, labels


def _image_files(folder: Path) -> Iterable[str]:
    """Names of image files in a folder and below it; file browsers leave names that begin with a dot."""
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        inside = os.path.relpath(place, folder)
        for name in files:
            if not name.startswith(".") and name.lower().endswith(ENDINGS):
                yield name if inside == "." else f"{inside}/{name}"
