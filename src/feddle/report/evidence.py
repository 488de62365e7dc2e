"""Whether the test images and the seeds support a difference between methods."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, lgamma, log, sqrt
from statistics import fmean, stdev

from feddle.records import RunRecord, finite
from feddle.report.grid import HOW, Cell, Grid, Panel
from feddle.report.numbers import listed

_LEVEL = 0.05  # a p-value below it supports a difference
_FEWEST_ROUNDS = 20  # of a run that may win
# Student's t for an interval of 95 %, by degrees of freedom from 1; the last one is used for more, which is careful.
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Evidence:
    """Whether the first of two methods is better than the second; if it is not shown to be, the reason in words."""

    supported: bool
    words: str = ""
    tests: str = ""  # what was tested, and the results

    @property
    def told(self) -> str:
        """The reason, with the tests."""
        return f"{self.words} ({self.tests})" if self.tests else self.words


@dataclass(frozen=True)
class Standing:
    """The methods of one setting, best first."""

    order: dict[str, float]  # accuracy in per cent, as it is shown
    against: dict[str, Evidence] = field(default_factory=dict)  # the first method compared with each other one
    obstacle: str = ""  # why no winner is named, whatever the numbers are

    @property
    def level(self) -> list[str]:
        """The first method, and those that it is not shown to be better than."""
        return [row for row in self.order if row not in self.against or not self.against[row].supported]

    @property
    def winner(self) -> str | None:
        """The method that is better than all others; None if there is none."""
        return self.level[0] if len(self.order) > 1 and len(self.level) == 1 and not self.obstacle else None


def standing(grid: Grid, panel: Panel, column: int) -> Standing:
    """The methods of a column, and whether the first one leads."""
    cells = {row: cell for row, cell in panel.column(column).items() if cell.accuracy}
    order = {row: spread.tenths for row, cell in cells.items() if (spread := cell.accuracy)}
    order = dict(sorted(order.items(), key=lambda each: each[1], reverse=True))
    first, *others = order or [""]
    against = {row: difference(cells[first], cells[row]) for row in others}
    return Standing(order, against, _obstacle(grid, list(cells.values())))


def _obstacle(grid: Grid, cells: Sequence[Cell]) -> str:
    runs = [run for cell in cells for run in cell.runs]
    if grid.quick:
        return "quick runs are not results"
    if len(cells) > 1 and "title" not in grid.record and (differing := _differing(runs)):  # a table compares by design
        return f"the runs differ in {listed(differing)}"
    if not all(cell.is_final for cell in cells):
        return "not all runs are finished"
    rounds = [number for run in runs if (number := finite(run.config.get("rounds"))) is not None]
    shortest = min(rounds, default=_FEWEST_ROUNDS)
    return f"a run of {shortest:g} rounds is too short" if shortest < _FEWEST_ROUNDS else ""


def _differing(runs: Sequence[RunRecord]) -> list[str]:
    """The sections of the configs that differ, except the method."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in (*HOW, "method", "device"))
    found = [str(key) for key in keys if any(run.config.get(key) != runs[0].config.get(key) for run in runs)]
    contents = {(str(run.config.get("seed")), run.data.get("digest")) for run in runs if "digest" in run.data}
    changed = len(contents) > len({seed for seed, _ in contents})
    return [*found, *(["the content of the data"] if changed and "data" not in found else [])]


def difference(first: Cell, second: Cell) -> Evidence:
    """Compare two methods by the runs with the same seeds.

    The last models must differ on the test images by an exact paired test. Several seeds must also have an interval of
    the difference that is above 0, since the test images say nothing about the next seed.
    """
    others = {str(run.config.get("seed")): run for run in second.runs}
    pairs = [(run, others[seed]) for run in first.runs if (seed := str(run.config.get("seed"))) in others]
    votes = [found for pair in pairs if (found := _votes(*pair)) is not None]
    if not pairs or (len(pairs) == 1 and not votes):
        why = "the runs have no seed in common" if not pairs else "it is not recorded which test images are right"
        return Evidence(False, f"no lead is named, because {why}")
    said = []
    if votes:
        # The mean over seeds, not the sum: the seeds share test images, so these are not new evidence.
        more, less, tests = (round(fmean(counts)) for counts in zip(*votes, strict=True))
        p, images = exact_p(more, less), f"{tests:,} test images"
        said.append(f"exact paired test of the last models on {images}: p = {p:.2g}")
        if p >= _LEVEL or more < less:
            return Evidence(False, f"no difference that {images} can show", said[0])
    if len(pairs) > 1:
        scores = [(one.accuracy, other.accuracy) for one, other in pairs]
        low, high = _interval([100 * (a - b) for a, b in scores if a is not None and b is not None])
        ends = f"{low:.1f} to {high:.1f} points".replace("-", "−")
        seeds = f"95 % interval of the difference over {len(pairs)} seeds: {ends}"
        if low <= 0:
            return Evidence(False, f"no difference that {len(pairs)} seeds can show", seeds)
        said.append(seeds)
    return Evidence(True, tests="; ".join(said))


def _votes(first: RunRecord, second: RunRecord) -> tuple[int, int, int] | None:
    """How many test images only the first has right, only the second, and how many there are; None if unknown."""
    one, other, tests = first.correct, second.correct, first.data.get("test")
    same = all(first.data.get(key) == second.data.get(key) for key in ("test", "digest"))
    if one is None or other is None or tests is None or not same:
        return None
    return (one & ~other).bit_count(), (other & ~one).bit_count(), tests


def exact_p(more: int, less: int) -> float:
    """McNemar's exact test, two-sided: the p-value if two models disagree on `more` + `less` images."""
    total, least, tail = more + less, min(more, less), 0.0
    term = exp(lgamma(total + 1) - lgamma(least + 1) - lgamma(total - least + 1) - total * log(2))
    for k in range(least, -1, -1):  # term: the probability of k of `total` coins; it soon becomes 0
        tail += term
        term *= k / (total - k + 1)
        if not term:
            break
    return min(1.0, 2 * tail)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval of 95 % of a mean of differences in points, by Student's t."""
    if len(values) < 2:
        return -100.0, 100.0
    half = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1] * stdev(values) / sqrt(len(values))
    return max(fmean(values) - half, -100.0), min(fmean(values) + half, 100.0)
