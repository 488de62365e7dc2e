"""The sentences of a report."""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean

from feddle.core.metrics import ACCURACY
from feddle.report.evidence import Standing, best_first, on_training, standing
from feddle.report.grid import CENTER, Grid, Panel, is_local
from feddle.report.joining import joined_methods
from feddle.report.numbers import Spread, counted, in_sentence, listed, spread_of
from feddle.report.tables import ON_TRAINING, marks

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
DISCARDING = "averages the updates that arrive in their own round and discards late ones"  # fedavg, by default
_FEW = 4  # names that a sentence lists


def headline(grid: Grid) -> str:
    """The result in a few words."""
    found = [(panel, standing(grid, panel, column)) for panel in grid.panels for column in range(len(panel.columns))]
    known = [(panel, each) for panel, each in found if each.order]
    if len(found) == 1 and known:
        return _one_setting(*known[0])
    wins = Counter(each.winner for _, each in known if each.winner)
    if not wins:
        return grid.record.get("title", "No evaluation yet")
    names = {row: words for panel in grid.panels for row, words in panel.rows.items()}
    first = [names[row] for row, won in wins.items() if won == max(wins.values())]
    if len(first) > 1:
        return f"{listed(first, _FEW)} lead in {max(wins.values())} settings each"
    return f"{first[0]} leads in {max(wins.values())} of {len(known)} settings"


def _one_setting(panel: Panel, found: Standing) -> str:
    (first, top), *others = found.order.items()
    if any(is_local(cell) and not is_local(panel.at(first, 0)) for cell in panel.cells.values()):
        if found.obstacle:
            return f"No verdict: {found.obstacle}"
        if joined := next((each for each in joined_methods(panel) if each.label == panel.rows[first]), None):
            return joined.headline
    if not others:
        return f"{panel.rows[first]} reaches {_reached(top)}"
    if found.obstacle:
        return f"No winner: {found.obstacle}"
    if found.winner and top.metric.share:
        return f"{panel.rows[first]} leads by {top.tenths - others[0][1].tenths:.1f} points"
    if found.winner:
        return f"{panel.rows[first]} leads with {_reached(top)}"
    reasons = {found.against[row].words for row in found.level[1:]}
    words = reasons.pop() if len(reasons) == 1 else "no difference that the test examples and seeds can show"
    if len(found.level) == len(found.order):
        return _sentence(words)
    return f"{listed([panel.rows[row] for row in found.level], _FEW)}: {words}"


def _shown(spread: Spread) -> str:
    return spread.metric.shown(spread.mean)


def _reached(spread: Spread) -> str:
    """The text after `reaches`: the mean, with the name of its metric if that is not accuracy."""
    if spread.metric == ACCURACY:
        return _shown(spread)
    return f"{'an' if spread.metric.share else 'a'} {in_sentence(spread.metric)} of {_shown(spread)}"  # an F1


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def lead(grid: Grid) -> list[str]:
    """The result in a few sentences."""
    return [*verdicts(grid), *_unfinished(grid), *([] if grid.quick else _against_the_paper(grid))]


def verdicts(grid: Grid) -> list[str]:
    """Which method leads in each panel, if one does. Quick runs have no verdict."""
    shown = [] if grid.quick else [panel for panel in grid.panels if panel.runs][:6]
    found = [_compared(grid, panel) if len(panel.columns) == 1 else _averages(grid, panel) for panel in shown]
    return list(filter(None, found))


