"""Tables of images: which column is which, and rows as a collection."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddle.core.errors import FeddleError, did_you_mean
from feddle.data.collection import NOBODY, Collection, Labelled, Part, Pictures, divided, ranks, require_classes

Column = Literal["image", "label", "client", "split"]
# The names that a column goes by where none is said, in the order in which they are looked for.
USUAL: dict[Column, tuple[str, ...]] = {
    "image": ("path", "image", "img", "file", "filename", "file_name"),
    "label": ("label", "class", "target", "y"),
    "client": ("client", "client_id", "user", "user_id", "writer_id"),
    "split": ("split",),
}
TRAIN, TEST, SERVER = ("train", "training"), ("test", "val", "valid", "validation"), "server"


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are called; None: by one of the usual names."""

    image: str | None = None
    label: str | None = None
    client: str | None = None
    split: str | None = None

    def find(self, column: Column, present: Sequence[str], source: str, *, needed: bool = True) -> str | None:
        """The name of a column among those present; None if it is neither there nor needed."""
        said: str | None = getattr(self, column)
        found = next((name for name in ((said,) if said else USUAL[column]) if name in present), None)
        if found is None and (needed or said):
            looked = repr(said) if said else " or ".join(USUAL[column])
            hint = f"{did_you_mean(said or column, present)} It has {', '.join(present) or 'none'}".lstrip()
            raise FeddleError(f"{source} has no column {looked}: {hint}; say which one with data.columns.{column}")
        return found


def labelled_rows(
    name: str,
    images: Tensor | Pictures,
    labels: Sequence[str],
    clients: Sequence[str] | None,
    splits: Sequence[str] | None,
) -> Collection:
    """Classes and clients numbered in the order of their names; an empty client is nobody."""
    if "" in labels:
        raise FeddleError(f"{name}: row {list(labels).index('')} (from 0) has no label; add it or leave the row out")
    numbers, classes = ranks(labels)
    owners = None
    if clients is not None and any(clients):
        known = [i for i, client in enumerate(clients) if client]
        owners = torch.full((len(labels),), NOBODY)
        owners[known] = ranks([clients[i] for i in known])[0]
    parts = None if splits is None else _parts(name, splits)
    return require_classes(divided(name, Labelled(images, numbers, owners), parts, len(classes)), classes)


def _parts(name: str, splits: Sequence[str]) -> Tensor:
    """The `Part` of each row: without a split it is for training; validation rows stand in for missing test rows."""
    known = {**dict.fromkeys((*TRAIN, ""), Part.TRAIN), TEST[0]: Part.TEST, SERVER: Part.SERVER}
    known |= dict.fromkeys(TEST[1:], Part.NOTHING if any(s.lower() == TEST[0] for s in splits) else Part.TEST)
    try:
        parts = torch.tensor([known[split.lower()] for split in splits])
    except KeyError as error:
        split = error.args[0]
        raise FeddleError(f"{name} has the split {split!r}; it should be train, test or server") from error
    if not (parts == Part.TRAIN).any():
        raise FeddleError(f"{name}: no row is for training; give some the split train")
    return parts
