"""`feddle reproduce`: a table or figure of the paper as a grid of runs."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feddle.cli.display import GridDisplay, error_line, print_table, stop
from feddle.cli.options import PATH, names_in, overrides_option, quiet_option, track_option
from feddle.cli.reports import report_on
from feddle.core.errors import FeddleError
from feddle.data.source import Source
from feddle.records import REPORT
from feddle.report.numbers import counted, duration

if TYPE_CHECKING:  # these import torch, which takes a second or two
    from feddle.grids.cells import Ended, Planned, Task
    from feddle.grids.grid import Cell, Grid
    from feddle.run.trackers import TrackerName


@dataclass(frozen=True)
class Order:
    """The options of the command that say how to run the cells."""

    seeds: Sequence[int]
    overrides: Sequence[str]
    jobs: int | None
    quick: bool
    quiet: bool
    track: tuple["TrackerName", ...]


def _seeds(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    try:
        seeds = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise FeddleError(f"--seeds: expected whole numbers such as 0,1,2, but found {text!r}") from error
    if min(seeds) < 0:
        raise FeddleError(f"--seeds: expected numbers from 0 up, but found {min(seeds)}")
    return seeds


@click.command()
@click.argument("table", required=False)
@click.option("--list", "listing", is_flag=True, help="List the tables, or the cells of TABLE with their time.")
@click.option("--cells", multiple=True, metavar="TEXT", help="Only cells whose name has this part.")
@click.option("--methods", default="", help="Only these rows, separated by commas.")
@click.option("--seeds", default="0", show_default=True, callback=_seeds, help="Seeds; the paper has three (0,1,2).")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of runs at a time. By default one for each core.")
@click.option("--quick", is_flag=True, help="A small network and few rounds: takes minutes, but gives no result.")
@overrides_option
@click.option("--out", type=PATH, help="The folder of the grid. By default runs/TABLE, or runs/TABLE-quick.")
@quiet_option
@track_option
def reproduce(
    table: str | None, listing: bool, cells: tuple[str, ...], methods: str, out: Path | None, **options: Any
) -> None:
    """Run the cells of TABLE, a table or figure of the paper, and show the results.

    Finished runs are never run again. To continue stopped runs, give the same command again.
    """
    from feddle.grids.grid import chosen, load_grid

    if table is None:
        _list_tables()
        return
    order = Order(**options)
    grid = load_grid(table, quick=order.quick)
    picked = chosen(grid, cells, names_in(methods))
    if listing:
        _list_cells(grid, picked, order)
    else:
        _run(grid, picked, order, out or Path("runs") / (table + ("-quick" if order.quick else "")))


def _run(grid: "Grid", picked: Sequence["Cell"], order: Order, out: Path) -> None:
    """Run the cells that are not finished, update the record of the grid, then report."""
    from feddle.grids import runner
    from feddle.grids.cells import is_done
    from feddle.run.simulate import cores

    runner.open_folder(out, grid, quick=order.quick)
    command = shlex.join(["feddle", *sys.argv[1:]])
    planned, conflicts = runner.without_conflicts(_fetched(_planned(picked, order), quiet=order.quiet), out)
    count = len(order.seeds) * sum(each.config is not None for each in planned)
    jobs = min(order.jobs or cores(), max(count, 1))
    spare = cores() // jobs
    tasks = runner.tasks_of(planned, order.seeds, out, spare if spare > 1 else 0, order.track)
    runner.keep(out, grid, planned, quick=order.quick, command=command)
    for text in (*_left_out(planned), *conflicts):
        click.echo(error_line(text), err=True)
    waiting = [task for task in tasks if not is_done(task)]
    failed: list[tuple[Task, Ended]] = []
    try:
        if waiting:
            rounds = sum(task.config.rounds for task in waiting)
            with GridDisplay(len(tasks), len(tasks) - len(waiting), rounds, quiet=order.quiet) as display:
                failed = runner.run_tasks(waiting, jobs, display)
    except KeyboardInterrupt:
        stop(f"interrupted; the runs so far are in {out}; the same command continues them", code=130)
    runner.keep(out, grid, runner.with_reasons(planned, failed), quick=order.quick, command=command)
    _report(failed, out)


def _planned(picked: Sequence["Cell"], order: Order) -> list["Planned"]:
    """The plans of the cells. An override that no cell accepts is an error."""
    from feddle.grids.cells import plan

    planned = [plan(cell, order.overrides) for cell in picked]
    if all(each.refused for each in planned):
        raise FeddleError(f"-o: {planned[0].reason}")
    return planned


def _report(failed: "Sequence[tuple[Task, Ended]]", out: Path) -> None:
    """Show the results; the command fails if a run did not finish."""
    for task, ended in failed:
        if ended.details:
            click.echo(f"{task.label}:\n{ended.details}", err=True)
    report_on([out], out / REPORT)
    stopped = sum(ended.begun for _, ended in failed)
    if stopped:
        raise FeddleError(f"{stopped} of the runs did not finish, see above; the same command tries again")


def _fetched(planned: Sequence["Planned"], *, quiet: bool) -> list["Planned"]:
    """Fetch data and weights before the display starts; a cell is left out if that fails."""
    reasons: dict[Source[Any], str] = {}
    for source in dict.fromkeys(source for each in planned for source in each.sources):
        try:
            source.fetch(quiet=quiet)
        except FeddleError as error:
            reasons[source] = str(error)
    result = []
    for each in planned:
        reason = next((reasons[source] for source in each.sources if source in reasons), "")
        result.append(replace(each, config=None, reason=reason) if reason else each)
    return result


def _left_out(planned: Sequence["Planned"]) -> list[str]:
    """Messages about the cells that are left out, and about substitutes."""
    reasons = Counter(each.reason for each in planned if each.reason)
    substitutes = dict.fromkeys(each.substitute for each in planned if each.substitute and not each.reason)
    left_out = [f"left out, {counted(count, 'cell')}: {reason}" for reason, count in reasons.items()]
    return left_out + [f"substitute: {text}" for text in substitutes]


def _list_tables() -> None:
    from feddle.grids.cells import plan
    from feddle.grids.grid import load_grid, names

    rows = []
    for grid in map(load_grid, names()):
        available = sum(plan(cell).config is not None for cell in grid.cells)
        rows.append((grid.name, grid.title, str(len(grid.cells)), str(available)))
    print_table(("table", "title", "cells", "here"), rows)
    click.echo("here: number of cells with data and model available on this machine")
    click.echo("`feddle reproduce TABLE --list` lists the cells of a table")


def _list_cells(grid: "Grid", picked: Sequence["Cell"], order: Order) -> None:
    from feddle.grids.estimate import core_seconds
    from feddle.grids.grid import glossary
    from feddle.run.simulate import cores

    planned = _planned(picked, order)
    click.echo(f"{grid.title}. {grid.note}".rstrip())
    if meanings := glossary(grid):
        click.echo("In the names " + ", ".join(f"{short} is {words}" for short, words in meanings.items()) + ".")
    rows, times = [], []
    notes: dict[str, int] = {}
    for each in planned:
        reason, seconds = each.reason, None
        try:
            seconds = core_seconds(each)
        except FeddleError as error:  # its model cannot be built here
            reason = str(error)
        times += [] if seconds is None else [seconds]
        paper = "" if each.cell.paper is None else f"{each.cell.paper[0]:.1f} ± {each.cell.paper[1]:.1f}"
        note = f"left out: {reason}" if reason else each.substitute
        number = f"({notes.setdefault(note, len(notes) + 1)})" if note else ""
        rows.append((each.cell.name, paper, duration(seconds), number))
    print_table(("cell", "paper", "one core", "note"), rows)
    for note, place in notes.items():
        click.echo(f"({place}) {note}")
    runs = len(order.seeds) * len(times)
    at_once = min(order.jobs or cores(), max(runs, 1))
    time = duration(len(order.seeds) * sum(times) / at_once)
    click.echo(f"{runs} runs, about {time} with {at_once} at a time, by a short measurement on this machine")
