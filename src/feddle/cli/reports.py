"""`feddle report`: runs and grids as a page, tables and figures."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from feddle.cli.options import PATH
from feddle.records import REPORT
from feddle.report.files import export
from feddle.report.grid import Grid, Panel, is_grid, read_grids
from feddle.report.page import page as page_of
from feddle.report.page import write_document
from feddle.report.setting import remarks
from feddle.report.tables import QUICK, footnotes, results
from feddle.report.warnings import warnings
from feddle.report.words import lead

FORMATS = ("csv", "markdown", "latex", "png", "pdf")
_NARROW = ("MB up", "MB down")  # columns of the page that a terminal has no room for


@click.command()
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--out", type=PATH, help="The page. By default report.html, in the folder of a grid if RUNS has one.")
@click.option("--export", "formats", multiple=True, type=click.Choice(FORMATS), help="Also write tables or figures.")
@click.option("--target", type=click.FloatRange(0, 100), help="Show the cost to reach this accuracy, in per cent.")
@click.option("--watch", is_flag=True, help="Update the page while runs continue, until all are finished.")
def report(
    runs: tuple[Path, ...], out: Path | None, formats: tuple[str, ...], target: float | None, watch: bool
) -> None:
    """Compare RUNS (folders of `feddle run` or `feddle reproduce`) on one page that opens offline."""
    page = out or (runs[0] / REPORT if is_grid(runs[0]) else Path(REPORT))
    accuracy = None if target is None else target / 100
    if watch:
        _watch(runs, page, accuracy)
    report_on(runs, page, formats, accuracy)


def report_on(folders: Sequence[Path], page: Path, formats: Sequence[str] = (), target: float | None = None) -> None:
    """Print the results of runs or grids, and write the page."""
    grids = read_grids(folders)
    for grid in grids:
        print_grid(grid)
    click.echo(f"Report: {write_document(page_of(grids, target), page)}")
    for path in export(grids, formats, page.parent):
        click.echo(f"Wrote {path}")


def print_grid(grid: Grid) -> None:
    """Print the tables and the sentences of a grid."""
    for panel in grid.panels:
        if panel.runs:
            Console().print(terminal_table(grid, panel))
    for cell in grid.cells:
        for remark in dict.fromkeys(text for run in cell.runs for text in remarks(run)):
            click.echo(f"{cell.name}: {remark}")
    sentences = lead(grid) if "title" in grid.record else []  # for single runs the table is enough
    for text in (*footnotes(grid), *([QUICK] if grid.quick else []), *warnings(grid), *sentences):
        click.echo(text)


def terminal_table(grid: Grid, panel: Panel) -> Table:
    """The results of a panel; a panel with one column fits 80 characters."""
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
    click.echo(f"Watching; open {page.resolve().as_uri()} (Ctrl-C stops watching, not the runs)", err=True)
    before = ""
    while True:
        grids = read_grids(folders)
        text = page_of(grids, target, live=True)
        if text != before:
            write_document(text, page)
            cells = [cell for grid in grids for cell in grid.cells if not cell.entry.get("left_out")]
            done = sum(cell.is_final for cell in cells)
            click.echo(f"{time.strftime('%H:%M:%S')}  {done} of {len(cells)} cells finished", err=True)
            if done == len(cells):
                return
        before = text
        time.sleep(pause)
