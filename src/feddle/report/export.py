"""A grid's tables and figures as files for a paper."""

from collections.abc import Sequence
from pathlib import Path

from feddle.report.grids import GridRecord
from feddle.report.page import write_document
from feddle.report.table_files import to_csv, to_latex, to_markdown

_TABLES = {"csv": ("csv", to_csv), "markdown": ("md", to_markdown), "latex": ("tex", to_latex)}


def export(grid: GridRecord, formats: Sequence[str], folder: Path) -> list[Path]:
    """Write the grid in these formats into a folder: tables as one file, figures as one a setting."""
    written = []
    for name in dict.fromkeys(formats):
        if name in _TABLES:
            ending, text = _TABLES[name]
            written.append(write_document(text(grid), folder / f"{grid.facts['grid']}.{ending}"))
        else:
            from feddle.report.figures import draw

            written += draw(grid, folder, name)
    return written
