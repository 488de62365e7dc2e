"""The coefficients of a run's searches as heat maps over rounds: by anchor, and by block."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from feddle.records import HistoryLine, RunRecord
from feddle.report.axes import thinned
from feddle.report.heatmap import Cells, HeatMap, binned, draw_map, group_size, number, rounds_per_column
from feddle.report.markup import Markup, each, element, folded, join
from feddle.report.numbers import counted, percent

_MOST_ROWS = 60  # of the atlas
_MOST_BLOCKS = 40  # rows of the map of blocks, each of which has a name
_MOST_LISTED = 40  # columns that are also listed in words
_SERVER = "server − 1"  # the coefficient of the server's own update starts at 1, far from the others


@dataclass(frozen=True)
class _Search:
    """The coefficients of one search. Parts that are unknown are empty or None."""

    round: int
    values: Sequence[float]  # one for each anchor
    origins: Sequence[tuple[int, int]]  # client and version of each anchor
    means: Sequence[float]  # of each block, over the anchors
    sizes: Sequence[float]  # of each block, the mean of |c| over the anchors
    server: float | None  # of the server's own update; of several blocks, the mean


def coefficient_figures(run: RunRecord, title: str) -> Markup | None:
    """The heat maps of a run; None if it has no search."""
    names: list[str] = next((line["blocks"] for line in reversed(run.history) if "blocks" in line), [])
    searches = [found for line in run.history if (found := _search(line, names))]
    if not searches:
        return None
    by_block = len(names) > 1 and any(found.means for found in searches)
    server = binned({s.round: [s.server - 1] for s in searches if s.server is not None}, searches[-1].round)
    anchors = _anchor_figure(searches, [] if by_block else server, title, percent(run.negative_share))
    return join(anchors, _block_figure(searches, names, server, title) if by_block else None)


def _search(line: HistoryLine, names: Sequence[str]) -> _Search | None:
    """The search of a round; None if it had no anchors. Lists that do not fit each other are ignored."""
    values, rows, server = line.get("coefficients"), line.get("block_coefficients", []), line.get("server_coefficient")
    if not values or line["round"] < 1:
        return None
    clients, versions = line.get("anchor_clients", []), line.get("anchor_versions", [])
    origins = list(zip(clients, versions, strict=True)) if len(clients) == len(versions) == len(values) else []
    fits = names and line.get("blocks") == names and all(len(row) == len(names) for row in rows)
    if not fits or len(rows) not in (len(values), len(values) + 1):
        rows = []
    elif len(rows) > len(values):
        *rows, own = rows
        server = fmean(own)
    columns = list(zip(*rows, strict=True))
    sizes = [fmean(map(abs, column)) for column in columns]
    return _Search(line["round"], values, origins, [fmean(column) for column in columns], sizes, server)


def _anchor_figure(searches: Sequence[_Search], server: Cells, title: str, share: str) -> Markup:
    last = searches[-1].round
    tall = group_size(max(len(found.values) for found in searches), _MOST_ROWS)
    cells = binned({found.round: found.values for found in searches}, last, tall)
    height = max(5, min(16, 280 // len(cells)))
    step = -(-18 // height)  # rows from one number to the next
    names = [str(tall * row + 1) if row % step == 0 else "" for row in range(len(cells))]
    notes = [f"{rounds}: {_anchor_note(group)}" for rounds, group in _columns(searches).items()]
    found = HeatMap([*names, *[_SERVER] * len(server)], [*cells, *server], last, notes, height)
    caption = join(f": {share} of the coefficients are ", element("span", "negative", class_="below"), ".")
    values = [value for search in searches for value in search.values]
    spoken = f"Coefficients of {title} by round and row of the atlas, {_range(values)}; {share} negative."
    return _figure(title, caption, _remarks(last, tall, "rows", server), found, spoken, thinned(notes, _MOST_LISTED))


def _block_figure(searches: Sequence[_Search], names: Sequence[str], server: Cells, title: str) -> Markup:
    last, tall = searches[-1].round, group_size(len(names), _MOST_BLOCKS)
    known = [found for found in searches if found.means]
    cells = binned({found.round: _differences(found.means) for found in known}, last, tall)
    shown = [name + " …" * (tall > 1) for name in names[::tall]]
    notes = [f"{rounds}: {_block_note(group, names)}" for rounds, group in _columns(searches).items()]
    found = HeatMap([*shown, *[_SERVER] * len(server)], [*cells, *server], last, notes, row_height=15)
    text = "mean coefficient of each block over the anchors, minus the mean of all blocks."
    spoken = f"{title}, by block and round: {text} {_block_note(known, names)}."
    means, sizes = _over_rounds([search.means for search in known]), _over_rounds([search.sizes for search in known])
    listed = [
        f"{name}: mean {number(c)}, mean size {number(size)}" for name, c, size in zip(names, means, sizes, strict=True)
    ]
    return _figure(title, f": {text}", _remarks(last, tall, "blocks", server), found, spoken, listed)


def _figure(title: str, caption: str, remarks: str, found: HeatMap, spoken: str, values: Sequence[str]) -> Markup:
    """A heat map with its caption, and with its values in words, which can be unfolded."""
    text = element("figcaption", element("strong", title), caption, remarks, found.clipping)
    listed = folded("Values in words", element("div", element("ul", each("li", values)), class_="scroll"))
    return element("figure", text, draw_map(found, spoken), listed, class_="heat")


def _remarks(last: int, tall: int, rows: str, server: Cells) -> str:
    """What a cell is if it stands for several rounds or rows, and what the server's row is."""
    wide = rounds_per_column(last)
    several = [text for size, text in ((wide, f"{wide} rounds"), (tall, f"{tall} {rows}")) if size > 1]
    merged = f" Each cell is the mean of {' and '.join(several)}." if several else ""
    own = " The last row is the coefficient of the server’s own update, minus 1, where its search starts."
    return merged + (own if server else "")


