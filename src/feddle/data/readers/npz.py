"""NumPy archives of images."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.readers.csv import SERVER, labelled_rows

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

# images, labels, clients and splits; or for train, test and server each, as MedMNIST and Keras name them
_WHOLE = (("images", "x"), ("labels", "y"), ("clients", "client"), ("splits", "split"))
_PARTS = (("{}_images", "x_{}"), ("{}_labels", "y_{}"), ("{}_clients", "client_{}"))


def read_npz(path: Path) -> Collection:
    """Uint8 images (n, H, W), (n, H, W, C) or (n, C, H, W) and their labels; nothing is ever unpickled."""
    try:
        with zipfile.ZipFile(path) as file:  # np.load would take a file of one array too, and give something else
            names = file.namelist()
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name.removesuffix(".npy"): archive[name] for name in names if name.endswith(".npy")}
    except Exception as error:  # a broken archive makes zip, zlib and NumPy raise errors of many kinds
        raise FeddleError(f"cannot read {path} as a NumPy archive without pickled objects ({error})") from error
    if _first(arrays, _WHOLE[0]) is not None:
        images, labels, clients, splits = (_first(arrays, names) for names in _WHOLE)
        return _from_arrays(path, images, labels, clients, splits)
    held = {
        part: [_first(arrays, [n.format(part) for n in names]) for names in _PARTS]
        for part in ("train", "test", SERVER)
    }
    sizes = {part: len(images) for part, (images, _, _) in held.items() if images is not None}
    if "train" not in sizes:
        usual = "images and labels, or train_images, train_labels, test_images and test_labels"
        raise FeddleError(f"{path} holds {', '.join(arrays) or 'nothing'}; it should hold {usual}")
    columns = [[held[part][i] for part in sizes] for i in range(len(_PARTS))]
    if any(column is not None for column in columns[2]):  # images without a client belong to nobody
        each = zip(columns[2], sizes.values(), strict=True)
        columns[2] = [np.full(size, "") if column is None else column.astype(str) for column, size in each]
    images, labels, clients = (_joined(path, parts) for parts in columns)
    return _from_arrays(path, images, labels, clients, np.repeat(list(sizes), list(sizes.values())))


def _first(arrays: dict[str, Array], names: Sequence[str]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _joined(path: Path, parts: Sequence[Array | None]) -> Array | None:
    arrays = [part for part in parts if part is not None]
    if len(arrays) < len(parts):
        return None
    for other in arrays[1:]:
        if other.shape[1:] != arrays[0].shape[1:]:
            raise FeddleError(f"{path}: an array of train has the shape {arrays[0].shape}, but another {other.shape}")
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _from_arrays(
    path: Path, images: Array | None, labels: Array | None, clients: Array | None, splits: Array | None
) -> Collection:
    if images is None or labels is None:
        raise FeddleError(f"{path} has no {'labels' if labels is None else 'images'}; add that array")
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
    usual = "(n, height, width), with 1 or 3 channels last or after n"
    raise FeddleError(f"{path}: images should have the shape {usual}, not {images.shape}")
