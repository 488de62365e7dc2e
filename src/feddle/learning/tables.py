"""Tables of images: which column is which, and rows as a collection."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.learning.collection import NOBODY, Collection, Labelled, Pictures, divided, ranks, require_classes

Column = Literal["image", "label", "client", "split"]
# The names that a column goes by where none is said, in the order in which they are looked for.
USUAL: dict[Column, tuple[str, ...]] = {
    "image": ("path", "image", "img", "file", "filename", "file_name"),
    "label": ("label", "class", "target", "y"),
    "client": ("client", "client_id", "user", "user_id", "writer_id"),
    "split": ("split",),
}
TRAIN, TEST = ("train", "training"), ("test", "val", "valid", "validation")


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
            near = difflib.get_close_matches(said or column, present, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise FeddleError(
                f"{source} has no column {looked}: {hint}It has {', '.join(present) or 'none'}; say which one with "
                f"data.columns.{column}"
            )
        return found


def labelled_rows(
    name: str,
    images: Tensor | Pictures,
    labels: Sequence[str],
    clients: Sequence[str] | None,
    splits: Sequence[str] | None,
) -> Collection:
    """Classes and clients numbered in the order of their names; an empty client is nobody."""
    numbers, classes = ranks(labels)
    owners = None
    if clients is not None:
        known = [i for i, client in enumerate(clients) if client]
        owners = torch.full((len(labels),), NOBODY)
        owners[known] = ranks([clients[i] for i in known])[0]
    rows = Labelled(images, numbers, owners)
    test = None
    if splits is not None:
        kept, test = _parts(name, splits)
        rows, test = rows if kept.all() else rows.select(kept.nonzero().flatten()), test[kept]
    return require_classes(divided(name, rows, test, len(classes)), classes)


def _parts(name: str, splits: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Which rows are kept, and which are for the test; a row without a split is for training.

    Validation rows stand in for test rows, and are left out where there are any.
    """
    known = (*TRAIN, *TEST, "")
    for row, split in enumerate(splits):
        if split.lower() not in known:
            raise FeddleError(f"{name}: the split of row {row} (from 0) is {split!r}; it should be train or test")
    tested, validated = (torch.tensor([s.lower() in names for s in splits]) for names in (TEST[:1], TEST[1:]))
    kept = ~validated if tested.any() else torch.ones_like(tested)
    test = tested if tested.any() else validated
    if test[kept].all():
        raise FeddleError(f"{name}: every row is for the test; training needs some too")
    return kept, test
