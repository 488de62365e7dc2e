"""Warnings about a grid: refused updates, and results that may not be comparable or do not have its setting."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from feddle.core.metrics import ACCURACY
from feddle.records import RunRecord
from feddle.report.grid import Cell, Grid
from feddle.report.numbers import binomial_interval, counted, listed
from feddle.report.setting import packages, refusals, refused

_MOST = 5  # names in a list
_DIVERGED = "Training diverges at these clients: lower training.lr."
_ADVICE = {
    "too long": (
        "The norm of such an update exceeds checks.max_norm_ratio times the usual norm: the highest median norm of"
        " recent updates, or the norm of the initial model until 20 have arrived. If these clients are honest, raise"
        " checks.max_norm_ratio, or set it to null."
    ),
    "not a number": _DIVERGED,
    "infinite": _DIVERGED,
}
_OTHER_ADVICE = "Check that these clients run the same model and the same version of feddle as the server."


def warnings(grid: Grid) -> list[str]:
    """All warnings about a grid."""
    return [
        *_lost_rounds(grid),
        *_refusals(grid),
        *_chance(grid),
        *_rising(grid),
        *_setting(grid),
        *_makers(grid.runs),
        *_contents(grid.runs),
        *_seeds(grid),
    ]


def _lost_rounds(grid: Grid) -> list[str]:
    """The finished runs whose history has fewer rounds than their result says."""
    found = []
    for cell in grid.cells:
        for run in cell.runs:
            kept = len({line["round"] for line in run.history if line["round"] > 0})
            expected = run.result.get("rounds", 0)
            if not run.status and kept < expected:
                what = f"history.jsonl has {kept} of {counted(expected, 'round')} that result.json says"
                found.append(f"{cell.name}, seed {run.seed}: {what}, so curves and costs are incomplete.")
    return found


def _refusals(grid: Grid) -> list[str]:
    """For each reason: how many updates were refused, of which rows, from which clients, and what to do."""
    counts = [(cell.name, refused(run)) for cell in grid.cells for run in cell.runs]
    several = len({run.seed for run in grid.runs}) > 1  # then a number is not one client
    found = []
    for reason in dict.fromkeys(reason for _, each in counts for reason in each):
        total = sum(each[reason] for _, each in counts)
        rows = listed([name for name, each in counts if each[reason]], _MOST)
        clients = Counter(
            f"client {each['client']}" + (f" of seed {run.seed}" if several else "")
            for run in grid.runs
            for each in refusals(run)
            if each["reason"] == reason
        )
        names = [f"{name} ({count})" for name, count in clients.most_common()]
        origin = f", from {counted(len(names), 'client')}: {listed(names, _MOST)}" if names else ""
        what = f"The server refused {counted(total, 'update')} of {rows}{origin}. Reason: {reason}."
        found.append(f"{what} {_ADVICE.get(reason, _OTHER_ADVICE)}")
    return found


def _chance(grid: Grid) -> list[str]:
    """The rows whose last models may all be as good as a guess, by the interval for the number of test examples."""
    cells = [cell for cell in grid.cells if cell.runs and all(map(_may_be_a_guess, cell.runs))]
    names = listed([cell.name for cell in cells] or [""], _MOST)
    return [f"Not shown to be better than always guessing the most frequent class: {names}."] if cells else []


def _may_be_a_guess(run: RunRecord) -> bool:
    last, guess, tests = run.last_score, run.data.get("guess"), run.data.get("test")
    if run.metric != ACCURACY or last is None or guess is None or not tests:
        return False
    return binomial_interval(100 * last, tests)[0] < 100 * guess


def _rising(grid: Grid) -> list[str]:
    """The methods that were still improving when they ended. A table of the paper has the paper's number of rounds."""
    final = [cell for cell in grid.cells if cell.is_final and "title" not in grid.record]
    gains = {cell.name: gain for cell in final if (gain := _last_gain(cell))}
    names = listed([f"{name} ({gain})" for name, gain in gains.items()] or [""], _MOST)
    return [f"Still improving at the last evaluation; use more rounds: {names}."] if gains else []


def _last_gain(cell: Cell) -> str:
    """The gain over the last five evaluations in words, if the main metric still rose; else empty.

    It did if the last value is the best, at least nine of the ten pairs of values are in rising order (by chance: 4 %),
    and the gain is more than one point, or 1 % if the metric is not a share.
    """
    points, metric = [value for _, value in cell.curve()[0]][-5:], cell.metric
    rising = sum(metric.better(later, earlier) for earlier, later in combinations(points, 2))
    if len(points) < 5 or rising < 9 or points[-1] != metric.best(points):
        return ""
    gain = abs(points[-1] - points[0])
    if gain <= (1 if metric.share else abs(points[0]) / 100):
        return ""
    change = f"{gain:.1f} points" if metric.share else f"{gain:.3g}"
    return f"{'+' if metric.higher else '−'}{change} in the last five evaluations"


def _setting(grid: Grid) -> list[str]:
    cells = [cell for cell in grid.cells if cell.runs]
    found = []
    if grid.changed:
        overrides = ", ".join(grid.changed)
        found.append(f"Not the setting of the table, even where its headings say so: run with {overrides}.")
    if other := [cell.name for cell in cells if cell.has_other_config]:
        found.append(f"Run with another config than the one in the grid: {listed(other, _MOST)}.")
    tables = [cell for cell in cells if "config" in cell.entry]  # single runs have no record
    if unknown := [cell.name for cell in tables if any("data" not in run.made and not run.status for run in cell.runs)]:
        found.append(f"Without a record of config and data, so the setting is unknown: {listed(unknown, _MOST)}.")
    return found


def sources(run: RunRecord) -> list[str]:
    """The states of feddle's code that computed a run of a grid, each as the start of its hash."""
    found = [source[:12] for source in str(run.made.get("source", "")).split()]
    return found or (["unknown"] if run.made else [])


def _makers(runs: Sequence[RunRecord]) -> list[str]:
    made = {f"versions of {package}": found for package, found in packages(runs).items()}
    made["states of feddle’s source"] = [source for run in runs for source in sources(run)]
    differing = {what: listed(found, _MOST) for what, found in made.items() if len(set(found)) > 1}
    return [f"The results were computed with different {what}: {found}." for what, found in differing.items()]


def _contents(runs: Sequence[RunRecord]) -> list[str]:
    contents = [run.made.get("data", {}) for run in runs]
    names = dict.fromkeys(name for found in contents for name in found)
    differing = [name for name in names if len({str(found[name]) for found in contents if name in found}) > 1]
    return [f"Run with different contents of {listed(differing)}."] if differing else []


def _seeds(grid: Grid) -> list[str]:
    seeds = {tuple(sorted(run.seed for run in cell.runs)) for cell in grid.cells if cell.runs}
    return ["The results do not all have the same seeds."] if len(seeds) > 1 else []
