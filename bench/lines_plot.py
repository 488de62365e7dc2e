"""Draw curves over rounds as an SVG file: panels next to each other, the same lines in each, names on the right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scale_plot import STYLE

from feddle.report.axes import Axis, Size, drawing, round_axis, tick_text, value_axis
from feddle.report.markup import Markup, element, join

Curve = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 400.0, 280.0, 44.0, 44.0, 12.0, 44.0
NAMES = 150.0
LINES = """
.l0 path, .l0 circle { stroke: #0b4a94; } .l1 path, .l1 circle { stroke: #b34a00; }
.l2 path, .l2 circle { stroke: #17743f; } .l3 path, .l3 circle { stroke: #8a2a87; }
.l0 text { fill: #0b4a94; } .l1 text { fill: #b34a00; } .l2 text { fill: #17743f; } .l3 text { fill: #8a2a87; }
@media (prefers-color-scheme: dark) {
  .l0 path { stroke: #a9b8ff; } .l1 path { stroke: #f0924f; }
  .l2 path { stroke: #6fcf97; } .l3 path { stroke: #e59be2; }
  .l0 text { fill: #a9b8ff; } .l1 text { fill: #f0924f; } .l2 text { fill: #6fcf97; } .l3 text { fill: #e59be2; }
}
"""


@dataclass(frozen=True)
class Panel:
    """A title, and one curve per name."""

    title: str
    curves: Mapping[str, Curve]


def draw(panels: Sequence[Panel], description: str) -> str:
    """Write the panels as an SVG file."""
    size = Size("lines", WIDTH * len(panels) + NAMES, HEIGHT, 0)
    drawn = [
        element("g", _panel(panel, last=i == len(panels) - 1), transform=f"translate({i * WIDTH:g} 0)")
        for i, panel in enumerate(panels)
    ]
    paper = element("rect", width=size.width, height=size.height, class_="paper")
    style = element("style", Markup(STYLE + LINES))
    return drawing(size, "panels", description, style, paper, *drawn, xmlns="http://www.w3.org/2000/svg") + "\n"


def _panel(panel: Panel, *, last: bool) -> Markup:
    rounds = [x for curve in panel.curves.values() for x, _ in curve]
    values = [y for curve in panel.curves.values() for _, y in curve]
    x = round_axis(int(max(rounds)), LEFT, WIDTH - RIGHT, 6)
    y = value_axis(values, HEIGHT - BOTTOM, TOP, 5, 0.1)
    ends = [y.place(curve[-1][1]) for curve in panel.curves.values()]
    places = spread(ends, 16, TOP, HEIGHT - BOTTOM)
    return join(
        element("text", panel.title, x=LEFT, y=TOP - 20, class_="title"),
        *(_grid_line(y, tick) for tick in y.ticks),
        *(
            element("text", tick_text(tick, x.step), x=x.place(tick), y=y.start + 18, class_="tick middle")
            for tick in x.ticks
        ),
        element("text", "round", x=(x.start + x.end) / 2, y=y.start + 36, class_="tick middle"),
        *(
            element(
                "g",
                element("path", d="M" + "L".join(f"{x.place(a):.1f} {y.place(b):.1f}" for a, b in curve)),
                element("text", name, x=x.end + 8, y=place + 4) if last else None,
                class_=f"l{i}",
            )
            for i, ((name, curve), place) in enumerate(zip(panel.curves.items(), places, strict=True))
        ),
    )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels: as near to the wanted places as possible, `gap` apart, within `low..high` and in order.

    If not all of them fit, they are spaced evenly.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    # With the gaps subtracted, places must not decrease. Neighbours that do are placed at their mean.
    pools: list[list[float]] = []
    for position, index in enumerate(order):
        pools.append([wanted[index] - position * gap])
        while len(pools) > 1 and fmean(pools[-2]) >= fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    rising = [fmean(pool) for pool in pools for _ in pool]
    limit = high - gap * (len(wanted) - 1)
    placed = [0.0] * len(wanted)
    for position, index in enumerate(order):
        placed[index] = min(max(rising[position], low), limit) + position * gap
    return placed


def _grid_line(y: Axis, tick: float) -> Markup:
    return join(
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y.place(tick), y2=y.place(tick), class_="grid"),
        element("text", tick_text(tick, y.step), x=LEFT - 8, y=y.place(tick) + 4, class_="tick end"),
    )
