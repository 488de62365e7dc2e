"""Curves as PNG or PDF figures for a paper, by matplotlib."""

import re
from pathlib import Path
from textwrap import wrap
from typing import Any

from feddle.core.errors import FeddleError
from feddle.report.chart import COLOURS
from feddle.report.grid_table import footnotes, view
from feddle.report.grids import GridRecord, Panel, mean_curve, row_words

_INK = ("#0b4a94", "#d0700f", "#147f46", "#8a3a66", "#1f8fef", "#9d1a05")  # as on the page, in daylight
_STYLES = ("-", "--", ":", "-.")


def draw(grid: GridRecord, folder: Path, ending: str, stem: str) -> list[Path]:
    """A figure of accuracy over rounds for each setting that has been run."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FeddleError("figures need matplotlib; pip install 'feddle[figures]'") from error
    written = []
    for panel in grid.panels:
        for column, words in enumerate(panel.column_words):
            figure = Figure(figsize=(5.2, 3.4), layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.add_subplot()
            if not _curves(axes, grid, panel, column):
                continue
            axes.set_xlabel("round")
            axes.set_ylabel("accuracy, %")
            axes.set_title(f"{panel.title}, {words}", fontsize=9)
            notes = "\n".join(line for text in footnotes(grid) for line in wrap(text, 110))
            figure.supxlabel(notes, fontsize=5)
            axes.legend(fontsize=7, ncols=2, frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
            name = re.sub(r"[^\w.+]+", "-", f"{stem}-{panel.title}-{words}").strip("-")
            path = folder / f"{name}.{ending}"
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=200)
            written.append(path)
    return written


def _curves(axes: Any, grid: GridRecord, panel: Panel, column: int) -> bool:
    drawn = False
    for index, row in enumerate(panel.rows):
        cell = panel.at(row, column)
        points, band = ([], []) if cell is None or not cell.runs else mean_curve(cell)
        if not points:
            continue
        seen = view(panel, row, column)
        marks = "" if seen is None else seen.marks
        ink, style = _INK[index % COLOURS], _STYLES[index // COLOURS % len(_STYLES)]
        axes.plot(
            [at for at, _ in points],
            [100 * v for _, v in points],
            style,
            color=ink,
            lw=1.2,
            label=row_words(grid, row) + marks,
        )
        if band:
            low, high = ([100 * entry[i] for entry in band] for i in (1, 2))
            axes.fill_between([at for at, *_ in band], low, high, color=ink, alpha=0.16, lw=0)
        drawn = True
    return drawn
