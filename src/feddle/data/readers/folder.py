"""Image files in a folder for each class."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.pictures import ENDINGS, Files, require_pillow
from feddle.data.readers.csv import find_splits, labelled_rows
from feddle.data.source import find_folder


def read_folder(path: Path) -> Collection:
    """A folder of images, a folder for each class; these may be below `train`, `test` (or `val`) and `server`."""
    return _read_splits(path, find_splits(_folders(path)))


def read_all_images(path: Path) -> Files:
    """All image files in a folder and below it, without classes."""
    require_pillow(str(path))
    names = sorted(_image_files(path))
    if not names:
        raise FeddleError(f"{path} holds no images (.jpg, .png, …); name another folder")
    return Files.of(path.resolve(), names)


def read_imagenet(place: Path) -> Collection:
    """ImageNet: train/WNID/*.JPEG; val too if it has been sorted into such folders."""
    root = find_folder(place, "ILSVRC/Data/CLS-LOC/train", "train").parent
    splits = {"train": "train"}  # ImageNet's own folder test has no classes
    if (root / "val").is_dir() and _folders(root / "val"):
        splits["test"] = "val"
    return replace(_read_splits(root, splits), name="imagenet")


def _read_splits(path: Path, splits: dict[str, str]) -> Collection:
    """The images in the folder of each split; without a folder for training, all images are for training."""
    require_pillow(str(path))
    root = path.resolve()
    rows: list[tuple[str, str, str]] = []
    for split, folder in (splits if "train" in splits else {"train": "."}).items():
        rows += [(f"{folder}/{name}", label, split) for name, label in _class_folders(root / folder)]
    names, labels, of_each = zip(*rows, strict=True)
    return labelled_rows(str(path), Files.of(root, names), {"label": labels, "split": of_each})


def _class_folders(root: Path) -> Iterator[tuple[str, str]]:
    """The image files in the folders below, relative to the root, and the name of the folder that each is in."""
    folders = sorted(name for name in _folders(root) if not name.startswith("."))
    if not folders:
        raise FeddleError(f"{root} holds no folders; it should hold one for each class, with its images")
    for folder in folders:
        inside = sorted(_image_files(root / folder))
        if not inside:
            raise FeddleError(f"{root / folder} holds no images (.jpg, .png, …); add some, or remove the folder")
        yield from ((f"{folder}/{name}", folder) for name in inside)


def _folders(root: Path) -> list[str]:
    return [entry.name for entry in os.scandir(root) if entry.is_dir()]


def _image_files(folder: Path) -> Iterator[str]:
    """Names of image files in a folder and its subfolders. Names that begin with a dot are ignored."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):  # a link may lead back
                yield from (f"{entry.name}/{name}" for name in _image_files(folder / entry.name))
            elif entry.name.lower().endswith(ENDINGS):
                if not entry.is_file():  # opening a named pipe would block
                    raise FeddleError(f"the image {entry.path} is not a regular file, or a broken link; remove it")
                yield entry.name
