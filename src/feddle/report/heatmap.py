"""Heat maps: numbers by row and round, as a picture inside the page."""

import base64
import math
import struct
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from feddle.report.axes import round_axis, tick_text
from feddle.report.charts import shortened
from feddle.report.markup import Markup, each, element, join

MOST_COLUMNS = 120
_LEVELS = 24  # shades of each sign
_QUANTILE = 0.98  # of the sizes; larger ones would leave no shades for the others
_ROUNDING = 1e-12  # smaller numbers are rounding errors
_LONGEST = 18  # characters of a row's name
# Orange and blue differ for colour-blind readers too. Zero is a faint grey on light and on dark paper.
_NEGATIVE, _ZERO, _POSITIVE = (204, 82, 0), (128, 128, 128), (22, 104, 200)

Cells = list[list[float | None]]


@dataclass(frozen=True)
class HeatMap:
    """The values of a heat map by row and column, as `binned` gives them."""

    names: Sequence[str]  # of the rows
    cells: Cells
    last: int  # round
    notes: Sequence[str]  # for each column
    row_height: int  # in pixels

    @property
    def largest(self) -> float:
        """The size of the largest value."""
        return max((abs(value) for row in self.cells for value in row if value is not None), default=0.0)

    @property
    def limit(self) -> float:
        """The size with the full colour: the largest, or a high quantile if that is clearly smaller."""
        sizes = sorted(abs(value) for row in self.cells for value in row if value is not None)
        limit = sizes[math.ceil(_QUANTILE * len(sizes)) - 1] if sizes else 0.0
        limit = limit if 0 < 1.25 * limit < self.largest else self.largest
        return _rounded_up(limit) if limit > _ROUNDING else 1.0

    @property
    def is_clipped(self) -> bool:
        """Whether some values are beyond the limit."""
        return self.largest > self.limit

    @property
    def clipping(self) -> str:
        """A sentence on the values that are beyond the limit; empty if there are none."""
        return f" Values beyond ±{number(self.limit)} are clipped." if self.is_clipped else ""


def group_size(count: int, most: int) -> int:
    """The size of equal groups of successive things, so that there are at most `most` groups."""
    return max(1, -(-count // most))


def rounds_per_column(last: int) -> int:
    """The number of rounds that a column stands for."""
    return group_size(last, MOST_COLUMNS)


def binned(rounds: Mapping[int, Sequence[float]], last: int, tall: int = 1) -> Cells:
    """The mean of each cell, which has some rounds and `tall` rows; None if it has no value."""
    found: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    wide = rounds_per_column(last)
    for at, values in rounds.items():
        for row, value in enumerate(values):
            found[row // tall, (at - 1) // wide].append(value)
    columns, rows = range(-(-last // wide)), range(max((row for row, _ in found), default=-1) + 1)
    return [[fmean(found[row, column]) if (row, column) in found else None for column in columns] for row in rows]


def number(value: float) -> str:
    """A number with at most three digits and a true minus sign."""
    return f"{value + 0.0:.3g}".replace("-", "−")


def draw_map(found: HeatMap, spoken: str) -> Markup:
    """The legend and the picture with its axes. Screen readers read `spoken`."""
    picture = element(
        "div",
        element("img", src=_picture(found.cells, found.limit), alt=spoken),
        element("div", *(element("i", title=note) for note in found.notes), class_="columns"),
        class_="picture",
        style=f"height: {found.row_height * len(found.cells)}px",
    )
    names = [element("span", shortened(name, _LONGEST), title=_whole(name)) for name in found.names]
    rows = element("div", *names, class_="names", style=f"line-height: {found.row_height}px", aria_hidden="true")
    return join(_legend(found), element("div", rows, picture, _round_ticks(found), class_="map"))


def _whole(name: str) -> str | None:
    return name if len(name) > _LONGEST else None


def _legend(found: HeatMap) -> Markup:
    limit, less, more = number(found.limit), *(("≤ ", "≥ ") if found.is_clipped else ("", ""))
    shades: Cells = [[step / _LEVELS for step in range(-_LEVELS, _LEVELS + 1)]]
    bar = element("img", src=_picture(shades, 1.0), alt="", width="196", height="12")
    return element("div", bar, each("span", [f"{less}−{limit}", "0", f"{more}{limit}"]), class_="scale")


def _round_ticks(found: HeatMap) -> Markup:
    # The last column may have fewer rounds, but is as wide as the others.
    axis = round_axis(rounds_per_column(found.last) * len(found.notes), 0, 100, most_ticks=6)
    ticks = [
        element("span", tick_text(tick, axis.step), style=f"left: {axis.place(tick - 0.5):.1f}%")
        for tick in axis.ticks
        if 0 < tick <= found.last
    ]
    return element("div", *ticks, element("em", "round"), class_="rounds", aria_hidden="true")


def _rounded_up(value: float) -> float:
    """A positive number with two digits, not less than the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.2g}")


def _picture(cells: Cells, limit: float) -> str:
    """The cells as a PNG with one pixel each, in a data URI. Cells without a value are transparent."""
    lines = [bytes([0, *(_shade(value, limit) for value in row)]) for row in cells]  # 0: the line is not filtered
    colours = [_colour(step / _LEVELS) for step in range(-_LEVELS, _LEVELS + 1)]
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", len(cells[0]), len(cells), 8, 3, 0, 0, 0),  # 8 bits, with a palette
        b"PLTE": bytes([0, 0, 0, *(part for *colour, _ in colours for part in colour)]),
        b"tRNS": bytes([0, *(alpha for *_, alpha in colours)]),
        b"IDAT": zlib.compress(b"".join(lines), 9),
        b"IEND": b"",
    }
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks.items())
    return f"data:image/png;base64,{base64.b64encode(whole).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _shade(value: float | None, limit: float) -> int:
    """The place of a value in the palette. Small values have a shade too, so that their sign can be seen."""
    if value is None:
        return 0
    step = math.ceil(_LEVELS * min(1.0, abs(value) / limit) - 1e-9)
    return 1 + _LEVELS + (step if value > 0 else -step)


def _colour(share: float) -> tuple[int, int, int, int]:
    """Red, green, blue and opacity of a share of the limit. The paper shows through, be it light or dark."""
    size, full = abs(share), _NEGATIVE if share < 0 else _POSITIVE
    red, green, blue = (round(grey + (part - grey) * size**0.15) for grey, part in zip(_ZERO, full, strict=True))
    return red, green, blue, round(255 * (0.1 + 0.9 * size**0.7))