def _columns(searches: Sequence[_Search]) -> dict[str, list[_Search]]:
    """The searches of each column of a heat map, by the rounds of the column."""
    last = searches[-1].round
    wide = rounds_per_column(last)
    found: list[list[_Search]] = [[] for _ in range(-(-last // wide))]
    for search in searches:
        found[(search.round - 1) // wide].append(search)
    ends = [(wide * column + 1, min(last, wide * (column + 1))) for column in range(len(found))]
    names = [f"rounds {first}–{end}" if end > first else f"round {first}" for first, end in ends]
    return dict(zip(names, found, strict=True))


def _anchor_note(group: Sequence[_Search]) -> str:
    """The coefficients of successive searches in words."""
    if not group:
        return "no search"
    found = [(value, search, at) for search in group for at, value in enumerate(search.values)]
    negative = sum(value < 0 for value, *_ in found)
    low, high = (end(found, key=lambda one: one[0]) for end in (min, max))
    ends = f"from {_origin(*low)} to {_origin(*high)}"
    return f"{counted(len(found), 'coefficient')}, {negative} negative, {ends}{_server_note(group)}"


def _origin(value: float, search: _Search, at: int) -> str:
    """A coefficient with the client and the version of its anchor."""
    known = "" if not search.origins else " (client {}, version {})".format(*search.origins[at])
    return number(value) + known


def _block_note(group: Sequence[_Search], names: Sequence[str]) -> str:
    """The blocks with the lowest and the highest mean over successive searches."""
    means = _over_rounds([search.means for search in group if search.means])
    if not means:
        return "no search"
    low, high = (end(zip(means, names, strict=True)) for end in (min, max))
    return f"lowest {number(low[0])} ({low[1]}), highest {number(high[0])} ({high[1]}){_server_note(group)}"


def _server_note(group: Sequence[_Search]) -> str:
    known = [search.server for search in group if search.server is not None]
    return f", server {fmean(known):.4g}" if known else ""


def _differences(means: Sequence[float]) -> list[float]:
    # The fallback's start is the same in all blocks, and mostly larger than what the search changes in a block.
    middle = fmean(means)
    return [mean - middle for mean in means]


def _over_rounds(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each block over rounds."""
    return [fmean(values) for values in zip(*rounds, strict=True)]


def _range(values: Sequence[float]) -> str:
    return f"from {number(min(values))} to {number(max(values))}"
