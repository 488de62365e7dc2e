"""The chart of coefficients over rounds."""

from collections.abc import Sequence

from feddle.records import RunRecord
from feddle.report.chart import Size, drawing, frame, margin_for
from feddle.report.markup import Markup, element
from feddle.report.numbers import percent
from feddle.report.scale import Axis, round_axis, thinned, value_axis

SIZES = (Size("wide", 720, 220, 8), Size("narrow", 350, 200, 4))
MOST_HITS = 120

Rounds = list[tuple[int, list[float]]]


def coefficient_chart(run: RunRecord, title: str) -> Markup:
    """The coefficients of a run with a search."""
    share = percent(run.negative_share)
    negative = element("span", "negative", class_="below")
    caption = element("figcaption", element("strong", title), f": {share} of the coefficients are ", negative, ".")
    return element("figure", caption, *(_draw(title, run.coefficients, share, size) for size in SIZES))


def _draw(label: str, rounds: Rounds, share: str, size: Size) -> Markup:
    values = [value for _, found in rounds for value in found]
    y = value_axis([*values, 0.0], start=size.height - 44, end=10, most_ticks=4, least_span=0.01)
    x = round_axis(rounds[-1][0], margin_for(y), size.width - 12, size.most_rounds)
    zero = y.place(0.0)
    return drawing(
        size,
        "strip",
        f"Coefficients of {label} over rounds, {_range(values)}; {share} negative.",
        frame(x, y),
        element("line", x1=x.start, x2=x.end, y1=zero, y2=zero, class_="zero"),
        element("path", d=_dots(rounds, x, y, negative=False), class_="above"),
        element("path", d=_dots(rounds, x, y, negative=True), class_="below"),
        *(_hit(at, found, x, y) for at, found in thinned(rounds, MOST_HITS)),
    )


def _dots(rounds: Rounds, x: Axis, y: Axis, *, negative: bool) -> str:
    # One path of zero-length strokes with round caps. Dots on the same pixel are drawn once, to keep the page small.
    values = ((at, value) for at, found in rounds for value in found if (value < 0) is negative)
    places = {(round(x.place(at)), round(y.place(value))) for at, value in values}
    return "".join(f"M{left} {top}h0" for left, top in sorted(places))


def _hit(at: int, found: list[float], x: Axis, y: Axis) -> Markup:
    below = sum(value < 0 for value in found)
    title = element("title", f"round {at}: {len(found)} coefficients, {below} negative, {_range(found)}")
    return element("rect", title, x=x.place(at) - 3, y=y.end, width=6, height=y.start - y.end, class_="hit")


def _range(values: Sequence[float]) -> str:
    return f"from {min(values):.3g} to {max(values):.3g}".replace("-", "−")
