"""Image files in a folder for each class."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.pictures import ENDINGS, Files, require_pillow
from feddle.data.readers.csv import Column, find_splits, labelled_rows
from feddle.data.source import Unusable


def read_folder(path: Path) -> Collection:
    """A folder of images, a folder for each class; these may be below `train`, `test` (or `val`) and `server`."""
    return _read_splits(path, find_splits(_folders(path)))


def read_imagenet(place: Path) -> Collection:
    """ImageNet: train/WNID/*.JPEG; val too if it has been sorted into such folders."""
    inside = place / "ILSVRC" / "Data" / "CLS-LOC"
    root = inside if inside.is_dir() else place
    if not (root / "train").is_dir():
        raise Unusable("it holds no folder train")
    splits = find_splits(_folders(root))
    splits.pop("test", None)  # ImageNet's own folder test has no classes
    if (root / "val").is_dir() and any(p.is_dir() for p in (root / "val").iterdir()):
        splits["test"] = "val"
    return replace(_read_splits(root, splits), name="imagenet")


def _read_splits(path: Path, splits: dict[str, str]) -> Collection:
    """The images in the folder of each split; without a folder for training, all images are for training."""
    require_pillow(str(path))
    root = path.resolve()
    if "train" not in splits:
        splits = {"train": ""}
    names: list[str] = []
    columns: dict[Column, list[str]] = {"label": [], "split": []}
    for split, folder in splits.items():
        for name, label in _class_folders(root / folder):
            names.append(f"{folder}/{name}" if folder else name)
            columns["label"].append(label)
            columns["split"].append(split)
    return labelled_rows(str(path), Files.of(root, names), columns)


def _class_folders(root: Path) -> Iterator[tuple[str, str]]:
    """The image files in the folders below, relative to the root, and the name of the folder that each is in."""
    folders = sorted(name for name in _folders(root) if not name.startswith("."))
    if not folders:
        raise FeddleError(f"{root} holds no folders; it should hold one for each class, with its images")
    for folder in folders:
        inside = sorted(_image_files(root / folder))
        if not inside:
            raise FeddleError(f"{root / folder} holds no images (.jpg, .png, …); add some, or remove the folder")
        for name in inside:
            yield f"{folder}/{name}", folder


def _folders(root: Path) -> list[str]:
    return [entry.name for entry in os.scandir(root) if entry.is_dir()]


def _image_files(folder: Path) -> Iterator[str]:
    """Names of image files in a folder and below it; file browsers leave names that begin with a dot."""
    pending = [""]
    while pending:
        inside = pending.pop()
        with os.scandir(folder / inside) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    pending += [] if entry.is_symlink() else [f"{inside}{entry.name}/"]  # a link may lead back
                elif entry.name.lower().endswith(ENDINGS):
                    if not entry.is_file():  # a named pipe would block whoever opens it
                        raise FeddleError(f"the image {entry.path} is no regular file, or a broken link; remove it")
                    yield f"{inside}{entry.name}"
