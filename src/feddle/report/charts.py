"""The charts of a report: curves over rounds, and the staleness of updates."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from feddle.report.axes import Axis, Size, drawing, frame, margin_for, round_axis, thinned, value_axis
from feddle.report.markup import Markup, each, element, folded, join, table
from feddle.report.numbers import NONE, counted

COLOURS, DASHES = 6, 4  # `.s0` and `.d0` ff. in page.css; further lines repeat the colours with another dash pattern
_BEST = 10  # curves of a chart that has too many


def _sizes(wide: float, narrow: float) -> tuple[Size, Size]:
    """Both drawings of a chart, with these heights."""
    return Size("wide", 720, wide, 8), Size("narrow", 350, narrow, 4)


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
    is_level: bool = False  # a single value that belongs to no round, drawn as a line

    @property
    def kind(self) -> str:
        """The classes of its elements, for colour and dashes."""
        marks = (" first" if self.stands_out else "") + (" level" if self.is_level else "")
        return f"d{self.index // COLOURS % DASHES} s{self.index % COLOURS}{marks}"


def curve_chart(
    curves: Sequence[Curve], caption: str = "", unit: str = "%", chance: float | None = None, *, higher: bool = True
) -> Markup:
    """A legend, the curves in both sizes and their values as a table, highest last value first.

    `unit` is `%` or empty. Percentages start at 0, so that differences do not look larger than they are. `chance` is
    drawn as a line. Of more curves than there are styles, the best are drawn; `higher` says which values are better.
    """
    curves = sorted(curves, key=lambda curve: curve.points[-1][1], reverse=True)
    drawn = curves
    if len(curves) > COLOURS * DASHES:
        best = curves[:_BEST] if higher else curves[-_BEST:]
        drawn = [replace(curve, index=at) for at, curve in enumerate(best)]
        curves = [*best, *(curve for curve in curves if curve not in best)]  # page.js takes the first ones as drawn
        said = f"The best {_BEST} of {len(curves)} curves, by their last value; the table below has all values."
        caption = f"{caption}. {said}" if caption else said
    return element(
        "figure",
        element("figcaption", caption) if caption else None,
        element("ul", *map(_legend_item, drawn), class_="legend"),
        *(_draw_curves(drawn, size, unit, chance) for size in _sizes(380, 300)),
        element("div", class_="readout", hidden="hidden"),
        _values_table(curves, unit),
        class_="accuracy",
    )


def _shown(value: float, unit: str) -> str:
    return f"{value:.{1 if unit else 2}f}{unit}".replace("-", "−")


def _values_table(curves: Sequence[Curve], unit: str, most: int = 100) -> Markup:
    """The values of the chart as a table that can be unfolded, with at most `most` rounds. page.js reads it too."""
    values = [dict(curve.points) for curve in curves]
    rows = []
    for at in thinned(sorted({at for known in values for at in known}), most):
        texts = (_shown(known[at], unit) if at in known else NONE for known in values)
        rows.append(join(element("th", str(at), scope="row"), each("td", texts)))
    shown = table("values", ["Round", *(curve.label for curve in curves)], rows)
    return folded("Values as a table", element("div", shown, class_="scroll"))


def _draw_curves(curves: Sequence[Curve], size: Size, unit: str, chance: float | None) -> Markup:
    values = [0.0] if unit else []
    values += [value for curve in curves for _, *found in (*curve.points, *curve.band) for value in found]
    bounds = (0, 100) if unit else (-math.inf, math.inf)
    y = value_axis(values, size.height - 44, 12, most_ticks=6, least_span=2 if unit else 0.02, bounds=bounds)
    last = max(curve.points[-1][0] for curve in curves)
    x = round_axis(last, margin_for(y, unit), size.width - 12, size.most_rounds)
    ends = "; ".join(f"{curve.label} {_shown(curve.points[-1][1], unit)}" for curve in curves)
    return drawing(
        size,
        "curves",
        f"Values over rounds. Last values: {ends}.",
        frame(x, y, unit),
        *([] if chance is None else [_level(chance, x, y)]),
        element("line", class_="cursor", y1=y.end, y2=y.start),
        *(_band(curve, x, y) for curve in curves if curve.band),
        *(_line(curve, x, y) for curve in reversed(curves)),  # the first one on top
        data_start=x.start,
        data_end=x.end,
        data_rounds=x.high,
    )


def _level(chance: float, x: Axis, y: Axis) -> Markup:
    """The accuracy of a guess as a line, with its name at the right end."""
    at = y.place(chance)
    line = element("line", x1=x.start, x2=x.end, y1=at, y2=at, class_="chance")
    return join(line, element("text", f"chance {_shown(chance, '%')}", x=x.end, y=at + 14, class_="tick end"))


def _path(points: Sequence[tuple[int, float]], x: Axis, y: Axis) -> str:
    return "M" + "L".join(f"{x.place(at):.1f} {y.place(value):.1f}" for at, value in points)


def _band(curve: Curve, x: Axis, y: Axis) -> Markup:
    upper = [(at, high) for at, _, high in curve.band]
    lower = [(at, low) for at, low, _ in reversed(curve.band)]
    return element("path", d=f"{_path([*upper, *lower], x, y)}Z", class_=f"band {curve.kind}")


def _line(curve: Curve, x: Axis, y: Axis) -> Markup:
    at, value = curve.points[-1]
    if curve.is_level:
        return element(
            "g", element("path", d=_path([(0, value), (int(x.high), value)], x, y), class_="line"), class_=curve.kind
        )
    line = element("path", d=_path(curve.points, x, y), class_="line")
    end = element("circle", cx=x.place(at), cy=y.place(value), r=3, class_="dot")
    return element("g", line, end, class_=curve.kind)


def _legend_item(curve: Curve) -> Markup:
    line = element("path", d="M1 5H27", class_="line")
    swatch = element("svg", line, class_="swatch", viewBox="0 0 28 10", aria_hidden="true")
    return element("li", swatch, curve.label, class_=curve.kind)


def staleness_chart(values: Sequence[int], caption: str) -> Markup:
    """A bar for each staleness of updates on arrival; its height is the share of the updates."""
    shares = {late: 100 * count / len(values) for late, count in sorted(Counter(values).items())}
    if not any(values):
        return element("p", f"{caption}: every update arrived in its own round.")
    mean, fresh = sum(values) / len(values), shares.get(0, 0.0)
    text = f"{caption}: {fresh:.0f} % in their own round, {mean:.1f} rounds late on average, {max(values)} at most."
    return element(
        "figure", element("figcaption", text), *(_draw_bars(shares, size, text) for size in _sizes(180, 160))
    )


def _draw_bars(shares: dict[int, float], size: Size, spoken: str) -> Markup:
    y = value_axis([0, *shares.values()], size.height - 44, 10, 4, 1, (0, 100))
    left, most = margin_for(y, "%"), max(shares)
    slot = (size.width - 12 - left) / (most + 1)  # a bar and the gap next to it
    x = round_axis(most, left + slot / 2, size.width - 12 - slot / 2, size.most_rounds)
    width = max(1.0, 0.8 * slot)
    bars = []
    for late, share in shares.items():
        title, top = element("title", f"{counted(late, 'round')} late: {share:.1f}%"), y.place(share)
        at = {"x": x.place(late) - width / 2, "y": top, "width": width, "height": y.start - top}
        bars.append(element("rect", title, class_="bar", **at))
    return drawing(size, "bars", spoken, frame(x, y, "%", "rounds late", slot / 2), *bars)
