"""`feddle reproduce`: a table or figure of the paper as a grid of runs."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from feddle.cli.grid_display import GridDisplay
from feddle.cli.reports import report_on
from feddle.core.errors import FeddleError
from feddle.data.source import Source
from feddle.report.numbers import duration

if TYPE_CHECKING:  # these import torch, which takes a second or two
    from feddle.grids.cells import Ended
    from feddle.grids.grid import Cell, Grid
    from feddle.grids.plan import Planned
    from feddle.run.trackers import TrackerName


track_option = click.option(
    "--track",
    multiple=True,
    type=click.Choice(["tensorboard", "mlflow"]),
    help="Also report every round to this tool.",
)


@dataclass(frozen=True)
class Order:
    """The options of the command."""

    overrides: Sequence[str]
    seeds: Sequence[int]
    jobs: int | None
    out: Path
    quick: bool
    quiet: bool
    track: tuple["TrackerName", ...]


@click.command()
@click.argument("table", required=False)
@click.option(
    "--list", "listing", is_flag=True, help="List the tables, or the cells of TABLE with an estimate of the time."
)
@click.option(
    "--cells",
    multiple=True,
    metavar="TEXT",
    help="Only cells whose name has this between slashes (cifar10, dir0.1/sigma20), else anywhere; may be repeated.",
)
@click.option("--methods", default="", help="Only these rows, separated by commas.")
@click.option("--seeds", default="0", show_default=True, help="The seeds, separated by commas; the paper has three.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time; by default one for each core.")
@click.option("--quick", is_flag=True, help="A small network and few rounds: takes minutes, and is not a result.")
@click.option(
    "-o",
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key in every cell: -o data.folder=DIR",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="The grid's folder; by default runs/TABLE (quick: -quick)."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress display.")
@track_option
def reproduce(
    table: str | None,
    listing: bool,
    cells: tuple[str, ...],
    methods: str,
    seeds: str,
    jobs: int | None,
    quick: bool,
    overrides: tuple[str, ...],
    out: Path | None,
    quiet: bool,
    track: tuple["TrackerName", ...],
) -> None:
    """Run the cells of TABLE, a table or figure of the paper, and show the results.

    Finished runs are never run again. To continue stopped runs, give the same command again.
    """
    from feddle.grids.grid import chosen, load_grid

    if table is None:
        _list_tables()
        return
    if table == "server-cost":
        from feddle.cli.server_cost import show_server_cost

        show_server_cost(out or Path("runs/server-cost"), listing=listing)
        return
    grid = load_grid(table, quick=quick)
    picked = chosen(grid, cells, [name.strip() for name in methods.split(",") if name.strip()])
    out = out or Path("runs") / (table + ("-quick" if quick else ""))
    order = Order(overrides, _seeds(seeds), jobs, out, quick, quiet, track)
    if listing:
        _list_cells(grid, picked, order)
    else:
        _run(grid, picked, order)


def _seeds(text: str) -> list[int]:
    try:
        seeds = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise FeddleError(f"--seeds takes whole numbers separated by commas, such as 0,1,2, got {text!r}") from error
    if min(seeds) < 0:
        raise FeddleError(f"--seeds takes numbers from 0 up, got {min(seeds)}")
    return seeds


def _run(grid: "Grid", picked: Sequence["Cell"], order: Order) -> None:
    """Run the cells that are not finished, keep the grid's record, then report."""
    from feddle.grids import runner
    from feddle.grids.cells import is_done

    out = order.out
    runner.open_folder(out, grid, quick=order.quick)
    command = shlex.join(["feddle", *sys.argv[1:]])
    planned = _fetched(_planned(picked, order), quiet=order.quiet)
    planned, conflicts = runner.without_conflicts(planned, out)
    count = len(order.seeds) * sum(each.config is not None for each in planned)
    jobs = min(order.jobs or runner.cores(), max(count, 1))
    spare = runner.cores() // jobs
    tasks = runner.tasks_of(planned, order.seeds, out, spare if spare > 1 else 0, order.track)
    runner.keep(out, grid, planned, quick=order.quick, command=command)
    _report_left_out(planned)
    for text in conflicts:
        click.echo(text, err=True)
    waiting = [task for task in tasks if not is_done(task)]
    failed: dict[str, Ended] = {}
    try:
        if waiting:
            rounds = sum(task.config.rounds for task in waiting)
            with GridDisplay(len(tasks), len(tasks) - len(waiting), rounds, quiet=order.quiet) as display:
                failed = runner.run_tasks(waiting, jobs, display)
    except KeyboardInterrupt:
        click.echo(f"feddle: interrupted; the runs so far are in {out}; the same command continues them", err=True)
        sys.exit(130)
    known = runner.with_reasons(planned, failed, tasks)
    runner.keep(out, grid, known, quick=order.quick, command=command)
    _report(failed, out)


