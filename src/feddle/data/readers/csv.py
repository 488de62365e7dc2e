"""Tables of images: which column is which, and rows as a collection."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.errors import FeddleError, did_you_mean
from feddle.data.collection import NOBODY, Collection, Labelled, Part, Pictures, divided, ranks, require_classes
from feddle.data.pictures import Files, require_pillow
from feddle.options import Options

Column = Literal["image", "label", "client", "split"]
# Usual names of each column, in the order in which they are looked for.
USUAL: dict[Column, tuple[str, ...]] = {
    "image": ("path", "image", "img", "file", "filename", "file_name"),
    "label": ("label", "class", "target", "y"),
    "client": ("client", "client_id", "user", "user_id", "writer_id"),
    "split": ("split",),
}
TRAIN, TEST, SERVER = ("train", "training"), ("test", "val", "valid", "validation"), "server"


class Columns(Options):
    """Names of the columns of a CSV file or a Hugging Face dataset; by default one of the usual names."""

    image: str | None = Field(None, description="column of the image or its path; usually `path` or `image`")
    label: str | None = Field(None, description="column of the class; usually `label`")
    client: str | None = Field(None, description="column of the client that owns the image; usually `client`; optional")
    split: str | None = Field(None, description="column with `train`, `test` or `server`; usually `split`; optional")

    def find(self, column: Column, present: Sequence[str], source: str, *, needed: bool = True) -> str | None:
        """The name of a column among those present; None if it is neither there nor needed."""
        said: str | None = getattr(self, column)
        found = next((name for name in ((said,) if said else USUAL[column]) if name in present), None)
        if found is None and (needed or said):
            looked = repr(said) if said else " or ".join(USUAL[column])
            hint = f"{did_you_mean(said or column, present)} It has {', '.join(present) or 'none'}".lstrip()
            raise FeddleError(f"{source} has no column {looked}: {hint}; set data.columns.{column} to the right one")
        return found


def read_csv(path: Path, columns: Columns) -> Collection:
    """A table of image files and labels, with optional clients and splits; paths are relative to the table."""
    require_pillow(str(path))
    names, table = read_table(path)
    found = {c: columns.find(c, names, str(path), needed=c in ("image", "label")) for c in USUAL}
    values = {c: [row[names.index(name)].strip() for _, row in table] for c, name in found.items() if name}
    for column in ("image", "label"):
        for (line, _), value in zip(table, values[column], strict=True):
            if not value:
                raise FeddleError(f"{path}: line {line} has no {found[column]}; fill it in or leave the line out")
    files = Files.of(path.resolve().parent, values["image"])
    files.require()
    return labelled_rows(str(path), files, values["label"], values.get("client"), values.get("split"))


def read_table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a CSV file, and its rows with their line numbers; blank lines are left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FeddleError(f"cannot read {path} as a CSV file in UTF-8 ({error}); save it in that format") from error
    if len(rows) < 2:
        what = "is empty" if not rows else "has a header but no rows"
        raise FeddleError(f"{path} {what}; it needs a line of column names (path,label,client), then a line per image")
    (_, header), *table = rows
    for line, row in table:
        if len(row) != len(header):
            found = f"{len(row)} values, but the header names {len(header)} columns"
            raise FeddleError(f"{path}: line {line} has {found}; put values with commas in quotes")
    names = [name.strip() for name in header]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise FeddleError(f"{path} has two columns {twice[0]!r}; rename one of them")
    return names, table


def labelled_rows(
    name: str,
    images: Tensor | Pictures,
    labels: Sequence[str],
    clients: Sequence[str] | None,
    splits: Sequence[str] | None,
) -> Collection:
    """Classes and clients numbered in the order of their names; an empty client means that nobody owns the image."""
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
