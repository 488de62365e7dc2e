"""Heat maps: numbers by row and round, or by class and client, as a picture inside the page."""

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

from feddle.report.axes import round_axis, thinned, tick_text
from feddle.report.markup import Markup, each, element, folded

_LEVELS = 24  # shades of each sign
_QUANTILE = 0.98  # of the sizes; larger ones would leave no shades for the others
_ROUNDING = 1e-12  # smaller numbers are rounding errors
_LONGEST = 18  # characters of a row's name
_MOST_LISTED = 40  # columns that are also listed in words
# Orange and blue differ for colour-blind readers too. Zero is a faint grey on light and on dark paper.
_NEGATIVE, _ZERO, _POSITIVE = (204, 82, 0), (128, 128, 128), (22, 104, 200)

_SHADES = [step / _LEVELS for step in range(-_LEVELS, _LEVELS + 1)]  # as shares of the limit

Row = Sequence[float | None]  # a value for each column
Rows = Mapping[str, Row]  # by name


def number(value: float) -> str:
    """A number with at most three digits and a true minus sign."""
    return f"{value + 0.0:.3g}".replace("-", "−")


def heat_figure(
    title: str,
    caption: str,
    rows: Rows,
    notes: Sequence[str],
    wide: int,
    tall: int,
    spoken: str,
    clients: Sequence[str] = (),
) -> Markup:
    """A heat map that is about `tall` pixels high, with a note for each column, which stands for `wide` rounds.

    If there are `clients`, the columns are these instead, and the numbers are counts. Screen readers read `spoken`.
    """
    sizes = sorted(abs(value) for row in rows.values() for value in row if value is not None)
    limit = _limit(sizes)
    is_clipped = sizes[-1] > limit
    merged = f" Each column is the last search of {wide} rounds." if wide > 1 else ""
    clipping = f" Values beyond {'' if clients else '±'}{number(limit)} are clipped." if is_clipped else ""
    ticks = _client_ticks(clients) if clients else _round_ticks(wide * len(notes))
    height = max(4, min(16, tall // len(rows)))  # of a row
    step = math.ceil(15 / height)  # rows from one name to the next; the last row has one
    names = [name if (len(rows) - at) % step == 0 else "" for at, name in enumerate(rows, 1)]
    shown = [element("span", _shortened(name), title=name or None) for name in names]
    picture = element(
        "div",
        element("img", src=_picture(rows.values(), limit), alt=spoken),
        element("div", *(element("i", title=note) for note in notes), class_="columns"),
        class_="picture",
        style=f"height: {height * len(rows)}px",
    )
    listed = each("li", thinned(notes, _MOST_LISTED))
    left = element("div", *shown, class_="names", style=f"line-height: {height}px", aria_hidden="true")
    return element(
        "figure",
        element("figcaption", element("strong", title), caption, merged, clipping),
        _legend(limit, is_clipped, is_signed=not clients),
        element("div", left, picture, ticks, class_="map"),
        folded("Values in words", element("div", element("ul", listed), class_="scroll")),
        class_="heat",
    )


def _shortened(name: str) -> str:
    """A name that is too long without its middle, since the names of layers often differ at the end."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 3]}…{name[-_LONGEST // 2 :]}"


def _limit(sizes: Sequence[float]) -> float:
    """The size with the full colour: the largest, or a high quantile if that is clearly smaller."""
    quantile, largest = sizes[math.ceil(_QUANTILE * len(sizes)) - 1], sizes[-1]
    limit = quantile if 0 < 1.25 * quantile < largest else largest
    return _rounded_up(limit) if limit > _ROUNDING else 1.0


def _legend(limit: float, is_clipped: bool, *, is_signed: bool) -> Markup:
    less, more = ("≤ ", "≥ ") if is_clipped else ("", "")
    bar = element("img", src=_picture([_SHADES[0 if is_signed else _LEVELS :]], 1.0), alt="", width="196", height="12")
    ends = [f"{less}−{number(limit)}", "0"] if is_signed else ["0", ""]
    return element("div", bar, each("span", [*ends, f"{more}{number(limit)}"]), class_="scale")


def _client_ticks(clients: Sequence[str]) -> Markup:
    """The numbers of at most ten clients, or the names of at most twenty, which are upright."""
    upright = not all(name.isdecimal() for name in clients)
    stride = math.ceil(len(clients) / (20 if upright else 10))
    places = {name: 100 * (at + 0.5) / len(clients) for at, name in enumerate(clients) if at % stride == 0}
    return _ticks(places, "client", upright=upright)


def _round_ticks(last: int) -> Markup:
    axis = round_axis(last, 0, 100, most_ticks=6)
    return _ticks({tick_text(tick, axis.step): axis.place(tick - 0.5) for tick in axis.ticks[1:]}, "round")


def _ticks(places: Mapping[str, float], word: str, *, upright: bool = False) -> Markup:
    names = {_shortened(text): place for text, place in places.items()}
    ticks = [element("span", name, style=f"left: {place:.1f}%") for name, place in names.items()]
    height = f"height: calc({max(map(len, names))}ch + 30px)" if upright else None
    kind = "rounds upright" if upright else "rounds"
    return element("div", *ticks, element("em", word), class_=kind, style=height, aria_hidden="true")


def _rounded_up(value: float) -> float:
    """A positive number with two digits, not less than the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.2g}")


def _picture(rows: Iterable[Row], limit: float) -> str:
    """The values as a PNG with one pixel each, in a data URI. A missing value is transparent."""
    lines = [bytes([0, *(_shade(value, limit) for value in row)]) for row in rows]  # 0: the line is not filtered
    colours = list(map(_colour, _SHADES))
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", len(lines[0]) - 1, len(lines), 8, 3, 0, 0, 0),  # 8 bits, with a palette
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
    """Red, green, blue and opacity of a share of the limit. The page's background shows through."""
    size, full = abs(share), _NEGATIVE if share < 0 else _POSITIVE
    red, green, blue = (round(grey + (part - grey) * size**0.15) for grey, part in zip(_ZERO, full, strict=True))
    return red, green, blue, round(255 * (0.1 + 0.9 * size**0.7))
