"""FEMNIST and CelebA as LEAF's scripts leave them: JSON files of users, their number of samples and their data."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from feddle.core.durable import write_whole
from feddle.data.collection import Collection, Labelled, divided
from feddle.data.pictures import Files, require_pillow
from feddle.data.source import Unusable, cache_folder, find_folder

FEMNIST_CLASSES = 40  # the paper keeps the first 40 of LEAF's 62: digits, capitals and a to d
_SIDE = 28

Convert = Callable[[list[Any], list[int]], tuple[list[Any], list[int]]]  # images and labels of one person


def read_femnist(place: Path) -> Collection:
    """Handwritten characters; each person is a client.

    The files are gigabytes of text, so their content is kept in the cache, under a digest of their names, sizes and
    times.
    """
    files = _files(place)
    stamp = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for _, p in files]
    kept = cache_folder() / f"femnist-{hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]}.safetensors"
    try:
        tensors = load_file(kept)
    except (OSError, SafetensorError):
        images, labels, owners, test = _gather(files, _characters)
        pixels = np.concatenate(images) if images else np.empty((0, 1, _SIDE, _SIDE))
        tensors = {"images": torch.from_numpy(pixels), "labels": labels, "owners": owners, "test": test}
        with suppress(OSError):  # without the cache the next run decodes again
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, save(tensors), sync=False, contested=True)
    rows = Labelled(tensors["images"], tensors["labels"], tensors["owners"])
    return divided("femnist", rows, tensors["test"], FEMNIST_CLASSES)


def _characters(images: list[Any], labels: list[int]) -> tuple[list[Any], list[int]]:
    """Lists of 784 numbers from 0 to 1 as one array of bytes (n, 1, 28, 28), without the classes that are left out."""
    chosen = [i for i, label in enumerate(labels) if label < FEMNIST_CLASSES]
    values = np.array([images[i] for i in chosen], dtype=np.float64).reshape(-1, 1, _SIDE, _SIDE)
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError("pixels should be from 0 to 1")
    return [np.rint(values * 255).astype(np.uint8)], [labels[i] for i in chosen]


def _file_names(images: list[Any], labels: list[int]) -> tuple[list[Any], list[int]]:
    if not all(isinstance(name, str) for name in images):
        raise ValueError("x should name image files")
    return images, labels


def read_celeba(place: Path) -> Collection:
    """Faces that smile or do not; each person is a client. The JSON files name the image files."""
    require_pillow("celeba")
    names, labels, owners, test = _gather(_files(place), _file_names)
    # unpacking the archive may have put the folder into another folder of the same name
    nested = [f"{root}/img_align_celeba/img_align_celeba" for root in (".", "raw", "data/raw")]
    folder = find_folder(place, *nested, "img_align_celeba", "data/raw/img_align_celeba", "raw/img_align_celeba")
    files = Files.of(folder.resolve(), names).require()
    return divided("celeba", Labelled(files, labels, owners), test, 2)


def _gather(files: list[tuple[bool, Path]], convert: Convert) -> tuple[list[Any], Tensor, Tensor, Tensor]:
    """The converted images of all people, and for each image its label, its owner and whether it is for the test."""
    images: list[Any] = []
    rows: list[tuple[int, int, bool]] = []
    people: dict[str, int] = {}
    for test, path in files:
        if not path.is_file():
            raise Unusable(f"{path.name} is not a regular file")
        try:
            content = json.loads(path.read_bytes())
            for user, count in zip(content["users"], content["num_samples"], strict=True):
                held, given = content["user_data"][user]["x"], [int(y) for y in content["user_data"][user]["y"]]
                if not len(held) == len(given) == count:
                    found = f"{len(held)} images and {len(given)} labels"
                    raise ValueError(f"num_samples of {user} is {count}, but user_data has {found}")
                if min(given, default=0) < 0:
                    raise ValueError(f"{user} has the label {min(given)}")
                converted, chosen = convert(held, given)
                images += converted
                owner = people.setdefault(str(user), len(people))
                rows += [(label, owner, test) for label in chosen]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unusable(f"{path.name} is not in LEAF's layout: {type(error).__name__} {error}") from error
    labels, owners, tests = (column.clone() for column in torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T)
    return images, labels, owners, tests


def _files(place: Path) -> list[tuple[bool, Path]]:
    """The JSON files, each with whether it is for the test: LEAF's split if it was made, else everything."""
    for root in (place, place / "data"):
        found = {name: sorted((root / name).glob("*.json")) for name in ("train", "test", "all_data")}
        if found["train"] and found["test"]:
            return [(False, p) for p in found["train"]] + [(True, p) for p in found["test"]]
        if found["all_data"]:
            return [(False, p) for p in found["all_data"]]
    raise Unusable("it holds no JSON files in all_data, or in train and test")
