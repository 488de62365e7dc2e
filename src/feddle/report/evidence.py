"""Whether the test examples and the seeds support a difference between methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, lgamma, log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from feddle.core.metrics import ACCURACY, Metric
from feddle.records import HOW, ClientScores, RunRecord, finite
from feddle.report.grid import LOCAL, Cell, Grid, Panel, is_local
from feddle.report.numbers import Spread, counted, in_sentence, listed

LEVEL = 0.05  # a p-value below it supports a difference
_FEWEST_ROUNDS = 20  # of a run that may win
_FREE = (*HOW, "method", "strategy", "metrics", "device")  # keys of configs that may differ
# Student's t for a 95 % interval, by degrees of freedom from 1. The last value is also used for more degrees of
# freedom, which is conservative.
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Evidence:
    """Whether the first of two methods is shown to be better than the second; if not, the reason in words."""

    supported: bool
    words: str = ""
    tests: str = ""  # what was tested, and the results

    @property
    def reason(self) -> str:
        """The reason, with the tests."""
        return f"{self.words} ({self.tests})" if self.tests else self.words


@dataclass(frozen=True)
class Standing:
    """The methods of one setting, best first."""

    order: dict[str, Spread]  # the main metric
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
    # A client's own model has an easier task than one model for all, so `local` takes no part if there are others.
    compared = {row: cell for row, cell in cells.items() if not is_local(cell)} or cells
    order = best_first({row: spread for row, cell in compared.items() if (spread := cell.accuracy)})
    first, *others = order or [""]
    against = {row: difference(cells[first], cells[row]) for row in others}
    return Standing(order, against, _obstacle(grid, list(cells.values())))


def best_first(spreads: Mapping[str, Spread]) -> dict[str, Spread]:
    """The rows, sorted by their number as it is shown."""
    return dict(sorted(spreads.items(), key=lambda each: each[1].tenths * (-1 if each[1].metric.higher else 1)))


def obstacle(grid: Grid, panel: Panel) -> str:
    """The reason why no verdict is given for a panel with one column; empty if a verdict is possible."""
    return standing(grid, panel, 0).obstacle if len(panel.columns) == 1 else ""


def _obstacle(grid: Grid, cells: Sequence[Cell]) -> str:
    runs = [run for cell in cells for run in cell.runs]
    if grid.quick:
        return "quick runs are not results"
    if len(cells) > 1 and "title" not in grid.record and (differing := _differing(runs)):  # a table compares by design
        return f"the runs differ in {listed(differing)}"
    if len(metrics := dict.fromkeys(in_sentence(cell.metric) for cell in cells)) > 1:
        return f"the runs are measured by {listed(list(metrics))}"
    if not all(cell.is_final for cell in cells):
        return "not all runs are finished"
    rounds = [number for run in runs if (number := finite(run.config.get("rounds"))) is not None]
    shortest = min(rounds, default=_FEWEST_ROUNDS)
    return f"a run of {counted(round(shortest), 'round')} is too short" if shortest < _FEWEST_ROUNDS else ""


def _differing(runs: Sequence[RunRecord]) -> list[str]:
    """The sections of the configs that differ, except the method."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in _FREE)
    found = [str(key) for key in keys if any(run.config.get(key) != runs[0].config.get(key) for run in runs)]
    contents = {(run.seed, run.data.get("digest")) for run in runs if "digest" in run.data}
    changed = len(contents) > len({seed for seed, _ in contents})
    return [*found, *(["the content of the data"] if changed and "data" not in found else [])]


def difference(first: Cell, second: Cell) -> Evidence:
    """Compare two methods by the runs with the same seeds.

    The last models must differ on the test examples by an exact paired test, which exists for accuracy only. Several
    seeds must also have an interval of the difference that is above 0, since the test examples say nothing about the
    next seed.
    """
    others = {run.seed: run for run in second.runs}
    pairs = [(run, others[run.seed]) for run in first.runs if run.seed in others]
    votes = [found for pair in pairs if (found := _votes(*pair)) is not None]
    if on_training(first) != on_training(second):
        return Evidence(False, f"no lead is named, because {LOCAL} is measured on training examples")
    if not pairs or (len(pairs) == 1 and not votes):
        return Evidence(False, f"no lead is named, because {_lack(pairs, first.metric)}")
    said = []
    if votes:
        # The mean over seeds, not the sum: the seeds share test examples, so these are not new evidence.
        more, less, tests = (round(fmean(counts)) for counts in zip(*votes, strict=True))
        examples, p = f"{tests:,} test examples", exact_p(more, less)
        if p >= LEVEL or more < less:
            return Evidence(False, f"no difference that {examples} can show", f"exact paired test: {p_words(p)}")
        said.append(f"exact paired test of the last models on {examples}: {p_words(p)}")
    if len(pairs) > 1:
        above, ends = _over_seeds(pairs, first.metric)
        seeds = f"95 % interval of the difference over {len(pairs)} seeds: {ends}"
        if not above:
            return Evidence(False, f"no difference that {len(pairs)} seeds can show", seeds)
        said.append(seeds)
    return Evidence(True, tests="; ".join(said))


