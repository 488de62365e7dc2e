"""The figure of `scale.py`: four panels with one line each and logarithmic axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feddle.report.axes import Axis, Size, drawing
from feddle.report.markup import Markup, element, join

Points = Sequence[Mapping[str, Any]]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 360.0, 260.0, 44.0, 52.0, 16.0, 38.0
INSET = 24.0  # distance of the first and last point from the edges, as room for their values
STYLE = """
svg { --paper: #fbfaf7; --ink: #1d1f22; --quiet: #5b6067; --rule: #dcdad3; --faint: #e8e6df;
  --time: #0b4a94; --memory: #b34a00; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #16181b; --ink: #e8e7e3; --quiet: #a3a7ad; --rule: #3a3e44; --faint: #2a2d32;
    --time: #a9b8ff; --memory: #f0924f; }
}
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
.paper { fill: var(--paper); }
.title { font-size: 13px; font-weight: 600; }
.tick { fill: var(--quiet); }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.grid { stroke: var(--faint); }
.floor { stroke: var(--rule); }
.proportion { stroke: var(--quiet); stroke-dasharray: 2 4; }
path { fill: none; stroke-width: 2.25; stroke-linejoin: round; }
.value { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.time path { stroke: var(--time); } .time circle, .time text { fill: var(--time); }
.memory path { stroke: var(--memory); stroke-dasharray: 7 3; }
.memory circle, .memory text, tspan.memory { fill: var(--memory); }
"""


@dataclass(frozen=True)
class Panel:
    """The size that grows in a panel: its key in a point, and its name."""

    key: str
    title: str
    memory: bool = False

    @property
    def curves(self) -> tuple[str, ...]:
        """The quantities of a point that are drawn."""
        return ("memory", "time") if self.memory else ("time",)


PANELS = {
    "N": Panel("per_round", "N, clients a round"),
    "M": Panel("atlas_size", "M, anchors in the atlas"),
    "d": Panel("parameters", "d, parameters of the model"),
    "J": Panel("clients", "J, clients in all", memory=True),
}


def draw(lines: Mapping[str, Points]) -> str:
    """Write the four panels as an SVG file. `time` and `memory` of a point are relative to the base point."""
    values = [point[key] for name, points in lines.items() for point in points for key in PANELS[name].curves]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)) + 0.1)
    y = Axis(low, high, HEIGHT - BOTTOM, TOP, tuple(range(low, high + 1)), 1)
    size = Size("scale", 2 * WIDTH, 2 * HEIGHT, 0)
    panels = (
        element("g", _panel(PANELS[name], points, y), transform=f"translate({i % 2 * WIDTH:g} {i // 2 * HEIGHT:g})")
        for i, (name, points) in enumerate(lines.items())
    )
    paper = element("rect", width=size.width, height=size.height, class_="paper")
    style = element("style", Markup(STYLE))
    return (
        drawing(size, "panels", _description(lines), style, paper, *panels, xmlns="http://www.w3.org/2000/svg") + "\n"
    )


def _panel(panel: Panel, points: Points, y: Axis) -> Markup:
    at = [math.log2(point[panel.key]) for point in points]
    x = Axis(at[0], at[-1], LEFT + INSET, WIDTH - RIGHT - INSET, tuple(at), 1)
    base = next(place for place, point in zip(at, points, strict=True) if point["time"] == 1)
    return join(
        element("text", panel.title, x=LEFT, y=TOP - 24, class_="title"),
        *(_grid_line(y, tick) for tick in y.ticks),
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y.start, y2=y.start, class_="floor"),
        *(
            element("text", short(point[panel.key]), x=x.place(a), y=y.start + 18, class_="tick middle")
            for a, point in zip(at, points, strict=True)
        ),
        _proportion(x, y, base),
        *(_line(key, panel, points, x, y) for key in panel.curves),
        _names(panel),
    )


def _grid_line(y: Axis, tick: float) -> Markup:
    text = f"{2**tick:g}" if tick >= 0 else f"1/{2**-tick:g}"
    return join(
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y.place(tick), y2=y.place(tick), class_="grid"),
        element("text", text, x=LEFT - 8, y=y.place(tick) + 4, class_="tick end"),
    )


def _proportion(x: Axis, y: Axis, base: float) -> Markup:
    """The line of proportional growth through the base point, cut at the panel's edges."""
    first, last = max(x.low, base + y.low), min(x.high, base + y.high)
    return element(
        "line",
        x1=x.place(first),
        x2=x.place(last),
        y1=y.place(first - base),
        y2=y.place(last - base),
        class_="proportion",
    )


def _line(key: str, panel: Panel, points: Points, x: Axis, y: Axis) -> Markup:
    """A curve with the value written at each point: above it, or below it next to a larger curve."""
    places = [(x.place(math.log2(p[panel.key])), y.place(math.log2(p[key]))) for p in points]
    path = "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in places)
    others = [other for other in panel.curves if other != key]

    def below(point: Mapping[str, Any]) -> bool:
        return any(point[other] > point[key] or (point[other] == point[key] and key == "memory") for other in others)

    texts = (
        element("text", f"{point[key]:.2f}", x=left, y=top + (18 if below(point) else -10), class_="value middle")
        for point, (left, top) in zip(points, places, strict=True)
    )
    dots = (element("circle", cx=left, cy=top, r=3.5) for left, top in places)
    return element("g", element("path", d=path), *dots, *texts, class_=key)


def _names(panel: Panel) -> Markup:
    """The names of a panel's lines, in their colours, at the upper right."""
    memory = element("tspan", "  peak memory", class_="memory")
    names = element("text", "time", memory if panel.memory else None, x=WIDTH - RIGHT, y=TOP - 24, class_="end")
    return element("g", names, class_="time")


def short(value: float) -> str:
    """A size in short form: 500, 586k, 1.7M."""
    if value < 10_000:
        return f"{value:g}"
    return f"{value / 1e3:.0f}k" if value < 1e6 else f"{value / 1e6:.2g}M"


def _description(lines: Mapping[str, Points]) -> str:
    each = (
        f"{PANELS[name].title}: "
        + ", ".join(f"{short(point[PANELS[name].key])} takes {point['time']:.2f}" for point in points)
        for name, points in lines.items()
    )
    return "The time of a round relative to the base point. " + "; ".join(each) + "."
