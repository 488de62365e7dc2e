"""The coefficients of a run's searches as heat maps over rounds: by anchor, and by block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean

from feddle.records import HistoryLine, RunRecord
from feddle.report.heatmap import Rows, heat_figure, number
from feddle.report.markup import Markup, element, join
from feddle.report.numbers import counted, percent

_MOST_COLUMNS = 120
_OWN = {"server": "the server’s own update", "head": "the head that the server fits again"}
_ABOUT_BLOCKS = ": mean coefficient of each block over the anchors, minus the mean of all blocks."


@dataclass(frozen=True)
class _Search:
    """The search of a round; without values if there was none. Other parts may be unknown: empty or None."""

    round: int
    values: Sequence[float] = ()  # one for each anchor
    origins: Sequence[tuple[str, int]] = ()  # client and version of each anchor
    means: Sequence[float] = ()  # of each block, over the anchors
    own: Mapping[str, float] = field(default_factory=dict)  # of the anchors in `_OWN`; of several blocks, the mean


def coefficient_figures(run: RunRecord, title: str) -> Markup | None:
    """The heat maps of a run; None if it has no search."""
    names: list[str] = next((line["blocks"] for line in reversed(run.history) if "blocks" in line), [])
    known = dict(zip(run.data.get("shown", []), run.data.get("names", []), strict=False))
    searches = [found for line in run.history if (found := _search(line, names, known))]
    if not searches:
        return None
    wide = -(-searches[-1].round // _MOST_COLUMNS)  # rounds of a column, which shows the last search in them
    last = {-(-found.round // wide): found for found in searches}
    shown = [last.get(column, _Search(column * wide)) for column in range(1, max(last) + 1)]
    server = _own_rows(shown)
    share = percent(run.negative_share)
    if len(names) < 2 or not any(found.means for found in shown):
        return _anchor_figure(shown, server, title, share, wide)
    every = [value for line in run.history for row in line.get("block_coefficients", []) for value in row]
    share = percent(sum(value < 0 for value in every) / len(every))
    anchors = _anchor_figure(shown, {}, title, share, wide, len(every), with_server=bool(server))
    return join(anchors, _block_figure(shown, names, server, title, wide))


def _search(line: HistoryLine, names: Sequence[str], known: Mapping[int, str]) -> _Search | None:
    """The search of a round; None if it had no anchors. Lists of unequal lengths are ignored.

    `names` are the names of the blocks, and `known` the names of clients.
    """
    values, rows = line.get("coefficients"), line.get("block_coefficients", [])
    if not values or line["round"] < 1:
        return None
    numbers, versions = line.get("anchor_clients", []), line.get("anchor_versions", [])
    clients = [known.get(number, f"client {number}") for number in numbers]
    origins = list(zip(clients, versions, strict=True)) if len(clients) == len(versions) == len(values) else []
    fits = names and line.get("blocks") == names and all(len(row) == len(names) for row in rows)
    found = {"server": line.get("server_coefficient"), "head": line.get("head_coefficient")}
    own = {name: value for name, value in found.items() if value is not None}
    added = line.get("server_rows", ["server"][: len(rows) - len(values)])
    if not fits or len(rows) != len(values) + len(added) or not set(added) <= set(_OWN):
        rows = []
    else:
        rows, last = rows[: len(values)], rows[len(values) :]
        own |= {name: fmean(row) for name, row in zip(added, last, strict=True)}
    return _Search(line["round"], values, origins, list(map(fmean, zip(*rows, strict=True))), own)


def _own_rows(shown: Sequence[_Search]) -> Rows:
    """The coefficients of the server's own anchors, minus 1. They start at 1, unlike those of the other anchors."""
    names = [name for name in _OWN if any(name in found.own for found in shown)]
    return {f"{name} − 1": [found.own[name] - 1 if name in found.own else None for found in shown] for name in names}


def _about(server: Rows) -> str:
    """The meaning of the rows of the server's own anchors."""
    if not server:
        return ""
    rows = "The last row is the coefficient" if len(server) == 1 else "The last rows are the coefficients"
    whose = " and of ".join(_OWN[label.removesuffix(" − 1")] for label in server)
    return f" {rows} of {whose}, minus 1, where the search starts."


def _anchor_figure(
    shown: Sequence[_Search],
    server: Rows,
    title: str,
    share: str,
    wide: int,
    count: int = 0,
    *,
    with_server: bool = False,
) -> Markup:
    """The map of the anchors. With blocks, `count` is the number of all coefficients, which the map does not show."""
    anchors = {str(row): cells for row, cells in enumerate(zip_longest(*(found.values for found in shown)), 1)}
    word = element("span", "negative", class_="below")
    negative = join(f": {share} of the coefficients are ", word, ".")
    if count:
        whose = "anchor (and those of the server)" if with_server else "anchor"
        first = f": of all {count:,} coefficients, one per {whose} and block, {share} are "
        negative = join(first, word, "; the map shows the mean over the blocks.")
    values = [value for found in shown for value in found.values]
    ends = f"from {number(min(values))} to {number(max(values))}"
    spoken = f"Coefficients of {title} by round and row of the atlas, {ends}; {share} negative."
    caption = join(negative, _about(server))
    return heat_figure(title, caption, {**anchors, **server}, list(map(_anchor_note, shown)), wide, 280, spoken)


def _anchor_note(search: _Search) -> str:
    """The coefficients of a search in words."""
    if not search.values:
        return _note(search, "no search")
    negative = sum(value < 0 for value in search.values)
    low, high = (_with_origin(search, end(search.values)) for end in (min, max))
    return _note(search, f"{counted(len(search.values), 'coefficient')}, {negative} negative, from {low} to {high}")


def _with_origin(search: _Search, value: float) -> str:
    """A coefficient with the client and the version of its anchor."""
    if not search.origins:
        return number(value)
    client, version = search.origins[search.values.index(value)]
    return f"{number(value)} ({client}, version {version})"


def _block_figure(shown: Sequence[_Search], names: Sequence[str], server: Rows, title: str, wide: int) -> Markup:
    # The fallback's start is the same in all blocks, and mostly larger than what the search changes in a block.
    differences = zip_longest(*([mean - fmean(found.means) for mean in found.means] for found in shown))
    blocks = dict(zip(names, differences, strict=True))
    notes = [_block_note(found, names) for found in shown]
    caption, spoken = _ABOUT_BLOCKS + _about(server), f"{title}{_ABOUT_BLOCKS} In {notes[-1]}."
    return heat_figure(title, caption, {**blocks, **server}, notes, wide, 640, spoken)


def _block_note(search: _Search, names: Sequence[str]) -> str:
    """The blocks with the lowest and the highest mean of a search, as differences from the mean of all blocks."""
    if not search.means:
        return _note(search, "no search")
    middle = fmean(search.means)
    low, high = (end(zip((mean - middle for mean in search.means), names, strict=True)) for end in (min, max))
    return _note(search, f"lowest {number(low[0])} ({low[1]}), highest {number(high[0])} ({high[1]})")


def _note(search: _Search, text: str) -> str:
    own = "".join(f", {name} − 1: {number(value - 1)}" for name, value in search.own.items())
    return f"round {search.round}: {text}{own}"
