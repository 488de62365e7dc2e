"""Whether the results of a grid belong together, and to its title."""

from collections.abc import Sequence

from feddle.report.grids import CellRecord, GridRecord, SeedRun
from feddle.report.words import shortlist

Runs = Sequence[tuple[CellRecord, SeedRun]]


def warnings(grid: GridRecord) -> list[str]:
    """Why results of this grid may not belong together, or not to its title."""
    runs = [(cell, run) for cell in grid.cells for run in cell.runs]
    return [*_setting(runs), *_makers(runs), *_contents(runs), *_seeds(grid)]


def _setting(runs: Runs) -> list[str]:
    found = []
    if changed := list(dict.fromkeys(text for cell, _ in runs for text in cell.changed)):
        found.append(f"Not the table’s own setting, whatever its heads say: run with {', '.join(changed)}.")
    if other := [cell.name for cell, run in runs if cell.differs(run)]:
        found.append(f"Made with another config than the grid’s last command asks for: {shortlist(_some(other))}.")
    if unknown := [cell.name for cell, run in runs if not run.made and not run.summary.status]:
        found.append(
            f"Without a record of config and data, so perhaps of another setting: {shortlist(_some(unknown))}."
        )
    return found


def _makers(runs: Runs) -> list[str]:
    found = []
    for package in ("feddle", "torch"):
        versions = list(dict.fromkeys(str(v) for _, run in runs if (v := run.record.result.get(package))))
        if len(versions) > 1:
            found.append(f"The results were made with different versions of {package}: {shortlist(versions)}.")
    sources = list(dict.fromkeys(source for _, run in runs for source in run.sources))
    if len(sources) > 1:
        found.append(f"The results were made by different states of feddle’s source: {shortlist(_some(sources))}.")
    return found


def _contents(runs: Runs) -> list[str]:
    found = []
    hashes: dict[str, set[str]] = {}
    for _, run in runs:
        for name, value in dict(run.made.get("data") or {}).items():
            hashes.setdefault(name, set()).add(value)
    if differing := [name for name, values in hashes.items() if len(values) > 1]:
        found.append(f"Made with different contents of the data set {shortlist(differing)}.")
    if len({run.made["model"] for _, run in runs if run.made.get("model")}) > 1:
        found.append("Made with different contents of the model’s folder.")
    return found


def _seeds(grid: GridRecord) -> list[str]:
    seeds = {frozenset(run.seed for run in cell.runs) for cell in grid.cells if cell.runs}
    return ["The cells do not all have the same seeds."] if len(seeds) > 1 else []


def _some(names: Sequence[str], most: int = 4) -> list[str]:
    names = list(dict.fromkeys(names))
    return names if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
