"""The sentences of a report."""

from collections import Counter
from statistics import fmean

from feddle.report.grid import CENTER, Grid, Panel
from feddle.report.numbers import counted, listed, spread_text
from feddle.report.tables import leaders, marks

ABOUT = {
    "center": "trains on the server’s data only, without clients. It is the baseline",
    "fed+ft": "averages the updates, then fine-tunes on the server’s data",
    "fed+ft-fedbuff": "collects updates, also late ones, adds their mean, then fine-tunes on the server’s data",
    "fed+ft-constant": "is Fed+FT on FedBuff with stale updates counted like any other",
    "hfcl": "trains the server as one more client",
    "feddf-id": "averages, then distils the clients’ predictions on the server’s data",
    "feddle": "searches the merging coefficients on the server’s data",
    "feddle-id": "searches the merging coefficients on the server’s data",
    "feddle+": "searches coefficients for each layer and class, and for the server’s own update",
    "fedavg": "averages the updates",
    "local": "trains every client alone. Its number is the mean of the clients’ own models, weighted by their examples",
    "fedavg-waiting": "averages all updates, and waits for the slowest client in every round",
    "fedasync": "mixes each client’s model into the server’s model when it arrives",
    "fedbuff": "collects updates, also late ones, and adds their mean",
    "ca2fl": "is FedBuff with each update calibrated by the previous update of the client",
    "feddf-ood": "is FedDF with out-of-domain data at the server",
    "feddle-ood": "is Feddle with out-of-domain data at the server",
}
_FEW = 4  # names that a sentence lists


def headline(grid: Grid) -> str:
    """The leading method in a few words."""
    places = [(panel, column) for panel in grid.panels for column in range(len(panel.columns))]
    if len(places) == 1:
        return _one_setting(grid.panels[0]) or grid.record.get("title", "No evaluation yet")
    best = [leaders(panel, column) for panel, column in places]
    wins = Counter(row for rows in best for row in rows)
    if not wins:
        return grid.record.get("title", "No evaluation yet")
    names = {row: words for panel in grid.panels for row, words in panel.rows.items()}
    first = [row for row, won in wins.items() if won == max(wins.values())]
    if len(first) > 1:
        return f"{listed([names[row] for row in first], _FEW)} are best in {wins[first[0]]} settings each"
    return f"{names[first[0]]} is best in {wins[first[0]]} of {sum(map(bool, best))} settings"


def _one_setting(panel: Panel) -> str:
    if not panel.metric.share:
        return _values(panel)
    order = _ranking(panel, {0})
    if not order:
        return ""
    (first, top), *others = order.items()
    level = [panel.rows[row] for row, value in order.items() if value == top]
    if len(level) > 1:
        return f"{listed(level, _FEW)} are equal"
    return f"{panel.rows[first]} " + (f"leads by {top - others[0][1]:.1f} points" if others else f"reaches {top:.1f}%")


def _values(panel: Panel) -> str:
    """The rows with their values of a metric that is no share; the rows are sorted."""
    spreads = {name: panel.at(row, 0).accuracy for row, name in panel.rows.items()}
    found = [f"{name} {spread_text(spread)}" for name, spread in spreads.items() if spread]
    return f"{panel.metric.words}: {listed(found, _FEW)}" if found else ""


def _ranking(panel: Panel, columns: set[int]) -> dict[str, float]:
    """The mean accuracy of each row over some columns, in per cent as it is shown, best first."""
    found = {}
    for row in panel.rows:
        spreads = [panel.at(row, column).accuracy for column in sorted(columns)]
        if values := [spread.mean for spread in spreads if spread]:
            found[row] = round(100 * fmean(values), 1)
    return dict(sorted(found.items(), key=lambda each: each[1], reverse=True))


def lead(grid: Grid) -> list[str]:
    """The result in a few sentences."""
    shown = [panel for panel in grid.panels if panel.runs][:6]
    return list(
        filter(None, [*map(_standing, shown), *_unfinished(grid), *([] if grid.quick else _against_the_paper(grid))])
    )


def _standing(panel: Panel) -> str:
    """The leader, over the columns that all rows have: otherwise a row with only easy settings would win."""
    if not panel.metric.share:
        return ""
    places = range(len(panel.columns))
    known = [{column for column in places if panel.at(row, column).accuracy} for row in panel.rows]
    shared = set.intersection(*filter(None, known)) if any(known) else set()
    order = _ranking(panel, shared)
    if len(order) < 2:
        return ""
    (first, top), (second, next_best), *_ = order.items()
    where = "" if len(panel.columns) == 1 else " on average over the settings"
    if len(shared) < len(panel.columns):
        where = " in the one setting that all have" if len(shared) == 1 else f"{where} that all have"
    name = f"{panel.title}: " if panel.title else ""
    if top == next_best:
        level = [panel.rows[row] for row, value in order.items() if value == top]
        text = f"{name}{listed(level, _FEW)} reach {top:.1f}%{where}"
    else:
        ahead = f"{top - next_best:.1f} percentage points more than {panel.rows[second]} ({next_best:.1f}%)"
        text = f"{name}{panel.rows[first]} reaches {top:.1f}%{where}, {ahead}"
    if CENTER in order:
        above = sum(value > order[CENTER] for value in order.values())
        verb = "is" if above == 1 else "are"
        text += f"; {above or 'none'} of the other {len(order) - 1} {verb} above Center ({order[CENTER]:.1f}%)"
    return f"{text}."


def _unfinished(grid: Grid) -> list[str]:
    """The number of cells that are finished, if not all are, and a few cells without an evaluation by name."""
    done, left = sum(cell.is_final for cell in grid.cells), sum(map(len, grid.left_out.values()))
    waiting = [cell.name for cell in grid.cells if cell.accuracy is None]
    out = f", {left} left out because data or model is not available here (listed below)" if left else ""
    count = f"{done} of {len(grid.cells)} cells are finished{out}." if done < len(grid.cells) else ""
    return [count, f"No evaluation yet: {listed(waiting)}." if 0 < len(waiting) <= _FEW and not left else ""]


def _against_the_paper(grid: Grid) -> list[str]:
    """The difference to the paper's numbers, for cells with its setting."""
    final = [(cell, cell.accuracy, cell.entry.get("paper")) for cell in grid.cells if cell.is_final]
    known = [(cell, 100 * ours.mean - paper[0]) for cell, ours, paper in final if ours and paper]
    gaps = [gap for cell, gap in known if not (marks(cell) or cell.has_other_config)]
    sentences = []
    if gaps:
        near, gap = sum(abs(each) <= 2 for each in gaps), fmean(gaps)
        sentences.append(
            f"Compared with the paper, {near} of {len(gaps)} cells are within two points of its number, "
            f"and on average {abs(gap):.1f} points {'above' if gap > 0 else 'below'} it."
        )
    if other := len(known) - len(gaps):
        why = "because they have substitute data or a changed setting"
        sentences.append(f"Not compared with the paper, {why}: {counted(other, 'cell')}.")
    return sentences