def _planned(picked: Sequence["Cell"], order: Order) -> list["Planned"]:
    """The cells as they can be run here; an override that no cell accepts is an error."""
    from feddle.grids.plan import plan

    planned = [plan(cell, order.overrides) for cell in picked]
    if all(each.refused for each in planned):
        raise FeddleError(f"-o: {planned[0].reason}")
    return planned


def _report(failed: "dict[str, Ended]", out: Path) -> None:
    """Show the results; the command fails if a run did not finish."""
    for label, ended in failed.items():
        if ended.details:
            click.echo(f"{label}:\n{ended.details}", err=True)
    report_on([out], out / "report.html")
    stopped = sum(ended.begun for ended in failed.values())
    if stopped:
        raise FeddleError(f"{stopped} of the runs did not finish, see above; the same command tries again")


def _fetched(planned: Sequence["Planned"], *, quiet: bool) -> list["Planned"]:
    """Fetch data and weights before the display starts; a cell is left out if that fails."""
    from feddle.grids.plan import sources_of

    reasons: dict[Source[Any], str] = {}
    for source in dict.fromkeys(source for each in planned for source in sources_of(each)):
        try:
            source.fetch(quiet=quiet)
        except FeddleError as error:
            reasons[source] = str(error)
    result = []
    for each in planned:
        reason = next((reasons[source] for source in sources_of(each) if source in reasons), "")
        result.append(replace(each, config=None, reason=reason) if reason else each)
    return result


def _report_left_out(planned: Sequence["Planned"]) -> None:
    reasons: dict[str, int] = {}
    for each in planned:
        if each.reason:
            reasons[each.reason] = reasons.get(each.reason, 0) + 1
    for reason, count in reasons.items():
        click.echo(f"left out, {count} {'cell' if count == 1 else 'cells'}: {reason}", err=True)
    for text in dict.fromkeys(each.substitute for each in planned if each.substitute and not each.reason):
        click.echo(f"substitute: {text}", err=True)


def _list_tables() -> None:
    from feddle.grids.grid import load_grid, names
    from feddle.grids.plan import plan

    table = Table("table", "what it shows", "cells", "here", box=None, pad_edge=False)
    for name in names():
        grid = load_grid(name)
        here = sum(plan(cell).config is not None for cell in grid.cells)
        table.add_row(name, grid.title, str(len(grid.cells)), str(here))
    table.add_row("server-cost", "What a round costs the server", "8", "8")
    Console().print(table)
    click.echo(
        "here: cells whose data and model are available on this machine; `feddle reproduce TABLE --list` has details"
    )


def _list_cells(grid: "Grid", picked: Sequence["Cell"], order: Order) -> None:
    from feddle.grids.estimate import core_seconds
    from feddle.grids.grid import glossary
    from feddle.grids.runner import cores

    every = _planned(picked, order)
    click.echo(f"{grid.title}. {grid.note}".rstrip())
    if meanings := glossary(grid):
        click.echo("In the names " + ", ".join(f"{short} is {words}" for short, words in meanings.items()) + ".")
    table = Table("cell", "paper", "one core", "note", box=None, pad_edge=False)
    notes: dict[str, int] = {}
    total, runs = 0.0, 0
    for planned in every:
        cell, reason, seconds = planned.cell, planned.reason, None
        try:
            seconds = core_seconds(planned)
        except FeddleError as error:  # its model cannot be built here
            reason = str(error)
        if seconds is not None:
            total, runs = total + len(order.seeds) * seconds, runs + len(order.seeds)
        said = "" if cell.paper is None else f"{cell.paper[0]:.1f} ± {cell.paper[1]:.1f}"
        note = f"left out: {reason}" if reason else planned.substitute
        number = f"({notes.setdefault(note, len(notes) + 1)})" if note else ""
        table.add_row(Text(cell.name), said, duration(seconds), number)
    Console().print(table)
    for note, place in notes.items():
        click.echo(f"({place}) {note}")
    at_once = min(order.jobs or cores(), max(runs, 1))
    estimate = duration(total / at_once)
    click.echo(f"{runs} runs, about {estimate} with {at_once} at a time, by a short measurement on this machine")
