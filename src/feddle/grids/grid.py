"""Read the YAML file of a table: the cells that it has, and the number that the paper prints for each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from feddle.core.errors import FeddleError, did_you_mean
from feddle.core.importing import is_import_path
from feddle.reading import read_mapping
from feddle.records import GRID
from feddle.run.load import with_value

Value = str | float
_HERE = files("feddle.grids")


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a run for each seed."""

    name: str  # such as cnn/fashion-mnist/dir0.1/sigma20/feddle-id
    key: Mapping[str, Value]  # its value on each axis
    tree: Mapping[str, Any]  # its config, without seed and out-of-domain data
    server: str  # data at the server: `own` (the clients' task), `outside` or `none`
    outside: tuple[str, ...]  # out-of-domain data sets that may guide it, the paper's first; empty if in-domain
    waits: float | None  # σ of the delays that a synchronous server waits for; None if it does not wait
    paper: tuple[float, float] | None  # mean and standard deviation in the paper, in per cent


@dataclass(frozen=True)
class Grid:
    """A table or figure: its axes, the last of which gives the rows, and its cells."""

    name: str
    quick: bool  # a small network and short runs, which give no results
    title: str
    note: str
    axes: Mapping[str, tuple[Value, ...]]
    figure: tuple[str, ...]  # fields of the history to draw besides accuracy
    cells: tuple[Cell, ...]


def names() -> list[str]:
    """The names of all tables and figures."""
    found = [item.name.removesuffix(".yaml") for item in (_HERE / "tables").iterdir() if item.name.endswith(".yaml")]
    return sorted(set(found) - {"parts"}, key=lambda name: (not name.startswith("results-"), name))


def load_grid(name: str, *, quick: bool = False, own: Sequence[str] = ()) -> Grid:
    """The grid of a table. With `quick` its network is small and its runs are short.

    `own` are the import paths of methods, each of which becomes one more row.
    """
    if name not in names():
        hint = did_you_mean(name, names(), "`feddle reproduce --list` shows all tables")
        raise FeddleError(f"unknown table {name!r}; {hint}")
    table = _read(f"tables/{name}.yaml")
    axes = {axis: tuple(values) for axis, values in table["axes"].items()}
    last = next(reversed(axes))
    if own and last != "method":
        raise FeddleError(f"--methods: the rows of {name} are not methods, so {own[0]} cannot be added to them")
    axes[last] += tuple(own)
    keys = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    cells: dict[str, Cell] = {}
    for whole in keys:
        along = {last, *table.get("once", {}).get(whole[last], axes)}
        key = {axis: value for axis, value in whole.items() if axis in along}
        cell = _cell(table, name, whole, key, quick=quick)
        cells.setdefault(cell.name, cell)
    note, figure = table.get("note", ""), tuple(table.get("figure", ()))
    return Grid(name, quick, table["title"], note, axes, figure, tuple(cells.values()))


def own_rows(out: Path) -> list[str]:
    """The import paths that were added as rows to the grid in a folder, if there is one."""
    rows = read_mapping(out / GRID).get("axes", {}).get("method", [])
    return [row["value"] for row in rows if is_import_path(row["value"])]


def chosen(grid: Grid, patterns: Sequence[str], rows: Sequence[str]) -> list[Cell]:
    """The cells that match one of the patterns and are in one of `rows`; no patterns or rows match all.

    If no row has a name in `rows`, it selects the rows that start with it and a hyphen: feddle selects feddle-id.
    """
    last = next(reversed(list(grid.axes)))
    known, every = list(map(str, grid.axes[last])), [cell.name for cell in grid.cells]
    meant = {row: [row] if row in known else [each for each in known if each.startswith(f"{row}-")] for row in rows}
    if unknown := [row for row, found in meant.items() if not found]:
        raise FeddleError(f"--methods: {grid.name} has no row {min(unknown)!r}; its rows are {', '.join(known)}")
    rows = [each for found in meant.values() for each in found]
    picked = {name for pattern in patterns for name in _picked(every, pattern)} if patterns else every
    found = [cell for cell in grid.cells if cell.name in picked and str(cell.key[last]) in (rows or known)]
    if not found:
        raise FeddleError(
            f"no cell of {grid.name} matches {', '.join(patterns)}; "
            f"`feddle reproduce {grid.name} --list` lists the names, such as {grid.cells[0].name}"
        )
    return found


