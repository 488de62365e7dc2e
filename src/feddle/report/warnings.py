"""Reasons why the results of a grid may not belong together, or not to its title."""

from collections.abc import Sequence

from feddle.records import RunRecord
from feddle.report.grid import Grid
from feddle.report.numbers import listed

_MOST = 4  # names in a list


def warnings(grid: Grid) -> list[str]:
    """All warnings about a grid."""
    return [*_setting(grid), *_makers(grid.runs), *_contents(grid.runs), *_seeds(grid)]


def _setting(grid: Grid) -> list[str]:
    cells = [cell for cell in grid.cells if cell.runs]
    found = []
    if changed := list(dict.fromkeys(text for cell in cells for text in cell.entry.get("changed") or ())):
        found.append(f"Not the table’s own setting, whatever its heads say: run with {', '.join(changed)}.")
    if other := [cell.name for cell in cells if any(cell.differs(run) for run in cell.runs)]:
        found.append(f"Made with another config than the grid’s: {listed(other, _MOST)}.")
    tables = [cell for cell in cells if "config" in cell.entry]  # single runs have no record
    if unknown := [cell.name for cell in tables if any(not run.made and not run.status for run in cell.runs)]:
        found.append(f"Without a record of config and data, so perhaps of another setting: {listed(unknown, _MOST)}.")
    return found


def sources(run: RunRecord) -> list[str]:
    """The states of feddle's code that made a run of a grid, each by the start of its hash."""
    found = [source[:12] for source in run.made.get("source", "").split()]
    return found or (["unknown"] if run.made else [])


def _makers(runs: Sequence[RunRecord]) -> list[str]:
    versions = {
        "versions of feddle": [run.result["feddle"] for run in runs if run.result.get("feddle")],
        "versions of torch": [run.result["torch"] for run in runs if run.result.get("torch")],
        "states of feddle’s source": [source for run in runs for source in sources(run)],
    }
    return [
        f"The results were made with different {what}: {listed(found, _MOST)}."
        for what, found in versions.items()
        if len(set(found)) > 1
    ]


def _contents(runs: Sequence[RunRecord]) -> list[str]:
    hashes: dict[str, set[str | None]] = {}
    for run in runs:
        for name, value in run.made.get("data", {}).items():
            hashes.setdefault(name, set()).add(value)
    differing = [name for name, values in hashes.items() if len(values) > 1]
    return [f"Made with different contents of {listed(differing)}."] if differing else []


def _seeds(grid: Grid) -> list[str]:
    seeds = {tuple(sorted(str(run.config.get("seed")) for run in cell.runs)) for cell in grid.cells if cell.runs}
    return ["The results do not all have the same seeds."] if len(seeds) > 1 else []
