"""Reading the folder of a grid: its cells, and the runs of each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from feddle.core.errors import FeddleError
from feddle.report.records import CONFIG, Record, accuracy_curve, finite, read_run, value_in
from feddle.report.summary import Summary, summarise

GRID = "grid.json"
CELL = "cell.json"
_KEYS = {  # where a config tells what a column's head does
    "dirichlet": ("data", "partition", "alpha"),
    "delay_sigma": ("delays", "sigma"),
    "label_noise": ("data", "label_noise"),
}
PANEL_AXES = ("model", "dataset")  # a table of its own for each of their values


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class SeedRun:
    """One run of a cell."""

    seed: str
    summary: Summary
    made: Mapping[str, Any]  # config hash, data hashes, versions

    @property
    def sources(self) -> list[str]:
        """The states of feddle's source that made it, each by the start of its hash; older records do not say."""
        if not self.made:
            return []
        found = [self.made.get("source"), *(self.made.get("resumed_by") or ())]
        return [str(source)[:12] if source else "unknown" for source in found]

    @property
    def record(self) -> Record:
        """The run folder, read."""
        return self.summary.record


@dataclass(frozen=True)
class CellRecord:
    """A cell of a grid with what has been run of it."""

    name: str
    key: Mapping[str, Any]
    facts: Mapping[str, Any]
    runs: Sequence[SeedRun]

    @property
    def accuracy(self) -> Spread | None:
        """By the paper's rule: the best of the last five evaluations."""
        return spread_of([run.summary.accuracy for run in self.runs])

    @property
    def last(self) -> Spread | None:
        """The last evaluation."""
        return spread_of([run.summary.last for run in self.runs])

    @property
    def paper(self) -> tuple[float, float] | None:
        """Mean and standard deviation in the paper, in per cent."""
        found = self.facts.get("paper")
        return (found[0], found[1]) if isinstance(found, list) and len(found) == 2 else None

    @property
    def is_final(self) -> bool:
        """Whether all of its runs have come to their end."""
        return bool(self.runs) and not any(run.summary.status for run in self.runs)

    @property
    def changed(self) -> Sequence[str]:
        """What the user set to another value than the table's."""
        return self.facts.get("changed") or ()

    @property
    def is_table_setting(self) -> bool:
        """Whether its runs are what the table says: nothing stands in, and nothing was changed."""
        return not (self.facts.get("substitute") or self.changed or any(self.differs(run) for run in self.runs))

    def differs(self, run: SeedRun) -> bool:
        """Whether a run has another config than the grid's last command asks for."""
        asked = self.facts.get("asked") or self.facts.get("config")
        return bool(run.made) and run.made.get("config") != asked

    def clock(self, run: SeedRun, at: int) -> float:
        """When a round of one of its runs ended, in rounds of a server that does not wait."""
        clock = run.made.get("clock")
        return float(clock[at - 1]) if isinstance(clock, list) and at <= len(clock) else float(at)


@dataclass(frozen=True)
class Panel:
    """The cells with one model and data set: rows by columns; a cell without a column stands in all of them."""

    title: str
    rows: Sequence[str]
    columns: Sequence[Mapping[str, Any]]
    column_words: Sequence[str]
    cells: Mapping[tuple[str, int | None], CellRecord]

    def at(self, row: str, column: int) -> CellRecord | None:
        """The cell in a place, or the one that stands in all columns."""
        return self.cells.get((row, column), self.cells.get((row, None)))


