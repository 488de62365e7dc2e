"""Running the cells of a grid, several at a time; what is finished is never run again."""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.grids.cells import Ended, Task, configs_in, differences, is_done, other_configs, work
from feddle.grids.grid import Grid, words
from feddle.grids.plan import Planned, described
from feddle.run.folder import RunFolder
from feddle.run.run import Line
from feddle.run.trackers import TrackerName
from feddle.version import __version__, source_digest

GRID = "grid.json"


class Display(Protocol):
    """Who hears how the grid gets on."""

    def begin(self, task: Task) -> None:
        """A task starts."""

    def round(self, task: Task, line: Line) -> None:
        """A round of a task is done."""

    def end(self, task: Task, ended: Ended) -> None:
        """A task is over."""


@dataclass
class _Running:
    task: Task
    process: BaseProcess
    pipe: Connection


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def tasks_of(
    planned: Iterable[Planned],
    seeds: Sequence[int],
    out: Path,
    workers: int | None,
    track: tuple[TrackerName, ...] = (),
) -> list[Task]:
    """A run for each cell that can be had and each seed, seed by seed, so that a whole table is there early."""
    found = [each for each in planned if each.config is not None]
    return [
        Task(
            each.cell.name,
            seed,
            out / each.cell.name / f"seed{seed}",
            each.with_seed(seed, workers),
            each.cell.waits,
            track,
        )
        for seed in seeds
        for each in found
    ]


def run_tasks(tasks: Sequence[Task], jobs: int, display: Display) -> dict[str, Ended]:
    """Run what is not done, `jobs` at a time; the tasks that came to nothing, by label."""
    waiting = [task for task in tasks if not is_done(task)][::-1]
    running: list[_Running] = []
    failed: dict[str, Ended] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                display.begin(task)
                running.append(_start(task))
            for each in _ready(running):
                ended = _hear(each, display)
                if ended is not None:
                    running.remove(each)
                    display.end(each.task, ended)
                    if ended.reason:
                        failed[each.task.label] = ended
    finally:
        for each in running:
            each.process.terminate()  # it keeps what it has done
        for each in running:
            each.process.join()
    return failed


def _start(task: Task) -> _Running:
    # A server that has imported torch once forks a process for each cell, which then begins at once.
    if sys.platform == "linux":
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["feddle.grids.cells"])
    receiving, sending = multiprocessing.Pipe(duplex=False)
    start = multiprocessing.get_context("spawn").Process if sys.platform != "linux" else server.Process
    process = start(target=work, args=(task, sending), name=f"feddle {task.label}")
    process.start()
    sending.close()  # else its end would not be noticed
    return _Running(task, process, receiving)


def _ready(running: Sequence[_Running]) -> list[_Running]:
    heard = wait([each.pipe for each in running])
    return [each for each in running if each.pipe in heard]


def _hear(each: _Running, display: Display) -> Ended | None:
    """One message of a process; an end if it was the last."""
    try:
        message = each.pipe.recv()
    except EOFError:
        each.process.join()
        code = each.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Ended(reason=f"its process was stopped ({how}); the same command goes on with it")
    if isinstance(message, Ended):
        each.process.join()
        return message
    display.round(each.task, message)
    return None


def open_folder(out: Path, grid: Grid, *, quick: bool) -> dict[str, Any]:
    """The grid's own record in its folder, empty at first; a folder of another grid is refused."""
    path = out / GRID
    if out.exists() and not out.is_dir():
        raise FeddleError(f"{out} is a file; name another folder with --out")
    if not path.exists():
        return {"cells": {}}
    try:
        held: dict[str, Any] = json.loads(path.read_bytes())
        kind = (held["grid"], held["quick"])
        if not isinstance(held["cells"], dict):
            raise TypeError("cells is no mapping")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FeddleError(
            f"{path} is not what feddle wrote ({type(error).__name__} {error}); remove it and give the command again, "
            "which keeps the runs beside it, or name another folder with --out"
        ) from error
    if kind != (grid.name, quick):
        word = "quick runs" if kind[1] else "full runs"
        raise FeddleError(
            f"{out} holds {word} of {kind[0]}, which are never mixed with others; name another with --out"
        )
    return held


def keep(out: Path, grid: Grid, planned: Sequence[Planned], *, quick: bool, command: str) -> None:
    """Write the grid's record: its axes, and for each of its cells what it is or why it is left out."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".grid.lock"):  # another command may fill the same folder; what it wrote stays
        held = open_folder(out, grid, quick=quick)
        asked = list(dict.fromkeys([*held.get("asked", []), command]))
        record = _record(held, out, grid, planned, quick=quick, asked=asked)
        write_whole(out / GRID, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def _record(
    held: Mapping[str, Any], out: Path, grid: Grid, planned: Sequence[Planned], **facts: Any
) -> Mapping[str, Any]:
    told = {each.cell.name: _told(each, held["cells"].get(each.cell.name), out) for each in planned}
    cells = {**held["cells"], **told}
    order = [cell.name for cell in grid.cells]
    return {
        "grid": grid.name,
        "title": grid.title,
        "note": grid.note,
        "figure": list(grid.figure),
        "axes": {axis: [{"value": v, "words": words(axis, v)} for v in values] for axis, values in grid.axes.items()},
        "feddle": __version__,
        "source": source_digest(),
        **facts,
        "cells": {name: cells[name] for name in order if name in cells},
    }


def _told(planned: Planned, held: Mapping[str, Any] | None, out: Path) -> Mapping[str, Any]:
    """A cell in the grid's record; one that was run with another config stays described as it was."""
    now, ran = described(planned), configs_in(out / planned.cell.name)
    if held is None or not ran or now["config"] in ran:
        return now
    if planned.config is not None:
        return {**held, "asked": now["config"]}
    done = all(RunFolder(path).is_finished() for path in (out / planned.cell.name).glob("seed*"))
    return held if done else {**held, "left_out": planned.reason}


def with_reasons(planned: Sequence[Planned], failed: Mapping[str, Ended], tasks: Sequence[Task]) -> list[Planned]:
    """The plan with what turned out only when a cell was tried: what it needs cannot be had."""
    reasons = {
        task.name: failed[task.label].reason for task in tasks if task.label in failed and not failed[task.label].begun
    }
    return [replace(each, reason=reasons.get(each.cell.name, each.reason)) for each in planned]


def mixed(tasks: Sequence[Task]) -> list[str]:
    """What is finished but not what would be run now, in words."""
    found = []
    for task in tasks:
        if is_done(task) and (other := differences(task)):
            found.append(
                f"{task.label}: finished with another {' and '.join(other)}, and stays as it is; "
                f"remove {task.folder} to run it again, or name another folder with --out"
            )
    return found


def without_strangers(tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
    """The tasks but for new seeds of cells that were run with another config, since no cell is of two; and these."""
    strange = {task.label: task for task in tasks if not (task.folder / "config.yaml").exists() and other_configs(task)}
    told = [
        f"{task.label}: not run, since the cell's other seeds have another config; "
        f"remove {task.folder.parent} to run them all again, or name another folder with --out"
        for task in strange.values()
    ]
    return [task for task in tasks if task.label not in strange], told
