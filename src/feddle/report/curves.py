"""The chart of accuracy, or of another number, over rounds."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from feddle.report.chart import Size, colour, dash, drawing, frame, margin_for
from feddle.report.markup import Markup, element, join
from feddle.report.numbers import NONE, percent
from feddle.report.scale import Axis, round_axis, spread, thinned, value_axis

SIZES = (Size("wide", 720, 380, 8), Size("narrow", 350, 300, 4))
LABEL_WIDTH = 7.6  # pixels a character takes in a label, in a wide font
LABEL_GAP = 14.0
MOST_HITS = 120  # places on one curve that answer a pointer without a script


@dataclass(frozen=True)
class Curve:
    """One line of a chart. `band` is the range of the seeds as (round, lowest, highest); `stands_out` draws it bold."""

    index: int
    label: str
    points: list[tuple[int, float]]
    band: list[tuple[int, float, float]] = field(default_factory=list)
    stands_out: bool = False


def curve_chart(curves: Sequence[Curve], caption: str = "", unit: str = "%") -> Markup:
    """A legend, the curves in both sizes and their values as a table; `unit` is `%` for shares, else empty."""
    drawn = [curve for curve in curves if curve.points]
    return element(
        "figure",
        element("figcaption", caption) if caption else None,
        element("ul", *(_legend_item(curve) for curve in curves), class_="legend"),
        *(_draw(drawn, size, unit) for size in SIZES),
        element("div", class_="readout", hidden="hidden"),
        _values_for_script(drawn, unit),
        _values_table(drawn, unit),
        class_="accuracy",
    )


def _shown(value: float, unit: str) -> str:
    return percent(value) if unit == "%" else f"{value:.2f}".replace("-", "−")


def _values_table(curves: Sequence[Curve], unit: str, most: int = 100) -> Markup:
    """All values of the chart as a table that folds away, thinned to at most so many rounds."""
    values = [dict(curve.points) for curve in curves]
    rounds = thinned(sorted({at for known in values for at in known}), most)
    heads = ["Round", *(curve.label for curve in curves)]
    rows = [[str(at), *(_shown(known[at], unit) if at in known else NONE for known in values)] for at in rounds]
    table = element(
        "table",
        element("thead", element("tr", *(element("th", text, scope="col") for text in heads))),
        element(
            "tbody",
            *(element("tr", element("th", at, scope="row"), *(element("td", t) for t in texts)) for at, *texts in rows),
        ),
        class_="values",
    )
    return element("details", element("summary", "The values in numbers"), element("div", table, class_="scroll"))


def _draw(curves: list[Curve], size: Size, unit: str) -> Markup:
    factor = 100 if unit == "%" else 1
    room = min(LABEL_WIDTH * max(cell_len(curve.label) for curve in curves) + 18, 0.3 * size.width)
    y = value_axis(
        [factor * value for curve in curves for value in _values(curve)],
        start=size.height - 44,
        end=12,
        most_ticks=6,
        least_span=0.02 * factor,
        bounds=(0, 100) if unit == "%" else (-math.inf, math.inf),
    )
    x = round_axis(
        max(curve.points[-1][0] for curve in curves),
        start=margin_for(y, unit),
        end=size.width - room,
        most_ticks=size.most_rounds,
    )
    bands = [_band(curve, x, y, factor) for curve in curves if curve.band]
    lines = [_line(curve, x, y, unit) for curve in reversed(curves)]  # the leader on top
    return drawing(
        size,
        "curves",
        _spoken(curves, unit),
        frame(x, y, unit),
        element("line", class_="cursor", y1=y.end, y2=y.start),
        *bands,
        *lines,
        _end_labels(curves, x, y, room, factor),
        data_start=x.start,
        data_end=x.end,
        data_rounds=x.high,
    )


def _values(curve: Curve) -> list[float]:
    return [value for _, value in curve.points] + [value for _, *both in curve.band for value in both]


def _band(curve: Curve, x: Axis, y: Axis, factor: float) -> Markup:
    upper = [(at, high) for at, _, high in curve.band]
    lower = [(at, low) for at, low, _ in reversed(curve.band)]
    path = "L".join(f"{x.place(at):.1f} {y.place(factor * value):.1f}" for at, value in [*upper, *lower])
    return element("path", d=f"M{path}Z", class_=f"band {colour(curve.index)}")


def _line(curve: Curve, x: Axis, y: Axis, unit: str) -> Markup:
    factor = 100 if unit == "%" else 1
    places = [(x.place(at), y.place(factor * value)) for at, value in curve.points]
    path = "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in places)
    hits = (
        element(
            "circle",
            element("title", f"{curve.label}, round {at}: {_shown(value, unit)}"),
            cx=x.place(at),
            cy=y.place(factor * value),
            r=6,
            class_="hit",
        )
        for at, value in thinned(curve.points, MOST_HITS)
    )
    return element(
        "g",
        element("path", d=path, class_="line", stroke_dasharray=dash(curve.index)),
        element("circle", cx=places[-1][0], cy=places[-1][1], r=3, class_="dot"),
        *hits,
        class_=f"{colour(curve.index)}{' first' if curve.stands_out else ''}",
    )


def _end_labels(curves: list[Curve], x: Axis, y: Axis, room: float, factor: float) -> Markup:
    ends = [(x.place(at), y.place(factor * value)) for at, value in (each.points[-1] for each in curves)]
    if len(curves) > (y.start - y.end) / 10:
        return join()  # too many labels for the space; the legend names them
    heights = spread([top for _, top in ends], LABEL_GAP, y.end, y.start)
    most = round((room - 18) / LABEL_WIDTH)
    return join(
        *(
            _end_label(curve, end, (x.end + 14, height), most)
            for curve, end, height in zip(curves, ends, heights, strict=True)
        )
    )


def _end_label(curve: Curve, end: tuple[float, float], at: tuple[float, float], most: int) -> Markup:
    leader = f"M{end[0] + 4:.1f} {end[1]:.1f}L{at[0] - 3:.1f} {at[1]:.1f}"
    name = shortened(curve.label, most)
    return element(
        "g",
        element("path", d=leader, class_="leader"),
        element(
            "text",
            name,
            element("title", curve.label) if name != curve.label else None,
            x=at[0],
            y=at[1] + 4,
            class_="label",
        ),
        class_=f"{colour(curve.index)}{' first' if curve.stands_out else ''}",
    )


def shortened(text: str, most: int) -> str:
    """The text without its middle if it is too long: the names of runs often differ at the end."""
    keep, shown = len(text), text
    while cell_len(shown) > most and keep > 2:
        keep -= 1
        tail = (keep + 1) // 2
        shown = f"{text[: keep - tail]}…{text[len(text) - tail :]}"
    return shown


def _legend_item(curve: Curve) -> Markup:
    swatch = element(
        "svg",
        element("path", d="M1 5H27", class_="line", stroke_dasharray=dash(curve.index)),
        class_="swatch",
        viewBox="0 0 28 10",
        aria_hidden="true",
    )
    absent = None if curve.points else element("small", " no evaluation yet")
    return element("li", swatch, curve.label, absent, class_=colour(curve.index))


def _values_for_script(curves: list[Curve], unit: str) -> Markup:
    values = [
        {"label": curve.label, "colour": colour(curve.index), "unit": unit, "points": curve.points} for curve in curves
    ]
    # Inside a script element only `<` could end the data early; JSON may write it as \u003c.
    text = json.dumps(values, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')


def _spoken(curves: list[Curve], unit: str) -> str:
    ends = "; ".join(f"{each.label} {_shown(each.points[-1][1], unit)}" for each in curves)
    return f"{'Accuracy over' if unit == '%' else 'Over'} rounds. Last values: {ends}."
