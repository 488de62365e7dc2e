"""NumPy archives of images."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.learning.collection import Collection
from feddle.learning.tables import labelled_rows

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

# images, labels, clients and splits; or for train and test each, as MedMNIST and Keras name them
_WHOLE = (("images", "x"), ("labels", "y"), ("clients", "client"), ("splits", "split"))
_HALVES = (("{}_images", "x_{}"), ("{}_labels", "y_{}"), ("{}_clients", "client_{}"))


def read_npz(path: Path) -> Collection:
    """Uint8 images (n, H, W), (n, H, W, C) or (n, C, H, W) and their labels; nothing is ever unpickled."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FeddleError(f"cannot read {path} as a NumPy archive without pickled objects ({error})") from error
    if _first(arrays, _WHOLE[0]) is not None:
        images, labels, clients, splits = (_first(arrays, names) for names in _WHOLE)
        return _from_arrays(path, images, labels, clients, splits)
    train, test = ([_first(arrays, [n.format(half) for n in names]) for names in _HALVES] for half in ("train", "test"))
    if train[0] is None:
        raise FeddleError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; it should hold images and labels (and clients, split), or "
            "train_images, train_labels, test_images and test_labels"
        )
    if test[0] is None:
        return _from_arrays(path, train[0], train[1], train[2], None)
    splits = np.array(["train"] * len(train[0]) + ["test"] * len(test[0]))
    if train[2] is not None and test[2] is None:
        train[2], test[2] = train[2].astype(str), np.full(len(test[0]), "")
    images, labels, clients = (_joined(path, *pair) for pair in zip(train, test, strict=True))
    return _from_arrays(path, images, labels, clients, splits)


def _first(arrays: dict[str, Array], names: Sequence[str]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _joined(path: Path, first: Array | None, second: Array | None) -> Array | None:
    if first is None or second is None:
        return None
    if first.shape[1:] != second.shape[1:]:
        raise FeddleError(f"{path}: an item of train has the shape {first.shape[1:]}, of test {second.shape[1:]}")
    return np.concatenate([first, second])


def _from_arrays(
    path: Path, images: Array | None, labels: Array | None, clients: Array | None, splits: Array | None
) -> Collection:
    if images is None or labels is None:
        raise FeddleError(f"{path} has {'no labels' if labels is None else 'no images'} beside the rest; add an array")
    columns = {"labels": labels, "clients": clients, "split": splits}
    flat: dict[str, list[str] | None] = {}
    for name, column in columns.items():
        if column is not None and column.shape not in ((len(images),), (len(images), 1)):
            raise FeddleError(f"{path}: {name} has the shape {column.shape}, but there are {len(images)} images")
        if column is not None and column.dtype.kind not in "iubU":
            raise FeddleError(f"{path}: {name} should be whole numbers or text, not {column.dtype}")
        flat[name] = None if column is None else [str(value) for value in column.reshape(-1).tolist()]
    if not len(images):
        raise FeddleError(f"{path} holds no images")
    labelled = flat["labels"]
    assert labelled is not None
    return labelled_rows(str(path), _pixels(path, images), labelled, flat["clients"], flat["split"])


def _pixels(path: Path, images: Array) -> Tensor:
    """Images as bytes (n, C, H, W), wherever their channels are."""
    if images.dtype != np.uint8:
        raise FeddleError(f"{path}: images should be uint8 (0 to 255), not {images.dtype}; convert them")
    if images.ndim == 3:
        return torch.from_numpy(images[:, None])
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        return torch.from_numpy(images)
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    raise FeddleError(
        f"{path}: images should have the shape (n, height, width), with 1 or 3 channels last or after n, "
        f"not {images.shape}"
    )
