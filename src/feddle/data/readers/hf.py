"""Hugging Face datasets of images on disk."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.pictures import decode_picture, require_pillow
from feddle.data.readers.csv import SERVER, TEST, TRAIN, Columns, labelled_rows

_SPLITS = {"train": TRAIN, "test": TEST, "server": (SERVER,)}


def read_huggingface(path: Path, columns: Columns) -> Collection:
    """A `Dataset` or `DatasetDict` of images as `save_to_disk` leaves it."""
    require_pillow(str(path))
    try:
        import datasets
    except ImportError as error:
        raise FeddleError(f"{path} needs Hugging Face's datasets; pip install 'feddle[huggingface]'") from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # of the library's own making, of many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FeddleError(f"cannot read {path} as a Hugging Face dataset on disk ({reason})") from error
    splits = None
    if isinstance(loaded, datasets.DatasetDict):
        names = {s: next((n for n in usual if n in loaded), None) for s, usual in _SPLITS.items()}
        if names["train"] is None:
            raise FeddleError(f"{path} has the splits {', '.join(map(str, loaded))}, but none that is called train")
        present = {split: loaded[name] for split, name in names.items() if name is not None}
        splits = [split for split, held in present.items() for _ in range(len(held))]
        loaded = datasets.concatenate_datasets(list(present.values()))
    return _from_dataset(str(path), loaded.with_format(None), columns, splits)


def _from_dataset(name: str, dataset: Any, columns: Columns, splits: list[str] | None) -> Collection:
    from datasets import Image

    if not len(dataset):
        raise FeddleError(f"{name} has no rows")
    present = dataset.column_names
    image = columns.find("image", present, name)
    label = columns.find("label", present, name)
    client = columns.find("client", present, name, needed=False)
    split = columns.find("split", present, name, needed=False) if splits is None else None
    if not isinstance(dataset.features[image], Image):
        raise FeddleError(f"{name}: the column {image} should hold images (datasets.Image); cast it to that")
    pictures = Stored(dataset.cast_column(image, Image(decode=False)), str(image), torch.arange(len(dataset)), name)
    plain = dataset.remove_columns([image])  # so that no image is read for its label
    texts = {c: None if c is None else ["" if v is None else str(v) for v in plain[c]] for c in (label, client, split)}
    labels = texts[label]
    assert labels is not None
    return labelled_rows(name, pictures, labels, texts[client], texts[split] if splits is None else splits)


@dataclass(frozen=True, eq=False)
class Stored:
    """Images inside a Hugging Face dataset, as the files that were put there."""

    dataset: Any
    column: str
    rows: Tensor
    name: str

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index: Tensor) -> "Stored":
        """See `Pictures`."""
        return Stored(self.dataset, self.column, self.rows[index], self.name)

    def decode(self, index: int, size: int, channels: int) -> Tensor:
        """See `Pictures`."""
        row = int(self.rows[index])
        held, title = self.dataset[row][self.column], f"in row {row} of {self.name}"
        if held is None:
            raise FeddleError(f"there is no image {title}; leave that row out")
        source = Path(held["path"]) if held["bytes"] is None else io.BytesIO(held["bytes"])
        return decode_picture(source, size, channels, title)
