"""Grids of runs: a table that `feddle reproduce` filled, or single runs, compared by method."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from feddle.core.errors import FeddleError
from feddle.core.metrics import ACCURACY, MAIN, Metric
from feddle.reading import read_grid_record, read_run
from feddle.records import CONFIG, GRID, HOW, CellEntry, GridRecord, RunRecord, finite
from feddle.report.numbers import Spread, binomial_interval, listed, mean_of, spread_of

CENTER = "center"
LOCAL = "local"  # the method in which every client trains alone
PANEL_AXES = ("model", "dataset")  # each of their values has its own tables
_KEYS = {  # config keys of columns
    "dirichlet": ("data", "partition", "alpha"),
    "delay_sigma": ("delays", "sigma"),
    "label_noise": ("data", "label_noise"),
}


@dataclass(frozen=True)
class Cell:
    """One method in one setting, with a run for each seed."""

    name: str
    entry: CellEntry
    runs: Sequence[RunRecord]

    def spread(self, number: str) -> Spread | None:
        """A number of its runs: score, last_score, worst_tenth, seconds, negative_share, bytes_up or bytes_down."""
        return spread_of([getattr(run, number) for run in self.runs if run.metric == self.metric], self.metric)

    @property
    def metric(self) -> Metric:
        """The main metric of its runs."""
        return self.runs[0].metric if self.runs else ACCURACY

    @property
    def accuracy(self) -> Spread | None:
        """The main metric on test data by the paper's rule; accuracy unless the run predicts labels or numbers."""
        return self.spread("score")

    @property
    def is_final(self) -> bool:
        """Whether all of its runs are finished."""
        return bool(self.runs) and not any(run.status for run in self.runs)

    @property
    def has_own_data(self) -> bool:
        """Whether the server holds in-domain data. The paper compares such methods with each other."""
        return self.entry.get("server") == "own"

    @property
    def has_other_config(self) -> bool:
        """Whether a run has another config than the record of the grid."""
        configs = [run.made["config"] for run in self.runs if "config" in run.made]
        return any(config != self.entry.get("config") for config in configs)

    def curve(self, field: str | None = None) -> tuple[list[tuple[int, float]], list[tuple[int, float, float]]]:
        """The mean over seeds in the rounds that all seeds have, and the range of the seeds. Shares are in per cent.

        By default, `field` is the main metric. With a single seed, the range is that of its clients, if the field has
        one. For accuracy, it is the 95 % interval for the number of test examples.
        """
        field = field or self.metric.name
        curves = [_values(run, field, "mean") for run in self.runs]
        shared = sorted(set.intersection(*map(set, curves))) if curves else []
        values = {at: [curve[at] for curve in curves] for at in shared}
        band = [(at, min(found), max(found)) for at, found in values.items()]
        if len(curves) == 1:
            low, high = (_values(self.runs[0], field, end) for end in ("min", "max"))
            band = [(at, low[at], high[at]) for at in low if at in high] if low != high else []
            if field == "accuracy" and (tests := self.runs[0].data.get("test")):
                band = [(at, *binomial_interval(found, tests)) for at, (found,) in values.items()]
        return [(at, fmean(found)) for at, found in values.items()], band


NO_CELL = Cell("", {"key": {}}, ())


def _values(run: RunRecord, field: str, part: str) -> dict[int, float]:
    """A field of the history by round: one part of a mapping, or the first number of a list."""
    found, factor = {}, 100 if any(metric.share and metric.name == field for metric in MAIN) else 1
    for line in run.history:
        value: Any = line.get(field)
        value = value.get(part) if isinstance(value, dict) else value
        number = finite(value[0] if isinstance(value, list) and value else value)
        if number is not None:
            found[line["round"]] = round(factor * number, 6)
    return found


@dataclass(frozen=True)
class Panel:
    """The cells with one model and data set, by row and column. A cell without a column belongs to all columns."""

    title: str
    rows: Mapping[str, str]  # row names for readers
    columns: Sequence[Mapping[str, Any]]
    heads: Sequence[str]  # column names for readers
    cells: Mapping[tuple[str, int | None], Cell]
    axis: str = "method"  # of the rows

    def at(self, row: str, column: int) -> Cell:
        """The cell in a row and column, or the one that belongs to all columns; without runs if there is none."""
        return self.cells.get((row, column), self.cells.get((row, None), NO_CELL))

    def column(self, column: int) -> dict[str, Cell]:
        """The cells of a column by row."""
        return {row: self.at(row, column) for row in self.rows}

    def guess(self, column: int) -> float | None:
        """The accuracy of always guessing the most frequent class, in per cent; None if it is unknown."""
        runs = [run for cell in self.column(column).values() for run in cell.runs]
        share = mean_of([run.data.get("guess") for run in runs if run.metric == ACCURACY])
        return None if share is None else 100 * share

    @property
    def runs(self) -> list[RunRecord]:
        """All runs of its cells."""
        return [run for cell in self.cells.values() for run in cell.runs]

    @property
    def metric(self) -> Metric:
        """The main metric of its first run."""
        return next((run.metric for run in self.runs), ACCURACY)


