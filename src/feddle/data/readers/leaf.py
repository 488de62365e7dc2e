"""FEMNIST and CelebA as LEAF's scripts leave them: JSON files of users, their number of samples and their data."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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
from feddle.data.places import cache_folder
from feddle.data.readers.files import Unusable

FEMNIST_CLASSES = 40  # the paper keeps the first 40 of LEAF's 62: digits, capitals and a to d
_SIDE = 28


@dataclass
class _Rows:
    """What the files hold, gathered: a row an image."""

    images: list[Any] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    test: list[bool] = field(default_factory=list)
    people: dict[str, int] = field(default_factory=dict)

    def add(self, user: str, images: list[Any], labels: list[int], *, test: bool) -> None:
        """A person's images."""
        self.images += images
        self.labels += labels
        self.owners += [self.people.setdefault(user, len(self.people))] * len(labels)
        self.test += [test] * len(labels)


def read_femnist(place: Path) -> Collection:
    """Handwritten characters, a client a person.

    The files are gigabytes of text, so what they hold is kept in the cache, under a digest of their names, sizes and
    times.
    """
    files = _files(place)
    stamp = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for _, p in files]
    kept = cache_folder() / f"femnist-{hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]}.safetensors"
    try:
        tensors = load_file(kept)
    except (OSError, SafetensorError):
        tensors = _decode_femnist(files)
        with suppress(OSError):  # without the cache the next run decodes again
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, save(tensors), sync=False, contested=True)
    rows = Labelled(tensors["images"], tensors["labels"], tensors["owners"])
    return divided("femnist", rows, tensors["test"], FEMNIST_CLASSES)


def _decode_femnist(files: list[tuple[bool, Path]]) -> dict[str, Tensor]:
    rows = _Rows()
    for test, path in files:
        for user, images, labels in _people(path):
            chosen = [i for i, label in enumerate(labels) if label < FEMNIST_CLASSES]
            pixels = _characters([images[i] for i in chosen], path)
            rows.add(user, [pixels] if len(chosen) else [], [labels[i] for i in chosen], test=test)
    return {
        "images": torch.from_numpy(np.concatenate(rows.images) if rows.images else np.empty((0, 1, _SIDE, _SIDE))),
        "labels": torch.tensor(rows.labels),
        "owners": torch.tensor(rows.owners),
        "test": torch.tensor(rows.test, dtype=torch.uint8),
    }


def _characters(images: list[Any], path: Path) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """Lists of 784 numbers from 0 to 1 as bytes (n, 1, 28, 28)."""
    try:
        values = np.array(images, dtype=np.float64).reshape(-1, 1, _SIDE, _SIDE)
    except (ValueError, TypeError) as error:
        raise Unusable(f"{path.name} should hold images of {_SIDE * _SIDE} numbers") from error
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise Unusable(f"{path.name} should hold pixels from 0 to 1")
    return np.rint(values * 255).astype(np.uint8)


def read_celeba(place: Path) -> Collection:
    """Faces that smile or do not, a client a person; the JSON names the files."""
    require_pillow("celeba")
    rows = _Rows()
    for test, path in _files(place):
        for user, images, labels in _people(path):
            rows.add(user, images, labels, test=test)
    if not all(isinstance(name, str) for name in rows.images):
        raise Unusable("the JSON should name image files")
    places = [root / "img_align_celeba" for root in (place, place / "raw", place / "data" / "raw")]
    folder = next((p for p in (*(p / p.name for p in places), *places) if p.is_dir()), None)
    if folder is None:
        raise Unusable("it holds no folder raw/img_align_celeba")
    files = Files.of(folder.resolve(), rows.images)
    files.require()
    labelled = Labelled(files, torch.tensor(rows.labels), torch.tensor(rows.owners))
    return divided("celeba", labelled, torch.tensor(rows.test), 2)


def _files(place: Path) -> list[tuple[bool, Path]]:
    """The JSON files, each with whether it is for the test: LEAF's split if it was made, else everything."""
    for root in (place, place / "data"):
        found = {name: sorted((root / name).glob("*.json")) for name in ("train", "test", "all_data")}
        if found["train"] and found["test"]:
            return [(False, p) for p in found["train"]] + [(True, p) for p in found["test"]]
        if found["all_data"]:
            return [(False, p) for p in found["all_data"]]
    raise Unusable("it holds no JSON files in all_data, or in train and test")


def _people(path: Path) -> Iterator[tuple[str, list[Any], list[int]]]:
    """Each user of a file with its images and labels, checked against the counts in the file."""
    try:
        content = json.loads(path.read_bytes())
        counts = zip(content["users"], content["num_samples"], strict=True)
        for user, count in counts:
            data = content["user_data"][user]
            images, labels = data["x"], [int(label) for label in data["y"]]
            if not len(images) == len(labels) == count:
                raise Unusable(
                    f"{path.name} says that {user} has {count} samples, but holds {len(images)} "
                    f"with {len(labels)} labels"
                )
            if labels and min(labels) < 0:
                raise Unusable(f"{path.name} gives {user} the label {min(labels)}")
            yield str(user), images, labels
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unusable(f"{path.name} is not in LEAF's layout: {type(error).__name__} {error}") from error
