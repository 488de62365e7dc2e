"""Single runs that differ in their seed alone, seen as a grid of methods."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feddle.report.grids import CellRecord, GridRecord, SeedRun, panels_of
from feddle.report.page import run_again
from feddle.report.records import Record
from feddle.report.summary import summarise

_HOW = ("seed", "workers", "checkpoint")  # what a config says of how it is run, not of what


def over_seeds(records: Sequence[Record]) -> GridRecord | None:
    """The runs grouped by what they compute; None unless some of them have several seeds."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        what = {key: value for key, value in record.config.items() if key not in _HOW}
        groups.setdefault(json.dumps(what, sort_keys=True, default=str), []).append(record)
    seeds = [[record.config.get("seed") for record in group] for group in groups.values()]
    if all(len(each) == 1 for each in seeds) or any(len(set(map(str, each))) < len(each) for each in seeds):
        return None
    cells = [_cell(label, group) for label, group in zip(_labels(groups), groups.values(), strict=True)]
    axes = {
        axis: [{"value": v, "words": v} for v in dict.fromkeys(cell.key[axis] for cell in cells)]
        for axis in ("dataset", "method")
    }
    facts: dict[str, Any] = {
        "grid": "runs",
        "title": f"{len(records)} runs over their seeds",
        "axes": axes,
        "commands": [run_again(record) for record in records],
    }
    return GridRecord(Path(), facts, "method", panels_of(axes, "method", cells), cells)


def _labels(groups: dict[str, list[Record]]) -> list[str]:
    """The method of each group; with its first folder where two groups have the same."""
    methods = [group[0].method for group in groups.values()]
    return [
        method if methods.count(method) == 1 else f"{method} ({group[0].folder.name})"
        for method, group in zip(methods, groups.values(), strict=True)
    ]


def _cell(label: str, group: Sequence[Record]) -> CellRecord:
    data = group[0].config.get("data")
    name = str(data.get("name")) if isinstance(data, dict) else "data"
    runs = [SeedRun(str(record.config.get("seed")), summarise(record), {"config": ""}) for record in group]
    return CellRecord(label, {"dataset": name, "method": label}, {"server": "own", "config": ""}, runs)