def _compared(grid: Grid, panel: Panel) -> str:
    """The methods of a panel with one setting, and whether the first one leads."""
    found = standing(grid, panel, 0)
    if len(found.order) < 2:
        return ""
    (first, top), (second, next_best), *_ = found.order.items()
    where = {row: ON_TRAINING if on_training(panel.at(row, 0)) else "" for row in found.order}
    names = {row: f"{panel.rows[row]} ({_shown(spread)}{where[row]})" for row, spread in found.order.items()}
    center = _above_center(found.order)
    if found.obstacle:
        text = f"{listed(list(names.values()), _FEW)}. No winner is named, because {found.obstacle}{center}"
    elif found.winner:
        points = f"{top.tenths - next_best.tenths:.1f} percentage points more than" if top.metric.share else "ahead of"
        tests = found.against[second].tests
        text = f"{panel.rows[first]} reaches {_reached(top)}, {points} {names[second]}{center}. {_sentence(tests)}"
    else:
        level = _reasons({names[row]: found.against[row].reason for row in found.level[1:]})
        behind = [names[row] for row in found.order if row not in found.level]
        below = [f"Behind: {listed(behind, _FEW)}"] if behind else []
        text = ". ".join([f"{panel.rows[first]} reaches {_reached(top)}{where[first]}{center}", *level, *below])
    return f"{_title(panel)}{text}."


def _reasons(reasons: Mapping[str, str]) -> list[str]:
    """Why no method leads over each of some methods. Each reason is given once, with all methods that it applies to."""
    said = {reason: [name for name in reasons if reasons[name] == reason] for reason in reasons.values()}
    return [f"{listed(names, _FEW)}: {reason}" for reason, names in list(said.items())[:_FEW]]


def _averages(grid: Grid, panel: Panel) -> str:
    """The two best means over the settings that all rows have, and the number of settings with a leader.

    Otherwise a row with only easy settings would be the best.
    """
    places = range(len(panel.columns))
    known = [{column for column in places if panel.at(row, column).accuracy} for row in panel.rows]
    shared = set.intersection(*filter(None, known)) if any(known) else set()
    order = _means(panel, shared)
    if len(order) < 2:
        return ""
    where = "in the one setting" if len(shared) == 1 else "on average over the settings"
    where += " that all have" if len(shared) < len(panel.columns) else ""
    best = listed([f"{panel.rows[row]} reaches {_reached(spread)}" for row, spread in list(order.items())[:2]])
    standings = [each for column in places if (each := standing(grid, panel, column)).order]
    wins = Counter(panel.rows[each.winner] for each in standings if each.winner)
    led = listed([f"{name} in {count} of {len(standings)} settings" for name, count in wins.most_common()] or ["none"])
    text = f"{_title(panel)}{best} {where}{_above_center(order)}."
    return f"{text} Leads that the test examples and seeds support: {led}."


def _title(panel: Panel) -> str:
    return f"{panel.title}: " if panel.title else ""


def _above_center(order: Mapping[str, Spread]) -> str:
    if CENTER not in order:
        return ""
    center = order[CENTER]
    above = sum(center.metric.better(spread.tenths, center.tenths) for spread in order.values())
    verb = "is" if above == 1 else "are"
    return f"; {above or 'none'} of the other {len(order) - 1} {verb} above Center ({_shown(center)})"


def _means(panel: Panel, columns: set[int]) -> dict[str, Spread]:
    """The mean of each row over some columns, best first."""
    rows = [row for row in panel.rows if not any(is_local(panel.at(row, column)) for column in columns)]
    spreads = {row: [panel.at(row, column).accuracy for column in sorted(columns)] for row in rows}
    means = {row: spread_of([each.mean for each in found if each], panel.metric) for row, found in spreads.items()}
    return best_first({row: mean for row, mean in means.items() if mean})


def _unfinished(grid: Grid) -> list[str]:
    """The number of cells that are finished, if not all are, and a few cells without an evaluation by name."""
    done, left = sum(cell.is_final for cell in grid.cells), sum(map(len, grid.left_out.values()))
    waiting = [cell.name for cell in grid.cells if cell.accuracy is None]
    out = f", {left} left out because data or model is not available here (listed below)" if left else ""
    count = f"{done} of {len(grid.cells)} cells are finished{out}." if done < len(grid.cells) else ""
    named = f"No evaluation yet: {listed(waiting)}." if 0 < len(waiting) <= _FEW and not left else ""
    return list(filter(None, (count, named)))


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
