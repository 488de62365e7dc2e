"""Run the cells of a grid, several at a time. A finished cell is never run again."""

import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from feddle.core.errors import FeddleError
from feddle.grids.cells import Ended, Planned, Task, config_hash, described, is_done, work
from feddle.grids.grid import Grid, words
from feddle.reading import read_cell, read_grid_record
from feddle.records import CONFIG, GRID, GRID_LOCK, GridRecord, write_record
from feddle.run.folder import RunFolder, check_free
from feddle.run.run import Line
from feddle.run.simulate import cores
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
    planned: Iterable[Planned], seeds: Sequence[int], out: Path, jobs: int | None, track: tuple[TrackerName, ...] = ()
) -> list[Task]:
    """A run for each available cell and each seed. Seed by seed, so that a whole table is complete early.

    `jobs` of them share the cores of this machine; without it, each has one CPU of a cluster.
    """
    runs = [(each.cell, each.config, seed) for seed, each in product(seeds, planned) if each.config is not None]
    spare = cores() // max(min(jobs, len(runs)), 1) if jobs else 0
    tasks = []
    for cell, config, seed in runs:
        config = config.model_copy(update={"seed": seed, "workers": spare if spare > 1 else 0})
        tasks.append(Task(cell.name, out / cell.name / f"seed{seed}", config, cell.waits, track))
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


def open_folder(out: Path, grid: Grid) -> GridRecord:
    """The record of the grid in a folder, or an empty one. A folder with another grid is refused."""
    check_free(out, "grid")
    if not (out / GRID).exists():
        return {"grid": grid.name, "cells": {}}
    try:
        held = read_grid_record(out)
        kind = (held["grid"], held["quick"])
    except (OSError, ValueError, KeyError) as error:
        raise FeddleError(
            f"{out / GRID} is damaged ({type(error).__name__} {error}); remove that file and give the command again, "
            "which keeps the runs, or name another folder with --out"
        ) from error
    if kind != (grid.name, grid.quick):
        word = "quick runs" if kind[1] else "full runs"
        raise FeddleError(
            f"{out} holds {word} of {kind[0]}, which are never mixed with others; name another folder with --out"
        )
    return held


def conflict(planned: Planned, out: Path) -> str:
    """Why a cell cannot be run in the folder of its grid: it has runs with another config. Empty if it has none."""
    place = out / planned.cell.name
    # a run that was stopped early has no record yet
    kept = {read_cell(run).get("config") or config_hash(RunFolder(run).config()) for run in _runs(place)}
    if planned.config is None or kept <= {config_hash(planned.config)}:
        return ""
    return f"its folder has runs with another config; remove {place} to run it again, or name another folder with --out"


def _runs(place: Path) -> list[Path]:
    return sorted(path.parent for path in place.glob(f"seed*/{CONFIG}"))


def keep(out: Path, grid: Grid, planned: Sequence[Planned], command: str) -> None:
    """Add these cells to the grid's record."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / GRID_LOCK):  # another command may run cells in the same folder
        held = open_folder(out, grid)
        # a cell that was run stays in the tables even if its data is missing now
        ran = {name for name in held["cells"] if _runs(out / name)}
        new = {each.cell.name: described(each) for each in planned if each.config or each.cell.name not in ran}
        cells = {**held["cells"], **new}
        record: GridRecord = {
            "grid": grid.name,
            "title": grid.title,
            "note": grid.note,
            "figure": list(grid.figure),
            "axes": {axis: [{"value": v, "words": words(axis, v)} for v in each] for axis, each in grid.axes.items()},
            "quick": grid.quick,
            "asked": list(dict.fromkeys([*held.get("asked", []), command])),
            "cells": {cell.name: cells[cell.name] for cell in grid.cells if cell.name in cells},
        }
        write_record(out / GRID, record, indent=1)
