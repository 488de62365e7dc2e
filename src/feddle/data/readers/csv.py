"""Tables of images or texts: which column is which, and rows as a collection."""

import csv
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from feddle.core.errors import FeddleError, did_you_mean
from feddle.data.collection import NOBODY, Collection, Inputs, Labelled, Part, Texts, divided, ranks
from feddle.data.pictures import Files, require_pillow
from feddle.data.source import Unusable, find_file, find_folder
from feddle.options import Options, is_none

Column = Literal["text", "image", "label", "client", "split"]
_PLACES = ("hospital", "site", "institution", "centre", "center")
# Usual names of each column, in the order in which they are looked for.
USUAL: dict[Column, tuple[str, ...]] = {
    "text": ("text", "sentence"),
    "image": ("path", "image", "img", "file", "filename", "file_name"),
    "label": ("label", "class", "target", "y"),
    "client": ("client", "client_id", "user", "user_id", "writer_id", *_PLACES),
    "split": ("split",),
}
# The same for the splits; the first name is what a split is called here.
SPLITS = (("train", "training"), ("test", "val", "valid", "validation"), ("server",))


def find_splits(present: Container[str]) -> dict[str, str]:
    """The splits that are present, each with the name that it has there."""
    found = {usual[0]: next((name for name in usual if name in present), None) for usual in SPLITS}
    return {split: name for split, name in found.items() if name is not None}


class Columns(Options):
    """Names of the columns of a CSV file or a Hugging Face dataset; by default one of the usual names."""

    image: str | None = Field(None, description="column of the image or its path; usually `path` or `image`")
    text: str | None = Field(
        None,
        exclude_if=is_none,
        description="column of the text, if the data is text; usually `text`; an image column takes precedence",
    )
    label: str | None = Field(None, description="column of the class; usually `label`")
    client: str | None = Field(None, description="column of the client that owns the image; usually `client`; optional")
    split: str | None = Field(None, description="column with `train`, `test` or `server`; usually `split`; optional")

    def find(self, present: Sequence[str], source: str) -> dict[Column, str]:
        """The columns that were found, by role. The label and either the image or the text are required."""
        found: dict[Column, str] = {}
        for column, usual in USUAL.items():
            said: str | None = getattr(self, column)
            name = next((name for name in ((said,) if said else usual) if name in present), None)
            if name is not None:
                found[column] = name
            elif said or column == "label" or (column == "image" and "text" not in found):
                looked = repr(said) if said else " or ".join(usual)
                hint = f"{did_you_mean(said or column, present)} It has {', '.join(present) or 'none'}".lstrip()
                raise FeddleError(
                    f"{source} has no column {looked}: {hint}; set data.columns.{column} to the right one"
                )
        if "text" in found and "image" in found:
            del found["image" if self.text else "text"]
        return found


def read_csv(path: Path, columns: Columns) -> Collection:
    """A table of image files or texts and labels, with optional clients and splits; paths are relative to the table."""
    names, table = read_table(path)
    found = columns.find(names, str(path))
    values = {column: [row[names.index(name)].strip() for _, row in table] for column, name in found.items()}
    lines = [line for line, _ in table]
    given: Column = "text" if "text" in found else "image"
    for column in (given, "label"):
        for (line, _), value in zip(table, values[column], strict=True):
            if not value:
                raise FeddleError(f"{path}: line {line} has no {found[column]}; fill it in or leave the line out")
    unused = tuple(name for name in names if name not in found.values())
    if given == "text":
        return replace(labelled_rows(str(path), Texts(tuple(values["text"])), values, lines), unused=unused)
    require_pillow(str(path))
    files = Files.of(path.resolve().parent, values["image"]).require()
    return replace(labelled_rows(str(path), files, values, lines), unused=unused)


def read_image_paths(path: Path, column: str | None = None) -> Files:
    """The image files that a table names; it needs no labels. Paths are relative to the table."""
    require_pillow(str(path))
    return Files.of(path.resolve().parent, _read_column(path, "image", column)).require()


def read_texts(path: Path, column: str | None = None) -> Texts:
    """The texts of a table; it needs no labels."""
    if not path.is_file():
        raise FeddleError(f"there is no file {path}; the model is for text, so name a CSV file with a column of texts")
    return Texts(tuple(_read_column(path, "text", column)))