def is_simulation(run: RunRecord) -> bool:
    """Whether the run was started from Python with `simulate`."""
    return "simulation" in run.config


def is_local(cell: Cell) -> bool:
    """Whether its clients train alone, so that the server has no rounds."""
    return bool(cell.runs) and all(run.method == LOCAL for run in cell.runs)


@dataclass(frozen=True)
class Grid:
    """A grid and its runs."""

    folder: Path
    record: GridRecord
    panels: Sequence[Panel]
    cells: Sequence[Cell]
    commands: Sequence[tuple[str, str]]  # a label and the command that repeats it

    @property
    def quick(self) -> bool:
        """Whether its runs are small and short, so that they are not results."""
        return bool(self.record.get("quick"))

    @property
    def runs(self) -> list[RunRecord]:
        """All runs of its cells."""
        return [run for cell in self.cells for run in cell.runs]

    @property
    def changed(self) -> list[str]:
        """The overrides of the user that its runs have."""
        return list(dict.fromkeys(text for cell in self.cells if cell.runs for text in cell.entry.get("changed") or ()))

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The names of the cells that are left out, by reason."""
        reasons = dict.fromkeys(reason for cell in self.cells if (reason := cell.entry.get("left_out")))
        return {reason: [c.name for c in self.cells if c.entry.get("left_out") == reason] for reason in reasons}


def is_grid(folder: Path) -> bool:
    """Whether a folder was written by `feddle reproduce`."""
    return (folder / GRID).is_file()


def read_grids(folders: Sequence[Path]) -> list[Grid]:
    """The grids in these folders. All single runs together form one more grid."""
    singles = [folder for folder in folders if not is_grid(folder)]
    grids = [read_grid(folder) for folder in folders if is_grid(folder)]
    return [*grids, grid_of_runs(singles)] if singles else grids


def read_grid(folder: Path) -> Grid:
    """Read a folder of `feddle reproduce`; runs may be missing or unfinished."""
    try:
        record = read_grid_record(folder)
        cells = [_read_cell(folder, name, entry) for name, entry in record["cells"].items()]
        panels = _panels(record, cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        if isinstance(error, FeddleError):
            raise
        raise FeddleError(
            f"{folder / GRID}: expected a grid of `feddle reproduce`, but {type(error).__name__} {error}; "
            "remove that file and run the command again, which keeps the runs"
        ) from error
    commands = [*record.get("asked", []), f"feddle report {shlex.quote(str(folder))}"]
    return Grid(folder, record, panels, cells, [("", command) for command in commands])


def grid_of_runs(folders: Sequence[Path]) -> Grid:
    """Single runs as a grid with one column and one row for each config, best first. Seeds of a config share a cell."""
    runs = [read_run(folder) for folder in _run_folders(folders)]
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        config = {key: value for key, value in run.config.items() if key not in HOW}
        groups.setdefault(yaml.safe_dump(config), []).append(run)
    members = list(groups.values())
    if any(len({run.seed for run in group}) < len(group) for group in members):
        members = [[run] for run in runs]  # the same run twice is not a second seed
    labels = _labels([group[0] for group in members])
    cells = [Cell(label, {"key": {"method": label}}, group) for label, group in zip(labels, members, strict=True)]
    cells.sort(key=_goodness, reverse=True)
    record: GridRecord = {"grid": "runs", "axes": {"method": [{"value": c.name, "words": c.name} for c in cells]}}
    panels = _panels(record, cells)
    commands = [(cell.name, _command(run)) for cell in cells for run in cell.runs]
    return Grid(cells[0].runs[0].folder.parent, record, panels, cells, commands)


def _command(run: RunRecord) -> str:
    """The command that repeats a run, or the call in Python."""
    if not is_simulation(run):
        return shlex.join(["feddle", "run", str(run.folder / CONFIG)])
    call = str(run.config["simulation"])
    earlier = f"feddle.simulate(model, clients, …, out={str(run.folder)!r})"  # versions that did not record the call
    return call if call.startswith("feddle.simulate(") else earlier


def _run_folders(folders: Sequence[Path]) -> list[Path]:
    """The run folders, each once. A folder of run folders is replaced by the run folders in it, sorted by name."""
    found: dict[Path, Path] = {}
    for folder in folders:
        is_run = (folder / CONFIG).is_file() or not folder.is_dir()
        inside = [folder] if is_run else sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
        if not inside:
            raise FeddleError(
                f"{folder}: expected a run folder or a folder of run folders, but found no {CONFIG} in it or one level "
                "below; name a folder of `feddle run`"
            )
        found |= {run.resolve(): run for run in inside}
    return list(found.values())


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """The method of each run, with its folder if several runs have the same method."""
    methods = [run.method for run in runs]
    labels = []
    for method, name in zip(methods, distinct_names([run.folder for run in runs]), strict=True):
        # Folders are often named after their method: `feddle (feddle-seed1)` would repeat it.
        longer = name if name.startswith(method) else f"{method} ({name})"
        labels.append(longer if methods.count(method) > 1 else method)
    return labels


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that distinguish all folders."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _read_cell(folder: Path, name: str, entry: CellEntry) -> Cell:
    place = folder / name
    if not place.resolve().is_relative_to(folder.resolve()):
        raise FeddleError(f"{folder / GRID}: the cell {name} is outside of the folder; run the command again")
    inside = sorted(place.glob(f"seed*/{CONFIG}"), key=lambda path: (len(path.parent.name), path.parent.name))
    return Cell(name, entry, [read_run(path.parent) for path in inside])


def _panels(record: GridRecord, cells: Sequence[Cell]) -> list[Panel]:
    """The cells as panels, one for each model and data set."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.entry["key"].get(axis) for axis in PANEL_AXES), []).append(cell)
    return [_panel(record, members) for members in groups.values()]


