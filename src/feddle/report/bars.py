"""The chart of the staleness of updates on arrival."""

from collections import Counter
from collections.abc import Sequence

from feddle.report.chart import Size, drawing, frame, margin_for
from feddle.report.markup import Markup, element
from feddle.report.scale import round_axis, value_axis

SIZES = (Size("wide", 720, 180, 8), Size("narrow", 350, 160, 4))


def staleness_chart(values: Sequence[int], caption: str) -> Markup:
    """A bar for each staleness; its height is the share of the updates."""
    counts = Counter(values)
    if not any(values):
        return element("p", f"{caption}: every update arrived in its own round.")
    mean, fresh = sum(values) / len(values), 100 * counts[0] / len(values)
    text = f"{caption}: {fresh:.0f} % in their own round, {mean:.1f} rounds late on average, {max(values)} at most."
    return element("figure", element("figcaption", text), *(_draw(counts, len(values), size, text) for size in SIZES))


def _draw(counts: Counter[int], total: int, size: Size, spoken: str) -> Markup:
    y = value_axis([0, *(100 * count / total for count in counts.values())], size.height - 44, 10, 4, 1, (0, 100))
    left = margin_for(y, "%")
    slot = (size.width - 12 - left) / (max(counts) + 1)  # a bar and the gap next to it
    x = round_axis(max(counts), left + slot / 2, size.width - 12 - slot / 2, size.most_rounds)
    width = max(1.0, 0.8 * slot)
    bars = []
    for late, count in sorted(counts.items()):
        title, top = element("title", f"{late} rounds late: {100 * count / total:.1f}%"), y.place(100 * count / total)
        at = {"x": x.place(late) - width / 2, "y": top, "width": width, "height": y.start - top}
        bars.append(element("rect", title, class_="bar", **at))
    return drawing(size, "bars", spoken, frame(x, y, "%", "rounds late", slot / 2), *bars)