def _read_column(path: Path, role: Column, column: str | None) -> list[str]:
    """The values of one column of a table: `column`, or the first with a usual name for its role."""
    names, table = read_table(path)
    found = next((name for name in ((column,) if column else USUAL[role]) if name in names), None)
    if found is None:
        looked = column or " or ".join(USUAL[role])
        raise FeddleError(f"{path} has no column {looked}; it has {', '.join(names)}; rename the column of the {role}s")
    return [row[names.index(found)].strip() for _, row in table]


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
    name: str, images: Inputs, columns: Mapping[Column, Sequence[str]], lines: Sequence[int] = ()
) -> Collection:
    """Images or texts with their other columns: labels, and optionally clients and splits.

    Classes and clients are numbered in the order of their names. An empty client means that nobody owns the image.
    There must be two classes or more, and training images of each. `lines` are the lines of the rows in a file.
    """
    labels, clients = columns["label"], columns.get("client", ())
    if "" in labels:
        raise FeddleError(f"{name}: row {list(labels).index('')} (from 0) has no label; add it or leave the row out")
    numbers, classes = ranks(labels)
    owners: Tensor | None = None
    names: list[str] = []
    if any(clients):
        known = [i for i, client in enumerate(clients) if client]
        owners = torch.full((len(labels),), NOBODY)
        owners[known], names = ranks([clients[i] for i in known])
    parts = _parts(name, columns["split"]) if "split" in columns else None
    collection = divided(name, Labelled(images, numbers, owners), parts, len(classes), classes)
    if len(classes) < 2:
        raise FeddleError(f"{name} has only the class {classes[0]!r}; at least two classes are required")
    if missing := set(range(len(classes))) - set(collection.train.labels.tolist()):
        rare = classes[min(missing)]
        raise FeddleError(f"{name} has no training image of the class {rare!r}; add one, or remove the class")
    training = [i for i in range(len(labels)) if parts is None or parts[i] == Part.TRAIN]
    lost = next((i for i in training if clients and not clients[i]), None)
    where = "" if lost is None else f"line {lines[lost]}" if lines else f"row {lost} (from 0)"
    return replace(collection, client_names=names, unowned=where)


def _parts(name: str, splits: Sequence[str]) -> Tensor:
    """The `Part` of each row: without a split it is for training; validation rows replace missing test rows."""
    train, (test, *validation), (server,) = SPLITS
    known = {**dict.fromkeys((*train, ""), Part.TRAIN), test: Part.TEST, server: Part.SERVER}
    known |= dict.fromkeys(validation, Part.NOTHING if any(s.lower() == test for s in splits) else Part.TEST)
    try:
        parts = torch.tensor([known[split.lower()] for split in splits])
    except KeyError as error:
        split = error.args[0]
        raise FeddleError(f"{name} has the split {split!r}; it should be train, test or server") from error
    if not (parts == Part.TRAIN).any():
        raise FeddleError(f"{name}: no row is for training; give some the split train")
    return parts


def read_isic(place: Path) -> Collection:
    """ISIC 2019: a line of the table has a 1 for its diagnosis; a diagnosis without images (UNK) is not a class."""
    require_pillow("isic-2019")
    table = find_file(place, "ISIC_2019_Training_GroundTruth.csv")
    header, lines = read_table(table)
    rows = [row for _, row in lines]
    try:
        truth = np.array([[float(value) for value in row[1:]] for row in rows])
    except ValueError as error:
        raise Unusable(f"{table.name} should hold numbers after the image's name") from error
    if header[0] != "image" or truth.shape[1] < 2:
        raise Unusable(f"{table.name} should have a column image, then one for each diagnosis")
    named = (truth == 1).sum(axis=1)
    if not (named == 1).all():
        raise Unusable(f"{table.name} should name one diagnosis for {rows[int((named != 1).argmax())][0]}")
    used = truth.any(axis=0)
    labels = torch.from_numpy(truth[:, used].argmax(axis=1))
    inside = "ISIC_2019_Training_Input"
    folder = find_folder(place, f"{inside}/{inside}", inside)
    files = Files.of(folder.resolve(), [f"{row[0]}.jpg" for row in rows]).require()
    return divided("isic-2019", Labelled(files, labels), None, int(used.sum()))
