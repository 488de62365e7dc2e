"""Axes, which map values to pixels and have ticks at round numbers; and the frames of all charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from feddle.report.markup import Markup, element, join

Item = TypeVar("Item")


@dataclass(frozen=True)
class Axis:
    """A linear map from the values `low..high` to the pixels `start..end`, with its ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    step: float

    def place(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True)
class Size:
    """One drawing of a chart. The page shows `wide` or `narrow`, so that text is readable on a phone."""

    name: str
    width: float
    height: float
    most_rounds: int


def round_axis(last: int, start: float, end: float, most_ticks: int) -> Axis:
    """An axis of rounds from 0 to the last, with ticks at whole numbers."""
    high = float(max(last, 1))
    step = max(1.0, _round_step(high / most_ticks))
    return Axis(0.0, high, start, end, _multiples(0.0, high, step), step)


def value_axis(
    values: Sequence[float],
    start: float,
    end: float,
    most_ticks: int,
    least_span: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Axis:
    """An axis that includes all values and ends at a tick or midway between two.

    It spans at least `least_span`. It does not exceed `bounds` unless a value does, so that no accuracy above 100% is
    shown.
    """
    low, high = min(values), max(values)
    spare = max(0.0, least_span - (high - low)) / 2
    low, high = max(low - spare, min(low, bounds[0])), min(high + spare, max(high, bounds[1]))
    step = _round_step((high - low) / most_ticks)
    half = step / 2
    bottom = math.floor(low / half + 1e-9) * half
    top = math.ceil(high / half - 1e-9) * half
    return Axis(bottom, top, start, end, _multiples(bottom, top, step), step)


def tick_text(value: float, step: float) -> str:
    """A tick's number with as many decimals as its step needs, and a true minus sign."""
    if not 1e-4 <= step < 1e5:
        return f"{value:g}".replace("-", "−")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value + 0.0:,.{decimals}f}".replace("-", "−")


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Every n-th item, including the last, so that there are at most `most`."""
    stride = max(1, math.ceil(len(items) / most))
    return list(items[::-1][::stride][::-1])


def drawing(size: Size, kind: str, spoken: str, *children: Markup, **attributes: str | float) -> Markup:
    """An SVG of that size; screen readers read `spoken`."""
    kind, box = f"{kind} {size.name}", f"0 0 {size.width:g} {size.height:g}"
    return element("svg", *children, class_=kind, viewBox=box, role="img", aria_label=spoken, **attributes)


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


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))