def on_training(cell: Cell) -> bool:
    """Whether the number of a method is measured on training examples, as for `local` without classes."""
    alone = [clients for run in cell.runs if run.method == LOCAL and (clients := run.result.get("clients"))]
    return any(clients["measured_on"] == "train" for clients in alone)


def _lack(pairs: Sequence[tuple[RunRecord, RunRecord]], metric: Metric) -> str:
    """What is missing to compare two methods."""
    if not pairs:
        return "the runs have no seed in common"
    if metric != ACCURACY:
        return f"one seed cannot show a difference of {in_sentence(metric)}"
    if any(run.method == LOCAL for pair in pairs for run in pair):
        return "the data does not say which client a test example belongs to"
    return "it is not recorded which test examples are predicted correctly"


def _votes(first: RunRecord, second: RunRecord) -> tuple[int, int, int] | None:
    """How many test examples only the first predicts correctly, only the second, and all; None if unknown.

    If every client has its own model (`local`), these are the test examples of the clients that both runs measured.
    """
    one, other, tests = first.correct, second.correct, first.data.get("test")
    if not have_same_tests(first, second):
        return None
    if one is not None and other is not None and tests is not None:
        return (*only(one, other), tests)
    ours, theirs = (right_by_client(run.result.get("clients")) for run in (first, second))
    shared = [client for client in ours if client in theirs]
    if not shared:
        return None
    more, less = zip(*(only(ours[client].bits, theirs[client].bits) for client in shared), strict=True)
    return sum(more), sum(less), sum(ours[client].tests for client in shared)


def have_same_tests(first: RunRecord, second: RunRecord) -> bool:
    """Whether two runs have the same test examples, as far as is known."""
    same = (first.data.get(key) == second.data.get(key) for key in ("test", "digest"))
    return first.seed == second.seed and all(same)


def only(one: int, other: int) -> tuple[int, int]:
    """How many bits are set only in `one`, and how many only in `other`."""
    return (one & ~other).bit_count(), (other & ~one).bit_count()


class Right(NamedTuple):
    """Which of a client's own test examples are predicted correctly, as one bit each, and their number."""

    bits: int
    tests: int


def right_by_client(clients: ClientScores | None) -> dict[int, Right]:
    """Which of each client's own test examples are predicted correctly; empty if unknown."""
    if clients is None:
        return {}
    rows = zip(clients["clients"], clients.get("correct", []), clients["tested"], strict=False)
    return {client: Right(int(bits, 16), tests) for client, bits, tests in rows}


def exact_p(more: int, less: int) -> float:
    """McNemar's exact test, two-sided: the p-value if two models disagree on `more` + `less` examples."""
    total, least, tail = more + less, min(more, less), 0.0
    term = exp(lgamma(total + 1) - lgamma(least + 1) - lgamma(total - least + 1) - total * log(2))
    for k in range(least, -1, -1):  # term: the probability of k of `total` coins; it soon becomes 0
        tail += term
        term *= k / (total - k + 1)
        if not term:
            break
    return min(1.0, 2 * tail)


def _over_seeds(pairs: Sequence[tuple[RunRecord, RunRecord]], metric: Metric) -> tuple[bool, str]:
    """Whether the first is better by the 95 % interval of the difference (Student's t), and the interval."""
    scale = (100 if metric.share else 1) * (1 if metric.higher else -1)
    scores = [(one.score, other.score) for one, other in pairs]
    values = [scale * (a - b) for a, b in scores if a is not None and b is not None]
    if len(values) < 2:
        return False, "unknown"
    low, high = interval_over_seeds(values)
    shown = f"{max(low, -100):.1f} to {min(high, 100):.1f} points" if metric.share else f"{low:.3g} to {high:.3g}"
    return low > 0, shown.replace("-", "−")


def interval_over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval (Student's t) of the mean of two or more values."""
    half = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1] * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def p_words(p: float) -> str:
    """A p-value for readers."""
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
