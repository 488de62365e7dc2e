"""NumPy archives of images."""

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.readers.csv import SPLITS, Column, labelled_rows

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

# A column is one array; or, as MedMNIST and Keras have it, one for each split: train_images or x_train.
_NAMES: dict[Column, tuple[str, str]] = {
    "image": ("images", "x"),
    "label": ("labels", "y"),
    "client": ("clients", "client"),
    "split": ("split", "splits"),
}


def read_npz(path: Path) -> Collection:
    """The images and labels in an archive (see `from_arrays`); nothing is ever unpickled."""
    return from_arrays(path, _arrays(path))


def from_arrays(path: Path | str, arrays: Mapping[str, Array]) -> Collection:
    """Uint8 images (n, H, W), (n, H, W, C) or (n, C, H, W) and their labels; errors name the path."""
    whole = any(name in arrays for name in _NAMES["image"])
    pixels: list[Tensor] = []
    texts: dict[Column, list[str]] = {"label": [], "client": [], "split": []}
    for split in ("",) if whole else (name for name, *_ in SPLITS):
        columns = {column: _find(path, arrays, names, split) for column, names in _NAMES.items()}
        images = columns["image"]
        if images is None or not len(images):
            continue
        if columns["label"] is None:
            raise FeddleError(f"{path} has no labels; add an array `labels`")
        pixels.append(_pixels(path, images))
        for column, gathered in texts.items():
            values = columns[column]
            missing = [split if column == "split" else ""] * len(images)
            gathered += missing if values is None else _texts(path, _NAMES[column][0], values, len(images))
    if not pixels:
        usual = "images and labels, or train_images, train_labels, test_images and test_labels"
        raise FeddleError(
            f"{path} holds no images: its arrays are {', '.join(arrays) or 'none'}; it should hold {usual}"
        )
    if len(shapes := {tuple(part.shape[1:]) for part in pixels}) > 1:
        raise FeddleError(f"{path}: the images of all splits should have one shape, not {shapes}")
    return labelled_rows(str(path), pixels[0] if len(pixels) == 1 else torch.cat(pixels), texts)


def read_images(path: Path) -> Tensor:
    """The images of an archive, without their labels, as bytes (n, C, H, W)."""
    arrays = _arrays(path)
    found = _find(path, arrays, _NAMES["image"], "")
    if found is None:
        raise FeddleError(f"{path} has no array images; its arrays are {', '.join(arrays) or 'none'}; rename one")
    return _pixels(path, found)


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays of an archive by name."""
    try:
        with zipfile.ZipFile(path) as file:  # np.load also accepts a file of one array, and returns another type
            names = file.namelist()
        with warnings.catch_warnings(action="ignore"), np.load(path, allow_pickle=False) as archive:
            return {name.removesuffix(".npy"): archive[name] for name in names if name.endswith(".npy")}
    except Exception as error:  # a broken archive makes zip, zlib and NumPy raise errors of many kinds
        reason = " ".join(str(error).split())
        if "allow_pickle" in reason:  # which NumPy recommends, but a pickle can run code
            reason = "it holds Python objects; save plain arrays of numbers or text"
        raise FeddleError(f"cannot read {path} as a NumPy archive without pickled objects ({reason})") from error


def _find(path: Path | str, arrays: Mapping[str, Array], names: tuple[str, str], split: str) -> Array | None:
    """The array of a column, or that of one split; None if there is none."""
    long, short = names
    for name in (f"{split}_{long}", f"{short}_{split}") if split else names:
        if name in arrays:
            if not arrays[name].ndim:
                raise FeddleError(f"{path}: {name} is a single value; it should have a row for each image")
            return arrays[name]
    return None


def _texts(path: Path | str, name: str, values: Array, count: int) -> list[str]:
    """The values of a column as text."""
    if values.shape not in ((count,), (count, 1)):
        raise FeddleError(f"{path}: {name} has the shape {values.shape}, but there are {count} images")
    if values.dtype.kind not in "iubU":
        raise FeddleError(f"{path}: {name} should be whole numbers or text, not {values.dtype}")
    return [str(value) for value in values.reshape(-1).tolist()]


def _pixels(path: Path | str, images: Array) -> Tensor:
    """Images as bytes (n, C, H, W), wherever their channels are."""
    if images.dtype != np.uint8:
        raise FeddleError(f"{path}: images should be uint8 (0 to 255), not {images.dtype}; convert them")
    dimensions = images.ndim if images.size else 0
    if dimensions == 3:
        return torch.from_numpy(images[:, None])
    if dimensions == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        return torch.from_numpy(images)
    if dimensions == 4 and images.shape[3] in (1, 3):
        return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    usual = "(n, height, width), with 1 or 3 channels last or after n"
    raise FeddleError(f"{path}: images should have the shape {usual}, not {images.shape}")
