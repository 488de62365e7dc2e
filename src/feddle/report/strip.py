"""The chart of coefficients over rounds."""

from collections.abc import Sequence

from feddle.report.chart import Size, drawing, frame, margin_for
from feddle.report.markup import Markup, element
from feddle.report.records import Record, coefficient_rounds
from feddle.report.scale import Axis, round_axis, thinned, tick_text, value_axis
from feddle.report.summary import percent, summarise

SIZES = (Size("wide", 720, 220, 8), Size("narrow", 350, 200, 4))
MOST_HITS = 120

Rounds = list[tuple[int, list[float]]]


def coefficient_charts(records: Sequence[Record]) -> list[Markup]:
    """A figure for every run that searched for coefficients."""
    return [_figure(record, rounds, len(records) > 1) for record in records if (rounds := coefficient_rounds(record))]


def _figure(record: Record, rounds: Rounds, named: bool) -> Markup:
    share = percent(summarise(record).negative_share)
    return element(
        "figure",
        element(
            "figcaption",
            element("strong", record.label) if named else None,
            f"{': ' if named else ''}{share} of the coefficients are ",
            element("span", "negative", class_="below"),
            ".",
        ),
        *(_draw(record.label, rounds, share, size) for size in SIZES),
    )


def _draw(label: str, rounds: Rounds, share: str, size: Size) -> Markup:
    values = [value for _, found in rounds for value in found]
    y = value_axis([*values, 0.0], start=size.height - 44, end=10, most_ticks=4, least_span=0.01)

    def y_text(tick: float) -> str:
        return tick_text(tick, y.step)

    left = margin_for([y_text(tick) for tick in y.ticks])
    x = round_axis(rounds[-1][0], left, size.width - 12, size.most_rounds)
    zero = y.place(0.0)
    return drawing(
        size,
        "strip",
        f"Coefficients of {label} over rounds, {_range(values)}; {share} negative.",
        frame(x, y, y_text),
        element("line", x1=x.start, x2=x.end, y1=zero, y2=zero, class_="zero"),
        element("path", d=_dots(rounds, x, y, negative=False), class_="above"),
        element("path", d=_dots(rounds, x, y, negative=True), class_="below"),
        *(_hit(at, found, x, y) for at, found in thinned(rounds, MOST_HITS)),
    )


def _dots(rounds: Rounds, x: Axis, y: Axis, *, negative: bool) -> str:
    # One path of zero-length strokes with round caps; dots on the same pixel are drawn once, so that the
    # page stays small however many anchors and rounds there are.
    places = {
        (round(x.place(at)), round(y.place(value)))
        for at, found in rounds
        for value in found
        if (value < 0) is negative
    }
    return "".join(f"M{left} {top}h0" for left, top in sorted(places))


def _hit(at: int, found: list[float], x: Axis, y: Axis) -> Markup:
    below = sum(value < 0 for value in found)
    text = f"round {at}: {len(found)} coefficients, {below} negative, {_range(found)}"
    return element(
        "rect",
        element("title", text),
        x=x.place(at) - 3,
        y=y.end,
        width=6,
        height=y.start - y.end,
        class_="hit",
    )


def _range(values: Sequence[float]) -> str:
    return f"from {min(values):.3g} to {max(values):.3g}".replace("-", "−")
