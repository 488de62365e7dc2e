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
Columns = dict[Column, Array]

# A column is one array; or, as MedMNIST and Keras have it, one for each split: train_images or x_train.
_NAMES: dict[Column, tuple[str, str]] = {
    "image": ("images", "x"),
    "label": ("labels", "y"),
    "client": ("clients", "client"),
    "split": ("split", "splits"),
}


def read_npz(path: Path) -> Collection:
    """Uint8 images (n, H, W), (n, H, W, C) or (n, C, H, W) and their labels; nothing is ever unpickled."""
    try:
        with zipfile.ZipFile(path) as file:  # np.load would take a file of one array too, and give something else
            names = file.namelist()
        with warnings.catch_warnings(action="ignore"), np.load(path, allow_pickle=False) as archive:
            arrays = {name.removesuffix(".npy"): archive[name] for name in names if name.endswith(".npy")}
    except Exception as error:  # a broken archive makes zip, zlib and NumPy raise errors of many kinds
        reason = " ".join(str(error).split())
        if "allow_pickle" in reason:  # which NumPy recommends, but a pickle can run code
            reason = "it holds Python objects; save plain arrays of numbers or text"
        raise FeddleError(f"cannot read {path} as a NumPy archive without pickled objects ({reason})") from error
    columns = _columns(path, arrays)
    if "image" not in columns:
        columns = _joined(path, arrays)
    if "label" not in columns:
        raise FeddleError(f"{path} has no labels; add that array")
    images = columns.pop("image")
    for column, values in columns.items():
        name = _NAMES[column][0]
        if values.shape not in ((len(images),), (len(images), 1)):
            raise FeddleError(f"{path}: {name} has the shape {values.shape}, but there are {len(images)} images")
        if values.dtype.kind not in "iubU":
            raise FeddleError(f"{path}: {name} should be whole numbers or text, not {values.dtype}")
    if not len(images):
        raise FeddleError(f"{path} holds no images")
    texts = {column: [str(value) for value in values.reshape(-1).tolist()] for column, values in columns.items()}
    return labelled_rows(str(path), _pixels(path, images), texts)


def _columns(path: Path, arrays: Mapping[str, Array], split: str = "") -> Columns:
    """The columns that the arrays hold, or those of one split."""
    found: Columns = {}
    for column, (long, short) in _NAMES.items():
        for name in (f"{split}_{long}", f"{short}_{split}") if split else (long, short):
            if name in arrays and not arrays[name].ndim:
                raise FeddleError(f"{path}: {name} is a single value; it should have a row for each image")
            if name in arrays:
                found.setdefault(column, arrays[name])
    return found


def _joined(path: Path, arrays: Mapping[str, Array]) -> Columns:
    """The columns of all splits in one; a column that a split does not have is left out."""
    each = {split: held for split, *_ in SPLITS if "image" in (held := _columns(path, arrays, split))}
    if "train" not in each:
        usual = "images and labels, or train_images, train_labels, test_images and test_labels"
        raise FeddleError(f"{path} holds {', '.join(arrays) or 'nothing'}; it should hold {usual}")
    if any("client" in held for held in each.values()):  # images without a client belong to nobody
        for held in each.values():
            held["client"] = held.get("client", np.full(len(held["image"]), "")).astype(str)
    joined: Columns = {"split": np.repeat(list(each), [len(held["image"]) for held in each.values()])}
    for column in ("image", "label", "client"):
        parts = [held[column] for held in each.values() if column in held]
        for other in parts:
            if other.shape[1:] != parts[0].shape[1:]:
                raise FeddleError(
                    f"{path}: an array of train has the shape {parts[0].shape}, but another {other.shape}"
                )
        if len(parts) == len(each):
            joined[column] = np.concatenate(parts)
    return joined


def _pixels(path: Path, images: Array) -> Tensor:
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
