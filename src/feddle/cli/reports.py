"""`feddle report`: runs and grids as a page, tables and figures."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from feddle.core.errors import FeddleError

if TYPE_CHECKING:
    from feddle.report.grids import GridRecord

FORMATS = ("csv", "markdown", "latex", "png", "pdf")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The page; by default report.html, of a grid in its folder."
)
@click.option(
    "--export", "formats", multiple=True, type=click.Choice(FORMATS), help="Of grids: also as tables or figures."
)
@click.option(
    "--target", type=click.FloatRange(0, 100), help="Of grids: what it costs to reach this accuracy, in per cent."
)
@click.option("--watch", is_flag=True, help="Of grids: write the page again as runs go on, until all are finished.")
def report(
    runs: tuple[Path, ...], out: Path | None, formats: tuple[str, ...], target: float | None, watch: bool
) -> None:
    """Compare RUNS (folders of `feddle run`, or of one or more `feddle reproduce`) on one page that opens offline."""
    from feddle.report.grids import is_grid

    grids = [folder for folder in runs if is_grid(folder)]
    if grids and len(grids) < len(runs):
        raise FeddleError("grids and single runs do not go on one page; name folders of one kind")
    if (watch or formats or target is not None) and not grids:
        raise FeddleError("--watch, --export and --target are for the folders that `feddle reproduce` wrote")
    page = out or (grids[0] / "report.html" if grids else Path("report.html"))
    if watch:
        _watch(runs, page, target)
    report_on(runs, page, formats, target)


def report_on(folders: Sequence[Path], page: Path, formats: Sequence[str] = (), target: float | None = None) -> None:
    """Print what came of runs or grids, and write the page."""
    from feddle.report.grids import is_grid

    if not is_grid(folders[0]):
        show_runs(folders, page)
        return
    from feddle.report.export import export_all
    from feddle.report.grid_page import grid_page
    from feddle.report.grids import read_grid
    from feddle.report.page import write_document

    grids = [read_grid(folder) for folder in folders]
    for grid in grids:
        _print_grid(grid)
    click.echo(f"Report: {write_document(grid_page(grids, None if target is None else target / 100), page)}")
    for path in export_all(grids, formats, page.parent):
        click.echo(f"Wrote {path}")


def show_runs(folders: Sequence[Path], page: Path) -> None:
    """Print the comparison of single runs, and write its page; runs that differ in their seed alone count as one."""
    from feddle.report.grid_page import grid_page
    from feddle.report.page import write_document, write_page
    from feddle.report.records import read_runs
    from feddle.report.seeds import over_seeds
    from feddle.report.table import summary_table
    from feddle.report.words import remarks

    records = read_runs(folders)
    seeds = over_seeds(records)
    if seeds is None:
        Console().print(summary_table(records))
    else:
        _print_grid(seeds)
    for record in records:
        for remark in remarks(record):
            click.echo(f"{record.label}: {remark}")
    written = write_page(records, page) if seeds is None else write_document(grid_page([seeds]), page)
    click.echo(f"Report: {written}")


def _print_grid(grid: "GridRecord") -> None:
    """The tables and the sentences of a grid on the terminal."""
    from feddle.report.belonging import warnings
    from feddle.report.grid_table import QUICK, footnotes, view
    from feddle.report.grid_words import lead
    from feddle.report.grids import row_words

    for panel in grid.panels:
        if not any(cell.runs for cell in panel.cells.values()):
            continue
        table = Table(box=SIMPLE_HEAD, title=panel.title, title_justify="left")
        table.add_column("")
        for words in panel.column_words:
            table.add_column(words, justify="right")
        for row in panel.rows:
            texts = [Text(row_words(grid, row))]
            for column in range(len(panel.columns)):
                seen = view(panel, row, column)
                style = "" if seen is None else " ".join(("bold",) * seen.best + ("underline",) * seen.above_center)
                texts.append(Text("–" if seen is None else seen.ours + seen.marks, style))
            table.add_row(*texts)
        Console().print(table)
    for text in (*footnotes(grid), *([QUICK] if grid.quick else []), *warnings(grid), *lead(grid)):
        click.echo(text)


def _watch(folders: Sequence[Path], page: Path, target: float | None, pause: float = 3.0) -> None:
    """Write the page again whenever something has changed, until every cell that is not left out is finished."""
    from feddle.report.grid_page import grid_page
    from feddle.report.grids import read_grid
    from feddle.report.page import write_document

    click.echo(f"Watching; open {page.resolve().as_uri()} (Ctrl-C stops watching, not the runs)", err=True)
    before = ""
    while True:
        grids = [read_grid(folder) for folder in folders]
        text = grid_page(grids, None if target is None else target / 100, live=True)
        if text != before:
            write_document(text, page)
            done, all_cells = _finished(grids)
            click.echo(f"{time.strftime('%H:%M:%S')}  {done} of {all_cells} cells finished", err=True)
            if done == all_cells:
                return
        before = text
        time.sleep(pause)


def _finished(grids: Sequence["GridRecord"]) -> tuple[int, int]:
    cells = [cell for grid in grids for cell in grid.cells if not cell.facts.get("left_out")]
    return sum(cell.is_final for cell in cells), len(cells)
