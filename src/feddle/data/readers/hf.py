"""Hugging Face datasets of images or texts on disk."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from feddle.core.errors import FeddleError, one_line
from feddle.data.collection import Collection, Texts
from feddle.data.pictures import Stored, require_pillow
from feddle.data.readers.csv import Columns, find_splits, labelled_rows


def read_huggingface(path: Path, columns: Columns) -> Collection:
    """A `Dataset` or `DatasetDict` of images or texts as `save_to_disk` leaves it."""
    try:
        import datasets
    except ImportError as error:
        raise FeddleError(f"{path} needs Hugging Face's datasets; pip install 'feddle[huggingface]'") from error
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises errors of many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FeddleError(
            f"cannot read {path} as a Hugging Face dataset on disk ({reason}); write it with save_to_disk"
        ) from error
    if not isinstance(loaded, datasets.DatasetDict):
        return _from_dataset(str(path), loaded, columns)
    splits = find_splits(loaded)
    if "train" not in splits:
        raise FeddleError(f"{path} has the splits {', '.join(map(str, loaded))}, but none is called train; rename one")
    for name in splits.values():
        _require_types(str(path), loaded, splits["train"], name)
    whole = datasets.concatenate_datasets([loaded[name] for name in splits.values()])
    of_each = [split for split, name in splits.items() for _ in range(len(loaded[name]))]
    return _from_dataset(str(path), whole, columns.model_copy(update={"split": None}), of_each)


def _require_types(path: str, loaded: Any, train: str, other: str) -> None:
    """Refuse a split that has a column of another type than the training rows."""
    for column, held in loaded[other].features.items():
        expected = loaded[train].features.get(column, held)
        if held != expected and "null" not in (getattr(held, "dtype", None), getattr(expected, "dtype", None)):
            kinds = f"{one_line(str(held), 80)} in {other}, but {one_line(str(expected), 80)} in {train}"
            raise FeddleError(f"{path}: the column {column} is {kinds}; cast one of them to the type of the other")


def _from_dataset(name: str, dataset: Any, columns: Columns, splits: list[str] | None = None) -> Collection:
    from datasets import ClassLabel, Image, Value

    dataset = dataset.with_format(None)
    if not len(dataset):
        raise FeddleError(f"{name} has no rows; add examples")
    found = columns.find(dataset.column_names, name)
    unused = tuple(column for column in dataset.column_names if column not in found.values())
    image = found.pop("image", None)
    if image is not None and not isinstance(dataset.features[image], Image):
        raise FeddleError(f"{name}: the column {image} should hold images (datasets.Image); cast it to that")
    for column, own in found.items():
        if not isinstance(dataset.features[own], ClassLabel | Value):
            wrong = f"the column {own} should hold numbers or text, not {type(dataset.features[own]).__name__}"
            raise FeddleError(f"{name}: {wrong}; set data.columns.{column} to another one")
    plain = dataset.remove_columns([image] if image else [])  # so that no image is read for its label
    texts = {column: ["" if v is None else str(v) for v in plain[own]] for column, own in found.items()}
    texts = texts if splits is None else {**texts, "split": splits}
    if image is None:
        return replace(labelled_rows(name, Texts(tuple(texts["text"])), texts), unused=unused)
    require_pillow(name)
    pictures = Stored(dataset.cast_column(image, Image(decode=False)), image, torch.arange(len(dataset)), name)
    return replace(labelled_rows(name, pictures, texts), unused=unused)
