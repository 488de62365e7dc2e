"""Curves as PNG or PDF figures for a paper, with matplotlib."""

import re
from pathlib import Path
from textwrap import wrap
from typing import Any

from feddle.core.errors import FeddleError
from feddle.report.chart import COLOURS
from feddle.report.grid import Grid, Panel
from feddle.report.tables import footnotes, marks

_INK = ("#0b4a94", "#d0700f", "#147f46", "#8a3a66", "#1f8fef", "#9d1a05")  # the page's colours
_STYLES = ("-", "--", ":", "-.")


def draw(grid: Grid, folder: Path, ending: str, stem: str) -> list[Path]:
    """Draw accuracy over rounds, one figure for each setting with results."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FeddleError("figures need matplotlib; pip install 'feddle[figures]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for panel in grid.panels:
        for column, head in enumerate(panel.heads):
            figure = Figure(figsize=(5.2, 3.4), layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.add_subplot()
            if not _curves(axes, panel, column):
                continue
            axes.set(xlabel="round", ylabel="accuracy, %")
            axes.set_title(", ".join(filter(None, (panel.title, head))), fontsize=9)
            notes = "\n".join(line for text in footnotes(grid) for line in wrap(text, 110))
            figure.supxlabel(notes, fontsize=5)
            axes.legend(fontsize=7, ncols=2, frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
            name = re.sub(r"[^\w.+]+", "-", f"{stem}-{panel.title}-{head}").strip("-")
            figure.savefig(folder / f"{name}.{ending}", dpi=200)
            written.append(folder / f"{name}.{ending}")
    return written


def _curves(axes: Any, panel: Panel, column: int) -> bool:
    for index, (row, label) in enumerate(panel.rows.items()):
        cell = panel.at(row, column)
        points, band = ([], []) if cell is None else cell.curve()
        if cell is None or not points:
            continue
        ink, style = _INK[index % COLOURS], _STYLES[index // COLOURS % len(_STYLES)]
        rounds, values = zip(*points, strict=True)
        axes.plot(rounds, values, style, color=ink, lw=1.2, label=label + marks(cell))
        if band:
            axes.fill_between(*zip(*band, strict=True), color=ink, alpha=0.16, lw=0)
    return bool(axes.lines)
