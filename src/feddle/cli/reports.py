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

from feddle.records import REPORT

if TYPE_CHECKING:
    from feddle.report.grid import Grid, Panel

FORMATS = ("csv", "markdown", "latex", "png", "pdf")
_NARROW = ("MB up", "MB down")  # columns of the page that a terminal has no room for


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="The page; by default report.html, of a grid in its folder."
)
@click.option("--export", "formats", multiple=True, type=click.Choice(FORMATS), help="Also write tables or figures.")
@click.option("--target", type=click.FloatRange(0, 100), help="Show the cost to reach this accuracy, in per cent.")
@click.option("--watch", is_flag=True, help="Update the page while runs continue, until all are finished.")
def report(
    runs: tuple[Path, ...], out: Path | None, formats: tuple[str, ...], target: float | None, watch: bool
) -> None:
    """Compare RUNS (folders of `feddle run`, or of one or more `feddle reproduce`) on one page that opens offline."""
    from feddle.report.grid import is_grid

    page = out or (runs[0] / REPORT if is_grid(runs[0]) else Path(REPORT))
    accuracy = None if target is None else target / 100
    if watch:
        _watch(runs, page, accuracy)
    report_on(runs, page, formats, accuracy)


def report_on(folders: Sequence[Path], page: Path, formats: Sequence[str] = (), target: float | None = None) -> None:
    """Print the results of runs or grids, and write the page."""
    from feddle.report import files
    from feddle.report import page as pages
    from feddle.report.grid import read_grids

    grids = read_grids(folders)
    for grid in grids:
        print_grid(grid)
    click.echo(f"Report: {pages.write_document(pages.page(grids, target), page)}")
    for path in files.export(grids, formats, page.parent):
        click.echo(f"Wrote {path}")


def print_grid(grid: "Grid") -> None:
    """Print the tables and the sentences of a grid."""
    from feddle.report.setting import remarks
    from feddle.report.tables import QUICK, footnotes
    from feddle.report.warnings import warnings
    from feddle.report.words import lead

    for panel in grid.panels:
        if panel.runs:
            Console().print(terminal_table(grid, panel))
    for cell in grid.cells:
        for remark in dict.fromkeys(text for run in cell.runs for text in remarks(run)):
            click.echo(f"{cell.name}: {remark}")
    sentences = lead(grid) if "title" in grid.record else []  # the table of single runs says it all
    for text in (*footnotes(grid), *([QUICK] if grid.quick else []), *warnings(grid), *sentences):
        click.echo(text)


def terminal_table(grid: "Grid", panel: "Panel") -> Table:
    """The results of a panel, readable at 80 columns if it has one column."""
    from feddle.report.tables import results

    table = results(grid, panel)
    heads = [head for head in table.headings if head not in _NARROW]
    shown = Table(box=SIMPLE_HEAD, title=panel.title or None, title_justify="left", caption_justify="left")
    shown.caption = "Accuracy: best of the last five evaluations."
    shown.add_column(table.label, overflow="fold")
    for head in heads:
        shown.add_column(head, justify="right", no_wrap=len(heads) < 6 and len(head) < 12)
    for row in table.rows:
        # Text, not markup: a folder may be called `[red]`.
        label = Text(row.label, "bold" if row.best else "")
        if row.status:
            label.append(f" ({row.status})", "dim not bold")
        texts = []
        for entry in row.entries:
            style = " ".join(("bold",) * entry.best + ("underline",) * entry.above_center)
            texts += [Text(entry.text + entry.marks, style)] * entry.span if entry.heading not in _NARROW else []
        shown.add_row(label, *texts)
    return shown


def _watch(folders: Sequence[Path], page: Path, target: float | None, pause: float = 3.0) -> None:
    """Write the page again after every change, until every cell that is not left out is finished."""
    from feddle.report import page as pages
    from feddle.report.grid import read_grids

    click.echo(f"Watching; open {page.resolve().as_uri()} (Ctrl-C stops watching, not the runs)", err=True)
    before = ""
    while True:
        grids = read_grids(folders)
        text = pages.page(grids, target, live=True)
        if text != before:
            pages.write_document(text, page)
            cells = [cell for grid in grids for cell in grid.cells if not cell.entry.get("left_out")]
            done = sum(cell.is_final for cell in cells)
            click.echo(f"{time.strftime('%H:%M:%S')}  {done} of {len(cells)} cells finished", err=True)
            if done == len(cells):
                return
        before = text
        time.sleep(pause)