@dataclass(frozen=True)
class GridRecord:
    """The folder of a grid, read."""

    folder: Path
    facts: Mapping[str, Any]
    row_axis: str
    panels: Sequence[Panel]
    cells: Sequence[CellRecord]

    @property
    def quick(self) -> bool:
        """Whether its runs are small and short, and so no results."""
        return bool(self.facts.get("quick"))

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The names of the cells that are left out, by reason."""
        reasons: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.facts.get("left_out"):
                reasons.setdefault(str(cell.facts["left_out"]), []).append(cell.name)
        return reasons


def is_grid(folder: Path) -> bool:
    """Whether a folder is that of a grid."""
    return (folder / GRID).is_file()


def read_grid(folder: Path) -> GridRecord:
    """Read the folder that `feddle reproduce` wrote; runs may be missing or still going on."""
    try:
        facts = json.loads((folder / GRID).read_bytes())
        axes, described = facts["axes"], facts["cells"]
        row_axis = next(reversed(axes))
        cells = [_read_cell(folder, name, each) for name, each in described.items()]
        panels = panels_of(axes, row_axis, cells)
        if facts.get("quick"):
            panels = [replace(panel, title=f"{panel.title} (quick)") for panel in panels]
        return GridRecord(folder, facts, row_axis, panels, cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        if isinstance(error, FeddleError):
            raise
        raise FeddleError(
            f"{folder / GRID}: expected what `feddle reproduce` wrote, but {type(error).__name__} {error}; "
            "remove that file and run it again, which keeps the runs beside it"
        ) from error


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None, len(known))


def mean_curve(
    cell: CellRecord, key: str = "accuracy"
) -> tuple[list[tuple[int, float]], list[tuple[int, float, float]]]:
    """The mean over seeds in each round that all seeds know, and what they span; of one seed, what its clients do."""
    curves = [dict(_curve(run.record, key)) for run in cell.runs]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    values = {at: [curve[at] for curve in curves] for at in shared}
    if len(curves) == 1:
        return [(at, fmean(v)) for at, v in values.items()], _client_band(cell.runs[0].record, key)
    band = [(at, min(v), max(v)) for at, v in values.items()]
    return [(at, fmean(v)) for at, v in values.items()], band


def _client_band(record: Record, key: str) -> list[tuple[int, float, float]]:
    """What the clients of a run span, where its history says."""
    found = []
    for entry in record.history:
        value = entry.get(key)
        low, high = (finite(value.get(end)) for end in ("min", "max")) if isinstance(value, dict) else (None, None)
        if low is not None and high is not None and isinstance(entry.get("round"), int):
            found.append((entry["round"], low, high))
    return found


def _curve(record: Record, key: str) -> list[tuple[int, float]]:
    if key == "accuracy":
        return accuracy_curve(record)
    found = []
    for entry in record.history:
        value = entry.get(key)
        value = value.get("mean") if isinstance(value, dict) else value
        value = value[0] if isinstance(value, list) and value else value  # with the look before
        number = finite(value)
        if number is not None and isinstance(entry.get("round"), int):
            found.append((entry["round"], number))
    return found


def _read_cell(folder: Path, name: str, facts: Mapping[str, Any]) -> CellRecord:
    place = folder / name
    if not place.resolve().is_relative_to(folder.resolve()):
        raise FeddleError(f"{folder / GRID}: the cell {name} is outside of the grid's folder; run it again")
    inside = sorted(place.glob("seed*"), key=lambda path: (len(path.name), path.name))
    runs = [
        SeedRun(path.name.removeprefix("seed"), summarise(read_run(path)), _read_made(path / CELL))
        for path in inside
        if (path / CONFIG).is_file()
    ]
    return CellRecord(name, facts["key"], facts, runs)


def _read_made(path: Path) -> Mapping[str, Any]:
    try:
        made = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) and _is_whole(made) else {}


def _is_whole(made: Mapping[str, Any]) -> bool:
    """Whether a record is built as feddle writes it; a damaged one says nothing that could be relied on."""
    kinds = {"data": dict, "resumed_by": list, "clock": list}
    return all(isinstance(made[name], kind) for name, kind in kinds.items() if name in made)


def panels_of(axes: Mapping[str, Any], row_axis: str, cells: Sequence[CellRecord]) -> list[Panel]:
    """The cells in tables, one for each model and data set."""
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.key.get(axis) for axis in PANEL_AXES if axis != row_axis), []).append(cell)
    return [_panel(axes, row_axis, members) for members in groups.values()]


def _panel(axes: Mapping[str, Any], row_axis: str, cells: Sequence[CellRecord]) -> Panel:
    column_axes = [axis for axis in axes if axis not in (*PANEL_AXES, row_axis)]
    keys = [{axis: cell.key[axis] for axis in column_axes} for cell in cells if all(a in cell.key for a in column_axes)]
    columns = [key for i, key in enumerate(keys) if key not in keys[:i]] or [{}]
    told = {axis: {str(each["value"]): each["words"] for each in values} for axis, values in axes.items()}
    column_words = [
        ", ".join(
            _head(told[axis][str(value)], axis, value, [c for c in cells if key.items() <= c.key.items()])
            for axis, value in key.items()
        )
        or "Accuracy"
        for key in columns
    ]
    row_order = [str(each["value"]) for each in axes[row_axis]]
    placed: dict[tuple[str, int | None], CellRecord] = {}
    for cell in cells:
        key = {axis: cell.key[axis] for axis in column_axes if axis in cell.key}
        placed[str(cell.key[row_axis]), columns.index(key) if key in columns else None] = cell
    present = [row for row in row_order if any(row == at for at, _ in placed)]
    title = " · ".join(told[axis][str(cells[0].key[axis])] for axis in PANEL_AXES if axis in cells[0].key)
    return Panel(title, present, columns, column_words, placed)


def _head(words: str, axis: str, value: Any, cells: Sequence[CellRecord]) -> str:
    """A column's value in words; and what its cells were really run with, where that is another."""
    # a server that waits for its clients meets no delay, and pays for it in time
    configs = [run.record.config for cell in cells if cell.facts.get("waits") is None for run in cell.runs]
    ran = list(
        dict.fromkeys(number for each in configs if (number := finite(value_in(each, _KEYS.get(axis, ())))) is not None)
    )
    return words if ran in ([], [value]) else f"{words} (run with {' and '.join(f'{number:g}' for number in ran)})"


def row_words(grid: GridRecord, row: str) -> str:
    """A row's name as people read it."""
    for each in grid.facts["axes"][grid.row_axis]:
        if str(each["value"]) == row:
            return str(each["words"])
    return row
