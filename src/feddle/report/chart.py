"""What both charts share: sizes, frame and line styles."""

from collections.abc import Callable
from dataclasses import dataclass

from feddle.report.markup import Markup, element, join
from feddle.report.scale import Axis, tick_text

COLOURS = 6  # `.s0` to `.s5` in page.css; further runs repeat them with another dash.
DASHES = (None, "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Size:
    """One drawing of a chart: the page shows `wide` or `narrow`, so that text keeps its size on a phone."""

    name: str
    width: float
    height: float
    most_rounds: int


def colour(index: int) -> str:
    """The class that gives the n-th run its colour."""
    return f"s{index % COLOURS}"


def dash(index: int) -> str | None:
    """The dash pattern of the n-th run."""
    return DASHES[index // COLOURS % len(DASHES)]


def drawing(size: Size, kind: str, spoken: str, *children: Markup, **attributes: str | float) -> Markup:
    """An SVG of that size; `spoken` is read out in its place."""
    return element(
        "svg",
        *children,
        class_=f"{kind} {size.name}",
        viewBox=f"0 0 {size.width:g} {size.height:g}",
        role="img",
        aria_label=spoken,
        **attributes,
    )


def frame(x: Axis, y: Axis, y_text: Callable[[float], str]) -> Markup:
    """Quiet grid lines, the ticks of both axes and the word `round`."""
    grid = [_grid_line(x, y.place(tick), y_text(tick)) for tick in y.ticks]
    ticks = [
        element("text", tick_text(tick, x.step), x=x.place(tick), y=y.start + 18, class_="tick middle")
        for tick in x.ticks
    ]
    word = element("text", "round", x=(x.start + x.end) / 2, y=y.start + 36, class_="tick middle")
    floor = element("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="floor")
    return join(*grid, floor, *ticks, word)


def margin_for(texts: list[str]) -> float:
    """Room for the longest of these tick texts, in pixels."""
    return 8.0 * max(map(len, texts)) + 10


def _grid_line(x: Axis, at: float, text: str) -> Markup:
    return join(
        element("line", x1=x.start, x2=x.end, y1=at, y2=at, class_="grid"),
        element("text", text, x=x.start - 8, y=at + 4, class_="tick end"),
    )