def _picked(cells: Sequence[str], pattern: str) -> list[str]:
    """The names that have the pattern as whole parts between slashes; if there are none, those that contain it."""
    whole = [name for name in cells if f"/{pattern.strip('/')}/" in f"/{name}/"]  # cifar10 does not match cifar100
    return whole or [name for name in cells if pattern in name]


def words(axis: str, value: Value) -> str:
    """A value for readers, such as Dir(0.1) or σ = 20."""
    parts = _read("tables/parts.yaml")
    number = parts["numbers"].get(axis)
    if number is None:
        return str(parts["titles"].get(value, value))
    if value == 0 and "zero" in number:
        return str(number["zero"])
    return str(number["words"].format(value, percent=100 * float(value)))


def glossary(grid: Grid) -> dict[str, str]:
    """The meaning of the numbers in the names of cells, in words."""
    parts = _read("tables/parts.yaml")
    pairs = [(axis, value) for axis, values in grid.axes.items() if axis in parts["numbers"] for value in values]
    return {_short(parts, axis, value): words(axis, value) for axis, value in pairs}


def _cell(table: Mapping[str, Any], name: str, whole: dict[str, Value], key: dict[str, Value], *, quick: bool) -> Cell:
    parts = _read("tables/parts.yaml")
    setting = {**table.get("fixed", {}), **whole}
    tree = dict(parts["base"])
    for axis in sorted(setting, key="components".__eq__):  # they change options of a method
        tree = _merged(tree, _part(parts, axis, setting[axis]))
    tree = _merged(tree, table.get("config", {}))
    candidates, server, waits = (tree.pop(word, None) for word in ("outside", "server", "waits"))
    if quick:
        shorter = parts["quick"]["rounds"] / tree["rounds"]
        tree = _merged(tree, parts["quick"])
        tree = with_value(tree, ["delays", "sigma"], round(shorter * tree["delays"]["sigma"], 3))
    sigma = float(tree["delays"]["sigma"])
    if waits:
        tree = with_value(tree, ["delays", "sigma"], 0)
    return Cell(
        name="/".join(_short(parts, axis, value) for axis, value in key.items()),
        key=key,
        tree=tree,
        server=server or "own",
        outside=tuple(candidates or ()) if server == "outside" else (),
        waits=sigma if waits else None,
        paper=_paper(name, key),
    )


def _part(parts: Mapping[str, Any], axis: str, value: Value) -> dict[str, Any]:
    """A value of an axis as a part of a config."""
    if is_import_path(value):
        return {"method": {"name": value}}
    if axis not in parts["numbers"]:
        return dict(parts[axis][value])
    return with_value({}, parts["numbers"][axis]["key"].split("."), value)


def _short(parts: Mapping[str, Any], axis: str, value: Value) -> str:
    number = parts["numbers"].get(axis)
    return str(value).replace(":", ".") if number is None else f"{number['short']}{value:g}"


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two config trees merged; the second wins. A section with another `name` is replaced as a whole."""
    merged = dict(first)
    for key, value in second.items():
        old: Any = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        another = both and "name" in old and "name" in value and old["name"] != value["name"]
        merged[key] = _merged(old, value) if both and not another else value
    return merged


def _paper(table: str, key: Mapping[str, Value]) -> tuple[float, float] | None:
    """The mean and standard deviation that the paper prints for a cell."""
    for row in paper()["accuracy"]:
        if {k: v for k, v in row.items() if k not in ("mean", "std")} == {"table": table, **key}:
            return row["mean"], row["std"]
    return None


@cache
def paper() -> dict[str, Any]:
    """The paper's numbers."""
    numbers: dict[str, Any] = json.loads((_HERE / "paper.json").read_text(encoding="utf-8"))
    return numbers


@cache
def _read(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((_HERE / name).read_text(encoding="utf-8"))
    return tree
