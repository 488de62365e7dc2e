"""Image files of your own: those that a CSV file names, and those in a folder for each class."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.pictures import ENDINGS, Files, require_pillow
from feddle.data.readers.csv import SERVER, TEST, TRAIN, USUAL, Columns, labelled_rows


def read_csv(path: Path, columns: Columns) -> Collection:
    """A table of image files, their labels, and as you like their clients and splits; paths are relative to it."""
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
        raise FeddleError(f"cannot read {path} as a CSV file in UTF-8 ({error}); save it anew as one") from error
    if len(rows) < 2:
        what = "is empty" if not rows else "has a header but no rows"
        raise FeddleError(
            f"{path} {what}; it should have a line of column names (path,label,client), then one an image"
        )
    (_, header), *table = rows
    for line, row in table:
        if len(row) != len(header):
            raise FeddleError(
                f"{path}: line {line} has {len(row)} values, but the header names {len(header)} columns; "
                "put values with commas in quotes"
            )
    names = [name.strip() for name in header]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise FeddleError(f"{path} has two columns {twice[0]!r}; give each a name of its own")
    return names, table


def read_folder(path: Path, tests: Sequence[str] = TEST) -> Collection:
    """A folder of images, a folder for each class; these may be below `train`, one of `tests` and `server`."""
    require_pillow(str(path))
    root = path.resolve()
    train = next((name for name in TRAIN if (root / name).is_dir()), None)
    if train is None:
        names, labels = _class_folders(root)
        return labelled_rows(str(path), Files.of(root, names), labels, None, None)
    test = next((name for name in tests if (root / name).is_dir()), None)
    places: list[str] = []
    labels, splits = [], []
    for folder, split in ((train, "train"), (test, "test"), (SERVER, SERVER)):
        if folder is not None and (root / folder).is_dir():
            names, own = _class_folders(root / folder)
            places += [f"{folder}/{name}" for name in names]
            labels += own
            splits += [split] * len(own)
    return labelled_rows(str(path), Files.of(root, places), labels, None, splits)


def _class_folders(root: Path) -> tuple[list[str], list[str]]:
    """The image files in the folders below, relative to the root, and the name of the folder that each is in."""
    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise FeddleError(f"{root} holds no folders; it should hold one for each class, with its images")
    names: list[str] = []
    labels: list[str] = []
    for folder in folders:
        inside = sorted(_image_files(root / folder))
        if not inside:
            raise FeddleError(
                f"{root / folder} holds no images ({', '.join(ENDINGS[:3])}, …); add some, or remove the folder"
            )
        names += [f"{folder}/{name}" for name in inside]
        labels += [folder] * len(inside)
    return names, labels


def _image_files(folder: Path) -> Iterable[str]:
    """Names of image files in a folder and below it; those with a dot first are what file browsers leave behind."""
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        inside = os.path.relpath(place, folder)
        for name in files:
            if not name.startswith(".") and name.lower().endswith(ENDINGS):
                yield name if inside == "." else f"{inside}/{name}"