def _panel(record: GridRecord, cells: Sequence[Cell]) -> Panel:
    axes = record["axes"]
    row_axis = next(reversed(axes))
    names = {axis: {str(each["value"]): each["words"] for each in values} for axis, values in axes.items()}
    column_axes = [axis for axis in axes if axis not in (*PANEL_AXES, row_axis)]
    keys = [{axis: value for axis, value in cell.entry["key"].items() if axis in column_axes} for cell in cells]
    columns = [key for i, key in enumerate(keys) if len(key) == len(column_axes) and key not in keys[:i]] or [{}]
    heads = []
    for key in columns:
        inside = [cell for cell in cells if key.items() <= cell.entry["key"].items()]
        words = [_head(names[axis][str(value)], axis, value, inside) for axis, value in key.items()]
        heads.append(", ".join(words) or next((cell.metric.words for cell in cells if cell.runs), ACCURACY.words))
    placed = {
        (str(cell.entry["key"][row_axis]), columns.index(key) if key in columns else None): cell
        for cell, key in zip(cells, keys, strict=True)
    }
    rows = {row: words for row, words in names[row_axis].items() if any(row == at for at, _ in placed)}
    first = cells[0].entry["key"]
    title = " · ".join(names[axis][str(first[axis])] for axis in PANEL_AXES if axis in first)
    title += " (quick)" if record.get("quick") else ""
    return Panel(title, rows, columns, heads, placed, row_axis)


def _goodness(cell: Cell) -> tuple[bool, bool, float]:
    """A key that sorts cells from worst to best; those without an evaluation are first, then `local`."""
    found = cell.accuracy
    if found is None:
        return False, False, 0.0
    return True, not is_local(cell), found.mean if cell.metric.higher else -found.mean


def _head(words: str, axis: str, value: Any, cells: Sequence[Cell]) -> str:
    """The name of a column's value, and the value that its cells were run with if it differs."""
    # A server that waits for its clients has no delays; its clock counts them.
    configs = [run.config for cell in cells if cell.entry.get("waits") is None for run in cell.runs]
    found = [finite(value_in(config, _KEYS[axis])) for config in configs] if axis in _KEYS else []
    ran = list(dict.fromkeys(number for number in found if number is not None))
    return words if ran in ([], [value]) else f"{words} (run with {listed([f'{number:g}' for number in ran])})"


def value_in(config: Mapping[str, Any], keys: Sequence[str]) -> object:
    """The value inside nested sections of a config; None if it is missing."""
    value: object = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
