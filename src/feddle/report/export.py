"""A grid's tables and figures as files for a paper."""

from collections.abc import Sequence
from pathlib import Path

from feddle.report.grids import GridRecord
from feddle.report.page import write_document
from feddle.report.records import distinct_names
from feddle.report.table_files import to_csv, to_latex, to_markdown

_TABLES = {"csv": ("csv", to_csv), "markdown": ("md", to_markdown), "latex": ("tex", to_latex)}


def export_all(grids: Sequence[GridRecord], formats: Sequence[str], folder: Path) -> list[Path]:
    """Write grids into one folder, each into files of its own, also where two are of the same table."""
    names = [str(grid.facts["grid"]) for grid in grids]
    places = [place.replace("/", "-") for place in distinct_names([grid.folder for grid in grids])]
    stems = [name if names.count(name) == 1 else f"{name}-{place}" for name, place in zip(names, places, strict=True)]
    return [path for grid, stem in zip(grids, stems, strict=True) for path in export(grid, formats, folder, stem)]


def export(grid: GridRecord, formats: Sequence[str], folder: Path, stem: str | None = None) -> list[Path]:
    """Write the grid in these formats into a folder: tables as one file, figures as one a setting."""
    written, stem = [], stem or str(grid.facts["grid"])
    for name in dict.fromkeys(formats):
        if name in _TABLES:
            ending, text = _TABLES[name]
            written.append(write_document(text(grid), folder / f"{stem}.{ending}"))
        else:
            from feddle.report.figures import draw

            written += draw(grid, folder, name, stem)
    return written
