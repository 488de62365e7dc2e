"""`feddle report`: runs and grids as a page, tables and figures."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from feddle.cli.display import print_grid
from feddle.cli.options import PATH
from feddle.records import REPORT
from feddle.report.files import export
from feddle.report.grid import is_grid, read_grids
from feddle.report.page import page, write_document

FORMATS = ("csv", "markdown", "latex", "png", "pdf")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option(
    "--out",
    type=PATH,
    help="File of the page. By default report.html, in the folder of a grid if RUNS starts with one.",
)
@click.option("--export", "formats", multiple=True, type=click.Choice(FORMATS), help="Also write tables or figures.")
@click.option("--target", type=click.FloatRange(0, 100), help="Show the cost to reach this accuracy, in per cent.")
@click.option("--watch", is_flag=True, help="Update the page while runs continue, until all are finished.")
def report(
    runs: tuple[Path, ...], out: Path | None, formats: tuple[str, ...], target: float | None, watch: bool
) -> None:
    """Compare RUNS (folders of `feddle run` or `feddle reproduce`) on one page that opens offline."""
    place = out or (runs[0] / REPORT if is_grid(runs[0]) else Path(REPORT))
    accuracy = None if target is None else target / 100
    if watch:
        _watch(runs, place, accuracy)
    report_on(runs, place, formats, accuracy)


def report_on(folders: Sequence[Path], place: Path, formats: Sequence[str] = (), target: float | None = None) -> None:
    """Print the results of runs or grids, and write the page."""
    grids = read_grids(folders)
    for grid in grids:
        print_grid(grid)
    click.echo(f"Report: {write_document(page(grids, target), place)}")
    for path in export(grids, formats, place.parent):
        click.echo(f"Wrote {path}")


def _watch(folders: Sequence[Path], place: Path, target: float | None, pause: float = 3.0) -> None:
    """Write the page again after every change, until every cell that is not left out is finished."""
    click.echo(f"Watching; open {place.resolve().as_uri()} (Ctrl-C stops watching, not the runs)", err=True)
    before = ""
    while True:
        grids = read_grids(folders)
        text = page(grids, target, live=True)
        if text != before:
            write_document(text, place)
            cells = [cell for grid in grids for cell in grid.cells if not cell.entry.get("left_out")]
            done = sum(cell.is_final for cell in cells)
            click.echo(f"{time.strftime('%H:%M:%S')}  {done} of {len(cells)} cells finished", err=True)
            if done == len(cells):
                return
        before = text
        time.sleep(pause)
