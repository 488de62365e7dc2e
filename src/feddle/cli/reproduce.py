"""`feddle reproduce`: a table or figure of the paper as a grid of runs."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feddle.cli.display import GridDisplay, error_line, print_table, stop
from feddle.cli.options import PATH, names_in, overrides_option, quiet_option, seeds_in, this_command, track_option
from feddle.cli.reports import report_on
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.importing import is_import_path
from feddle.data.source import Source
from feddle.records import REPORT
from feddle.report.numbers import counted, duration

if TYPE_CHECKING:  # these import torch, which takes a second or two
    from feddle.grids.cells import Ended, Planned, Task
    from feddle.grids.grid import Grid
    from feddle.run.trackers import TrackerName


@dataclass(frozen=True)
class Order:
    """The options of the command that say how to run the cells."""

    overrides: Sequence[str]
    quick: bool
    seeds: Sequence[int]
    jobs: int | None
    quiet: bool
    track: tuple["TrackerName", ...]
    executor: str
    address: str | None


@click.command()
@click.argument("table", required=False)
@click.option(
    "--list", "listing", is_flag=True, help="List the tables, or the cells of TABLE with their estimated time."
)
@click.option("--cells", multiple=True, metavar="TEXT", help="Only cells whose name contains this part.")
@click.option(
    "--methods",
    default="",
    help="Only these rows, separated by commas. feddle selects feddle-id and feddle-ood. An import path adds a row.",
)
@click.option("--seeds", default="0", show_default=True, callback=seeds_in, help="Seeds; the paper uses three (0,1,2).")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of runs at a time. By default one for each core.")
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where to run: on this machine, or one run on each CPU of a Ray cluster.",
)
@click.option("--address", metavar="HOST:PORT", help="The Ray cluster. By default Ray is started on this machine.")
@click.option(
    "--quick",
    is_flag=True,
    help="Use a small network and few rounds. It takes minutes, and its numbers are not results.",
)
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
    from feddle.grids.cells import plan
    from feddle.grids.grid import chosen, load_grid, own_rows

    if table is None:
        _list_tables()
        return
    order = Order(**options)
    _check_executor(order)
    out = out or Path("runs") / (table + ("-quick" if order.quick else ""))
    asked = [name for name in names_in(methods) if is_import_path(name)]
    grid = load_grid(table, quick=order.quick, own=list(dict.fromkeys([*own_rows(out), *asked])))
    planned = [plan(cell, order.overrides) for cell in chosen(grid, cells, names_in(methods))]
    if all(each.refused for each in planned):
        reason = planned[0].reason
        raise FeddleError(reason if reason.startswith("-o ") else f"-o: {reason}")
    if listing:
        _list_cells(grid, planned, order)
    else:
        _run(grid, planned, order, out)


def _check_executor(order: Order) -> None:
    """Refuse options that cannot be combined."""
    if any(text.startswith("executor") for text in order.overrides):
        raise FeddleError("-o executor is for a single run; to spread the runs over a cluster: --executor ray")
    if order.address is not None:
        if order.executor != "ray":
            raise FeddleError("--address is the address of a Ray cluster; add --executor ray")
        from feddle.run.load import validated
        from feddle.runtimes.ray import RayOptions

        validated(RayOptions, {"address": order.address}, source="--address")


def _run(grid: "Grid", planned: Sequence["Planned"], order: Order, out: Path) -> None:
    """Run the cells that are not finished, update the record of the grid, then report."""
    from feddle.grids import cluster, runner
    from feddle.grids.cells import is_done
    from feddle.run.simulate import cores

    runner.open_folder(out, grid)
    planned = _available(planned, quiet=order.quiet)
    planned = [each.unless(runner.conflict(each, out)) for each in planned]
    on_ray, jobs = order.executor == "ray", order.jobs or cores()
    tasks = runner.tasks_of(planned, order.seeds, out, None if on_ray else jobs, order.track)
    waiting = [task for task in tasks if not is_done(task)]
    with ExitStack() as stack:
        if on_ray and waiting:  # before any file is written
            jobs = stack.enter_context(cluster.connected(order.address, order.jobs))
        runner.keep(out, grid, planned, this_command())
        for text in _left_out(planned):
            click.echo(error_line(text), err=True)
        failed = _run_waiting(waiting, len(tasks), jobs, order, out)
    not_begun = {task.name: ended.reason for task, ended in failed if not ended.begun}
    runner.keep(out, grid, [each.unless(not_begun.get(each.cell.name, "")) for each in planned], this_command())
    for task, ended in failed:
        if ended.details:
            click.echo(f"{task.label}:\n{ended.details}", err=True)
    report_on([out], out / REPORT)
    if stopped := sum(ended.begun for _, ended in failed):
        raise FeddleError(f"{stopped} of the runs did not finish, see above; the same command tries again")


def _run_waiting(
    waiting: Sequence["Task"], count: int, jobs: int, order: Order, out: Path
) -> list[tuple["Task", "Ended"]]:
    """Run tasks, `jobs` at a time, and show the progress of all `count`; returns those that failed."""
    from feddle.grids import cluster, runner

    if not waiting:
        return []
    rounds = sum(task.config.rounds for task in waiting)
    try:
        with GridDisplay(count, count - len(waiting), rounds, quiet=order.quiet) as display:
            if order.executor == "ray":
                return cluster.run_on_cluster(waiting, jobs, display, out)
            return runner.run_tasks(waiting, jobs, display)
    except KeyboardInterrupt:
        stop(f"interrupted; the runs so far are in {out}; the same command continues them", code=130)
    except StoppedError as error:
        raise FeddleError(f"{error}; the same command continues the runs in {out}") from error


def _available(planned: Sequence["Planned"], *, quiet: bool) -> list["Planned"]:
    """Fetch data and weights before the display starts; a cell is left out if that fails."""
    reasons: dict[Source[Any], str] = {}
    for source in dict.fromkeys(source for each in planned for source in each.sources):
        try:
            source.fetch(quiet=quiet)
        except FeddleError as error:
            reasons[source] = str(error)
    return [each.unless(next((reasons[s] for s in each.sources if s in reasons), "")) for each in planned]


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


def _list_cells(grid: "Grid", planned: Sequence["Planned"], order: Order) -> None:
    from feddle.grids.estimate import core_seconds
    from feddle.grids.grid import glossary
    from feddle.run.simulate import cores

    click.echo(f"{grid.title}. {grid.note}".rstrip())
    if meanings := glossary(grid):
        click.echo("In the names " + ", ".join(f"{short} is {words}" for short, words in meanings.items()) + ".")
    rows, times = [], []
    notes: dict[str, int] = {}
    for each in planned:
        seconds = None
        try:
            seconds = core_seconds(each.config) if each.config else None
        except FeddleError as error:  # its model cannot be built here
            each = each.unless(str(error))
        times += [] if seconds is None else [seconds]
        paper = "" if each.cell.paper is None else f"{each.cell.paper[0]:.1f} ± {each.cell.paper[1]:.1f}"
        note = f"left out: {each.reason}" if each.reason else each.substitute
        number = f"({notes.setdefault(note, len(notes) + 1)})" if note else ""
        rows.append((each.cell.name, paper, duration(seconds), number))
    print_table(("cell", "paper", "one core", "note"), rows)
    for note, place in notes.items():
        click.echo(f"({place}) {note}")
    runs = len(order.seeds) * len(times)
    at_once = max(min(order.jobs or cores(), runs), 1)
    time = duration(len(order.seeds) * sum(times) / at_once)
    click.echo(f"{runs} runs, about {time} with {at_once} at a time, by a short measurement on this machine")
