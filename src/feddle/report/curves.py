"""The chart of accuracy, or of another number, over rounds."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from feddle.report.chart import Size, colour, dash, drawing, frame, margin_for
from feddle.report.markup import Markup, element, join
from feddle.report.numbers import NONE
from feddle.report.scale import Axis, round_axis, spread, thinned, value_axis

SIZES = (Size("wide", 720, 380, 8), Size("narrow", 350, 300, 4))
LABEL_WIDTH = 7.6  # pixels of a character in a label, in a wide font
LABEL_GAP = 14.0
MOST_HITS = 120  # points of a curve that show their value without a script


@dataclass(frozen=True)
class Curve:
    """One line of a chart, with values in the unit of the chart.

    `band` is the range of the seeds as (round, lowest, highest); `stands_out` draws the line bold.
    """

    index: int
    label: str
    points: list[tuple[int, float]]
    band: list[tuple[int, float, float]] = field(default_factory=list)
    stands_out: bool = False

    @property
    def kind(self) -> str:
        """The class of its elements."""
        return f"{colour(self.index)}{' first' if self.stands_out else ''}"


def curve_chart(curves: Sequence[Curve], caption: str = "", unit: str = "%") -> Markup:
    """A legend, the curves in both sizes and their values as a table; `unit` is `%` or empty."""
    drawn = [curve for curve in curves if curve.points]
    return element(
        "figure",
        element("figcaption", caption) if caption else None,
        element("ul", *map(_legend_item, curves), class_="legend"),
        *(_draw(drawn, size, unit) for size in SIZES),
        element("div", class_="readout", hidden="hidden"),
        _values_for_script(drawn, unit),
        _values_table(drawn, unit),
        class_="accuracy",
    )


def _shown(value: float, unit: str) -> str:
    return f"{value:.{1 if unit else 2}f}{unit}".replace("-", "−")


def _values_table(curves: Sequence[Curve], unit: str, most: int = 100) -> Markup:
    """The values of the chart as a table that can be unfolded, with at most `most` rounds."""
    values = [dict(curve.points) for curve in curves]
    rounds = thinned(sorted({at for known in values for at in known}), most)
    head = element("tr", *(element("th", text, scope="col") for text in ("Round", *(curve.label for curve in curves))))
    rows = []
    for at in rounds:
        texts = (_shown(known[at], unit) if at in known else NONE for known in values)
        rows.append(element("tr", element("th", str(at), scope="row"), *(element("td", text) for text in texts)))
    table = element("table", element("thead", head), element("tbody", *rows), class_="values")
    return element("details", element("summary", "Values as a table"), element("div", table, class_="scroll"))


def _draw(curves: list[Curve], size: Size, unit: str) -> Markup:
    room = min(LABEL_WIDTH * max(cell_len(curve.label) for curve in curves) + 18, 0.3 * size.width)
    values = [value for curve in curves for _, *found in (*curve.points, *curve.band) for value in found]
    bounds = (0, 100) if unit else (-math.inf, math.inf)
    y = value_axis(values, size.height - 44, 12, most_ticks=6, least_span=2 if unit else 0.02, bounds=bounds)
    last = max(curve.points[-1][0] for curve in curves)
    x = round_axis(last, margin_for(y, unit), size.width - room, size.most_rounds)
    ends = "; ".join(f"{curve.label} {_shown(curve.points[-1][1], unit)}" for curve in curves)
    return drawing(
        size,
        "curves",
        f"{'Accuracy over' if unit else 'Over'} rounds. Last values: {ends}.",
        frame(x, y, unit),
        element("line", class_="cursor", y1=y.end, y2=y.start),
        *(_band(curve, x, y) for curve in curves if curve.band),
        *(_line(curve, x, y, unit) for curve in reversed(curves)),  # the first one on top
        _end_labels(curves, x, y, room),
        data_start=x.start,
        data_end=x.end,
        data_rounds=x.high,
    )


def _path(points: Sequence[tuple[int, float]], x: Axis, y: Axis) -> str:
    return "M" + "L".join(f"{x.place(at):.1f} {y.place(value):.1f}" for at, value in points)


def _band(curve: Curve, x: Axis, y: Axis) -> Markup:
    upper = [(at, high) for at, _, high in curve.band]
    lower = [(at, low) for at, low, _ in reversed(curve.band)]
    return element("path", d=f"{_path([*upper, *lower], x, y)}Z", class_=f"band {colour(curve.index)}")


def _line(curve: Curve, x: Axis, y: Axis, unit: str) -> Markup:
    hits = []
    for at, value in thinned(curve.points, MOST_HITS):
        title = element("title", f"{curve.label}, round {at}: {_shown(value, unit)}")
        hits.append(element("circle", title, cx=x.place(at), cy=y.place(value), r=6, class_="hit"))
    at, value = curve.points[-1]
    return element(
        "g",
        element("path", d=_path(curve.points, x, y), class_="line", stroke_dasharray=dash(curve.index)),
        element("circle", cx=x.place(at), cy=y.place(value), r=3, class_="dot"),
        *hits,
        class_=curve.kind,
    )


def _end_labels(curves: list[Curve], x: Axis, y: Axis, room: float) -> Markup:
    """The names of the curves at their ends; if there is no space for all, only the legend has them."""
    if len(curves) > (y.start - y.end) / 10:
        return join()
    tops = [y.place(curve.points[-1][1]) for curve in curves]
    labels = []
    for curve, top, height in zip(curves, tops, spread(tops, LABEL_GAP, y.end, y.start), strict=True):
        name = shortened(curve.label, round((room - 18) / LABEL_WIDTH))
        leader = f"M{x.place(curve.points[-1][0]) + 4:.1f} {top:.1f}L{x.end + 11:.1f} {height:.1f}"
        whole = element("title", curve.label) if name != curve.label else None
        text = element("text", name, whole, x=x.end + 14, y=height + 4, class_="label")
        labels.append(element("g", element("path", d=leader, class_="leader"), text, class_=curve.kind))
    return join(*labels)


def shortened(text: str, most: int) -> str:
    """A text that is too long without its middle, since the names of runs often differ at the end."""
    keep, shown = len(text), text
    while cell_len(shown) > most and keep > 2:
        keep -= 1
        tail = (keep + 1) // 2
        shown = f"{text[: keep - tail]}…{text[len(text) - tail :]}"
    return shown


def _legend_item(curve: Curve) -> Markup:
    line = element("path", d="M1 5H27", class_="line", stroke_dasharray=dash(curve.index))
    swatch = element("svg", line, class_="swatch", viewBox="0 0 28 10", aria_hidden="true")
    absent = None if curve.points else element("small", " no evaluation yet")
    return element("li", swatch, curve.label, absent, class_=colour(curve.index))


def _values_for_script(curves: list[Curve], unit: str) -> Markup:
    values = [
        {"label": curve.label, "colour": colour(curve.index), "unit": unit, "points": curve.points} for curve in curves
    ]
    # Inside a script element only `<` could end the data early; JSON may write it as \u003c.
    text = json.dumps(values, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')
