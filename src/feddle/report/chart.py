"""Sizes, frames and line styles of all charts."""

from dataclasses import dataclass

from feddle.report.markup import Markup, element, join
from feddle.report.scale import Axis, tick_text

COLOURS = 6  # `.s0` to `.s5` in page.css; further lines repeat them with another dash pattern.
DASHES = (None, "7 3", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Size:
    """One drawing of a chart. The page shows `wide` or `narrow`, so that text is readable on a phone."""

    name: str
    width: float
    height: float
    most_rounds: int


def colour(index: int) -> str:
    """The class for the colour of the n-th line."""
    return f"s{index % COLOURS}"


def dash(index: int) -> str | None:
    """The dash pattern of the n-th line."""
    return DASHES[index // COLOURS % len(DASHES)]


def drawing(size: Size, kind: str, spoken: str, *children: Markup, **attributes: str | float) -> Markup:
    """An SVG of that size; screen readers read `spoken`."""
    return element(
        "svg",
        *children,
        class_=f"{kind} {size.name}",
        viewBox=f"0 0 {size.width:g} {size.height:g}",
        role="img",
        aria_label=spoken,
        **attributes,
    )


def frame(x: Axis, y: Axis, unit: str = "", word: str = "round", pad: float = 0.0) -> Markup:
    """Grid lines, the ticks of both axes and the name of the horizontal one; lines extend `pad` beyond it."""
    left, right, bottom = x.start - pad, x.end + pad, y.start
    marks = []
    for tick in y.ticks:
        at = y.place(tick)
        marks.append(element("line", x1=left, x2=right, y1=at, y2=at, class_="grid"))
        marks.append(element("text", tick_text(tick, y.step) + unit, x=left - 8, y=at + 4, class_="tick end"))
    marks.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="floor"))
    for tick in x.ticks:
        marks.append(element("text", tick_text(tick, x.step), x=x.place(tick), y=bottom + 18, class_="tick middle"))
    return join(*marks, element("text", word, x=(left + right) / 2, y=bottom + 36, class_="tick middle"))


def margin_for(y: Axis, unit: str = "") -> float:
    """Width of the longest tick text of a vertical axis, in pixels."""
    return 8.0 * max(len(tick_text(tick, y.step) + unit) for tick in y.ticks) + 10
