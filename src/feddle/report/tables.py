"""The tables of a report, results and cost, for all output formats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from feddle.core.metrics import ACCURACY
from feddle.records import RunRecord
from feddle.report.evidence import on_training, standing
from feddle.report.grid import CENTER, NO_CELL, Cell, Grid, Panel, is_local
from feddle.report.joining import on_all_tests
from feddle.report.numbers import (
    NONE,
    Spread,
    counted,
    duration,
    listed,
    mean_of,
    megabytes,
    percent,
    signed,
    spread_text,
)
from feddle.report.setting import differences, facts, remarks

QUICK = (
    "Quick runs: a small network, few rounds, and delays shortened in proportion. They show that everything works. They"
    " do not have the paper’s setting and must not be compared with its numbers."
)
# By heading: the number of a run, how it is shown, and what it is.
# Without a function it is shown as the main metric.
_MEASURES: Mapping[str, tuple[str, Callable[[float | None], str] | None, str]] = {
    "Last": ("last_score", None, "Last: the last evaluation."),
    "Worst tenth": ("worst_tenth", None, "Worst tenth: the mean over the tenth of the clients with the worst result."),
    "Time": ("seconds", duration, ""),
    "Negative": ("negative_share", percent, "Negative: share of the coefficients below zero."),
    "MB up": ("bytes_up", megabytes, "MB: 10⁶ bytes sent by and to the clients."),
    "MB down": ("bytes_down", megabytes, ""),
}
ON_TRAINING = " on training examples"
_HEADS = {
    "dirichlet": "Dir(α): how unevenly the classes are divided between the clients; 0.1 is very uneven, 1 is less so.",
    "delay_sigma": "σ: delay of the updates in rounds, as the scale of a half-normal distribution.",
}


@dataclass(frozen=True)
class Entry:
    """One place in a table."""

    heading: str
    text: str = NONE
    best: bool = False  # bold
    above_center: bool = False  # underlined
    marks: str = ""  # † substitute, § changed by the user, ‡ not final
    paper: str = ""
    notes: Sequence[str] = ()
    span: int = 1  # columns


@dataclass(frozen=True)
class Row:
    """One row of a table; `notes` and `status` belong to its label."""

    label: str
    entries: Sequence[Entry]
    best: bool = False
    status: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """Rows under headings."""

    label: str  # heading of the row names
    headings: Sequence[str]
    rows: Sequence[Row]


def results(grid: Grid, panel: Panel, *, measures: bool = True) -> Table:
    """The accuracy of every cell. A panel with one column also has the other measures of its runs."""
    one = len(panel.columns) == 1 and measures
    shown = _shown_measures(panel) if one else []
    rows, bold = [], [leaders(grid, panel, column) for column in range(len(panel.columns))]
    for row, label in panel.rows.items():
        entries = _accuracies(panel, row, bold)
        if one:
            cell = panel.at(row, 0)
            entries += [_measure(cell.runs, head) for head in shown]
            status = next((run.status for run in cell.runs if run.status), "")
            rows.append(Row(label, entries, row in bold[0], status, _row_notes(grid, cell)))
        else:
            rows.append(Row(label, entries))
    return Table(_heading(panel), [*panel.heads, *shown], rows)


def _heading(panel: Panel) -> str:
    return panel.axis.replace("_", " ").capitalize()


def _accuracies(panel: Panel, row: str, bold: Sequence[Sequence[str]]) -> list[Entry]:
    entries = [_accuracy(panel, row, column, row in rows) for column, rows in enumerate(bold)]
    if (row, None) in panel.cells and len(entries) > 1 and len({entry.best for entry in entries}) == 1:
        return [replace(entries[0], heading="all settings", span=len(entries))]
    return entries


def _accuracy(panel: Panel, row: str, column: int, best: bool) -> Entry:
    cell = panel.at(row, column)
    paper, points = cell.entry.get("paper"), from_clean(panel, row, column)
    absent = ["left out"] if cell.entry.get("left_out") and not cell.runs else []
    clean = [] if points is None else [f"{signed(points)} from clean labels"]
    ours, floor = cell.accuracy, panel.at(CENTER, column).accuracy
    unit = "%" if ours and ours.metric.share and not panel.columns[column] else ""
    return Entry(
        panel.heads[column],
        spread_text(ours) + unit,
        best=best,
        above_center=ours is not None and floor is not None and ours.metric.better(ours.tenths, floor.tenths),
        marks=marks(cell),
        paper="" if paper is None else f"{paper[0]:.1f} ± {paper[1]:.1f}",
        notes=[*absent, *clean],
    )


def _shown_measures(panel: Panel) -> list[str]:
    """The measures of a panel. Negative coefficients and the worst tenth of the clients are shown if a run has them."""
    optional = {head: _MEASURES[head][0] for head in ("Negative", "Worst tenth")}
    missing = [head for head, name in optional.items() if all(getattr(run, name) is None for run in panel.runs)]
    return [head for head in _MEASURES if head not in missing]


def _measure(runs: Sequence[RunRecord], head: str) -> Entry:
    number, shown, _ = _MEASURES[head]
    shown = shown or (runs[0].metric.shown if runs else percent)
    return Entry(head, shown(mean_of([getattr(run, number) for run in runs])))


def _row_notes(grid: Grid, cell: Cell) -> list[str]:
    """The facts in which a row differs from the others, and remarks about its runs."""
    differing = differences(grid.runs)
    alike = [found for key in differing if len(found := {facts(run).get(key) for run in cell.runs}) == 1]
    setting = ", ".join(text for found in alike for text in found if text)
    trained = f"measured{ON_TRAINING}" if on_training(cell) else ""
    whole = mean_of([on_all_tests(run) for run in cell.runs])
    own = f"the clients’ own models; on all test data {cell.metric.shown(whole)}" if whole is not None else ""
    notes = [setting, trained, own, *(text for run in cell.runs for text in remarks(run))]
    return [text for text in dict.fromkeys(notes) if text]


def is_best(ours: Spread | None, among: Sequence[Spread | None]) -> bool:
    """Whether a number is the best of several of the same metric, compared as shown."""
    known = [other.tenths for other in among if other and ours and other.metric == ours.metric]
    return len(known) > 1 and ours is not None and ours.tenths == ours.metric.best(known)


def leaders(grid: Grid, panel: Panel, column: int) -> list[str]:
    """The bold rows of a column: of single runs the winner, in tables the best numbers, as in the paper.

    Quick runs have none.
    """
    if grid.quick:
        return []
    if "title" not in grid.record:
        winner = standing(grid, panel, column).winner
        return [winner] if winner else []
    cells = {row: cell for row, cell in panel.column(column).items() if not is_local(cell)}
    groups = [list(cells.values()), *([c for c in cells.values() if c.has_own_data == own] for own in (True, False))]
    best = [cell for group in groups for cell in group if is_best(cell.accuracy, [each.accuracy for each in group])]
    return [row for row, cell in cells.items() if any(cell is each for each in best)]


def marks(cell: Cell) -> str:
    """The marks of a cell that has been run."""
    found = {"†": cell.entry.get("substitute"), "§": cell.entry.get("changed"), "‡": not cell.is_final}
    return "".join(mark for mark, holds in found.items() if holds) if cell.runs else ""


def from_clean(panel: Panel, row: str, column: int) -> float | None:
    """Percentage points between a cell with random labels and the same cell with clean labels."""
    key = panel.columns[column]
    same = {**key, "label_noise": 0}
    if not key.get("label_noise") or same not in panel.columns:
        return None
    places = (column, panel.columns.index(same))
    noisy, clean = (panel.cells.get((row, at), NO_CELL).accuracy for at in places)
    return round(noisy.tenths - clean.tenths, 1) if noisy and clean else None


def legend(grid: Grid) -> str:
    """The meaning of the numbers, and of bold and underlined ones."""
    above = " Underlined: above Center." if any(CENTER in panel.rows for panel in grid.panels) else ""
    rule = "the best of a run’s last five evaluations, the paper’s rule; with several seeds, mean ± standard deviation."
    metrics = dict.fromkeys(panel.metric for panel in grid.panels)
    unit = " in per cent" if "title" in grid.record else ""
    names = listed([f"{metric.words}{unit if metric.share else ''}" for metric in metrics or (ACCURACY,)])
    if "title" not in grid.record:
        return f"{names}: {rule} Bold: a lead that the test examples and seeds support.{above}"
    both = len({cell.has_own_data for cell in grid.cells if cell.runs}) > 1
    groups = " and, as in the paper, the best of the methods with and of those without in-domain data at the server"
    bold = f"the best of its column{groups if both else ''}, whether or not it is a lead"
    return f"{names}: {rule}{'' if grid.quick else f' Bold: {bold}.'}{above}"


def footnotes(grid: Grid) -> list[str]:
    """The meaning of the marks in the tables of a grid."""
    ran = [cell for cell in grid.cells if cell.runs]
    notes = []
    if substitutes := list(dict.fromkeys(text for cell in ran if (text := cell.entry.get("substitute")))):
        notes.append(f"† {'; '.join(substitutes)}.")
    if grid.changed:
        notes.append(f"§ Run with {', '.join(grid.changed)}.")
    if any(not cell.is_final for cell in ran):
        notes.append("‡ Not finished, so not final.")
    return notes


def table_notes(grid: Grid, panel: Panel) -> list[str]:
    """All notes below the table of results."""
    heads = [text for axis, text in _HEADS.items() if len(panel.columns) > 1 and axis in panel.columns[0]]
    measures = [_MEASURES[head][2] for head in _shown_measures(panel) if len(panel.columns) == 1]
    return [*heads, " ".join(filter(None, [legend(grid), *measures])), *footnotes(grid)]


def cost(panel: Panel, requested: float | None) -> Table:
    """What each row costs to reach a target accuracy; with several columns, also what a run costs."""
    targets = [_target(panel, column, requested) for column in range(len(panel.columns))]
    whole = ["Time", "MB up", "MB down"] if len(targets) > 1 else []  # of a run
    names = [f"{head}: to" if key else "To" for head, key in zip(panel.heads, panel.columns, strict=True)]
    heads = [f"{name} {panel.metric.shown(target)}" for name, target in zip(names, targets, strict=True)]
    rows = []
    for row, label in panel.rows.items():
        if runs := [
            run for (at, _), cell in panel.cells.items() if at == row and not is_local(cell) for run in cell.runs
        ]:
            cells = [panel.at(row, column) for column in range(len(targets))]
            measures = [_measure(runs, head) for head in whole]
            rows.append(Row(label, [*measures, *map(_price, heads, cells, targets)]))
    return Table(_heading(panel), [*whole, *heads], rows)


def _target(panel: Panel, column: int, requested: float | None) -> float | None:
    """The requested value, of a share as a fraction; by default the median of the column without Center."""
    cells = panel.column(column)
    if requested is not None and not panel.metric.share:
        return 100 * requested  # the command line takes per cent
    found = [
        cell.accuracy.mean for row, cell in cells.items() if row != CENTER and cell.accuracy and not is_local(cell)
    ]
    return requested if requested is not None else median(found) if found else None


def _price(heading: str, cell: Cell, target: float | None) -> Entry:
    """The price of a target, as a mean over the seeds that reached it."""
    if target is None:
        return Entry(heading)
    if cell.entry["key"].get("method") == CENTER:
        return Entry(heading, "no clients")
    paid = [found for run in cell.runs if (found := price(run, target))]
    if not paid:
        return Entry(heading, "not reached" if cell.runs else NONE)
    rounds, sent = map(fmean, zip(*paid, strict=True))
    some = "" if len(paid) == len(cell.runs) else f", {len(paid)} of {len(cell.runs)} seeds"
    return Entry(heading, counted(round(rounds), "round"), notes=[f"{megabytes(sent)} MB{some}"])


def price(run: RunRecord, target: float) -> tuple[float, float] | None:
    """When an evaluation first reached a target, in rounds of an asynchronous server, and the bytes sent by then."""
    for at, value in run.curve:
        found, asked = round(value, 3), round(target, 3)  # as they are shown
        if found == asked or run.metric.better(found, asked):
            line = next(line for line in run.history if line["round"] == at)
            clock = run.made.get("clock", [])  # of a server that waits for its clients
            return float(clock[at - 1] if at <= len(clock) else at), line.get("bytes_up", 0) + line.get("bytes_down", 0)
    return None
