"""Run the cells of a grid, several at a time. A finished cell is never run again."""

import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from feddle.core.errors import FeddleError
from feddle.grids.cells import Ended, Planned, Task, described, has_other_config, is_done, work
from feddle.grids.grid import Grid, words
from feddle.records import CONFIG, GRID, GRID_LOCK, GridRecord, read_grid_record, write_record
from feddle.run.folder import check_free
from feddle.run.run import Line
from feddle.run.trackers import TrackerName


class Display(Protocol):
    """Shows the progress of a grid."""

    def begin(self, task: Task) -> None:
        """A task has started."""

    def round(self, task: Task, line: Line) -> None:
        """A round of a task is complete."""

    def end(self, task: Task, ended: Ended) -> None:
        """A task has ended."""


def tasks_of(
    planned: Iterable[Planned],
    seeds: Sequence[int],
    out: Path,
    workers: int | None,
    track: tuple[TrackerName, ...] = (),
) -> list[Task]:
    """A run for each available cell and each seed. Seed by seed, so that a whole table is complete early."""
    tasks = []
    for seed, each in product(seeds, planned):
        if each.config is not None:
            config = each.config.model_copy(update={"seed": seed, "workers": workers})
            folder = out / each.cell.name / f"seed{seed}"
            tasks.append(Task(each.cell.name, seed, folder, config, each.cell.waits, track))
    return tasks


def run_tasks(tasks: Sequence[Task], jobs: int, display: Display) -> list[tuple[Task, Ended]]:
    """Run the tasks that are not done, `jobs` at a time; return those that failed."""
    waiting = [task for task in tasks if not is_done(task)][::-1]
    running: dict[Connection, tuple[Task, BaseProcess]] = {}
    failed: list[tuple[Task, Ended]] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                display.begin(task)
                pipe, process = _start(task)
                running[pipe] = task, process
            ready = wait(list(running))
            for pipe in [pipe for pipe in running if pipe in ready]:
                task, process = running[pipe]
                message = _receive(pipe, process)
                if not isinstance(message, Ended):
                    display.round(task, message)
                    continue
                process.join()
                del running[pipe]
                display.end(task, message)
                if message.reason:
                    failed.append((task, message))
    finally:
        for _, process in running.values():
            process.terminate()  # its rounds so far remain on disk
        for _, process in running.values():
            process.join()
    return failed


def _start(task: Task) -> tuple[Connection, BaseProcess]:
    context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":  # a fork server that has imported torch starts each cell at once
        context.set_forkserver_preload(["feddle.grids.cells"])
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(task, sending), name=f"feddle {task.label}")
    process.start()
    sending.close()  # otherwise the end of the process would not be noticed
    return receiving, process


def _receive(pipe: Connection, process: BaseProcess) -> Line | Ended:
    """A message of a process: a round, or how its task ended."""
    try:
        message: Line | Ended = pipe.recv()
    except EOFError:
        process.join()
        code = process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Ended(reason=f"its process was stopped ({how}); the same command continues it")
    return message


def open_folder(out: Path, grid: Grid, *, quick: bool) -> GridRecord:
    """The record of the grid in a folder, or an empty one. A folder with another grid is refused."""
    check_free(out, "grid")
    if not (out / GRID).exists():
        return {"cells": {}}
    try:
        held = read_grid_record(out)
        kind = (held["grid"], held["quick"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FeddleError(
            f"{out / GRID} is damaged ({type(error).__name__} {error}); remove that file and give the command again, "
            "which keeps the runs, or name another folder with --out"
        ) from error
    if kind != (grid.name, quick):
        word = "quick runs" if kind[1] else "full runs"
        raise FeddleError(
            f"{out} holds {word} of {kind[0]}, which are never mixed with others; name another folder with --out"
        )
    return held


def without_conflicts(planned: Sequence[Planned], out: Path) -> tuple[list[Planned], list[str]]:
    """The cells that can be run in a folder, and messages about those that it has with another config."""
    found = [e.cell.name for e in planned if e.config and has_other_config(out / e.cell.name, e.config)]
    messages = [
        f"{name}: not run, because its folder has runs with another config; "
        f"remove {out / name} to run it again, or name another folder with --out"
        for name in found
    ]
    return [each for each in planned if each.cell.name not in found], messages


def keep(out: Path, grid: Grid, planned: Sequence[Planned], *, quick: bool, command: str) -> None:
    """Add these cells to the grid's record."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / GRID_LOCK):  # another command may run cells in the same folder
        held = open_folder(out, grid, quick=quick)
        ran = {name for name in held["cells"] if any((out / name).glob(f"seed*/{CONFIG}"))}
        # a cell that was run stays in the tables even if its data is missing now
        new = {each.cell.name: described(each) for each in planned if each.config or each.cell.name not in ran}
        cells = {**held["cells"], **new}
        record: GridRecord = {
            "grid": grid.name,
            "title": grid.title,
            "note": grid.note,
            "figure": list(grid.figure),
            "axes": {axis: [{"value": v, "words": words(axis, v)} for v in each] for axis, each in grid.axes.items()},
            "quick": quick,
            "asked": list(dict.fromkeys([*held.get("asked", []), command])),
            "cells": {cell.name: cells[cell.name] for cell in grid.cells if cell.name in cells},
        }
        write_record(out / GRID, record, indent=1)


def with_reasons(planned: Sequence[Planned], failed: Sequence[tuple[Task, Ended]]) -> list[Planned]:
    """The planned cells, with the reason of each that could not be set up."""
    reasons = {task.name: ended.reason for task, ended in failed if not ended.begun}
    return [replace(each, reason=reasons.get(each.cell.name, each.reason)) for each in planned]
