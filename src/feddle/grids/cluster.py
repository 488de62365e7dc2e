"""Run the cells of a grid on a Ray cluster: each in a process on one of its nodes, with one CPU."""

import os
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from feddle.core.durable import write_whole
from feddle.core.errors import one_line
from feddle.grids.cells import Ended, Task, is_done, run_safely
from feddle.grids.runner import Display
from feddle.records import RESULT
from feddle.run.run import Line
from feddle.run.simulate import cores
from feddle.runtimes.cluster import Head, StoreNeed, count_workers, join, load_ray, nodes_of, started, store_size

_ATTEMPTS = 3  # at a cell whose node was lost
_RETURNED = 64 << 20  # bytes of the files of a cell, for the object store
_LOOK = 1.0  # seconds between two checks of the head of the cluster
_LOST = "lost with its node"
_MARK = ".shared"  # a file in the folder of the grid; a node that sees it writes there too


@dataclass(frozen=True)
class Files:
    """The files of a run on a node that does not share the folder of the grid: path and content."""

    content: dict[str, bytes]


@contextmanager
def connected(address: str | None, jobs: int | None) -> Iterator[int]:
    """Join the cluster, or start one on this machine; gives the number of cells at a time."""
    ray = load_ray()
    if address is None:
        asked = jobs or cores()
        with started(asked, store_size(StoreNeed(0, 0, asked * _RETURNED))):
            yield asked
        return
    join(address)
    try:
        yield count_workers(nodes_of(ray.nodes()), jobs, 1, 0)
    finally:
        ray.shutdown()


def run_on_cluster(tasks: Sequence[Task], jobs: int, display: Display, out: Path) -> list[tuple[Task, Ended]]:
    """Run the tasks that are not done, `jobs` at a time; return those that failed. A lost one is repeated."""
    ray = load_ray()
    remote = ray.remote(cell).options(num_cpus=1, max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD")
    out = out.resolve()
    mark = out / f"{_MARK}-{uuid.uuid4().hex}"
    mark.touch()
    waiting = [task for task in tasks if not is_done(task)][::-1]
    running: dict[Any, Task] = {}
    lost: Counter[str] = Counter()
    head = Head()
    failed: list[tuple[Task, Ended]] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                display.begin(task)
                running[remote.remote(replace(task, folder=task.folder.resolve()), mark, Path.cwd())] = task
            head.require()
            for cell_run in ray.wait(list(running), num_returns=1, timeout=_LOOK)[0]:
                task = running[cell_run]
                message = _next(ray, cell_run)
                if isinstance(message, Files):
                    keep_files(message, task.folder)
                elif isinstance(message, Ended):
                    del running[cell_run]
                    lost[task.label] += message.details == _LOST
                    if message.details == _LOST and lost[task.label] < _ATTEMPTS:
                        waiting.append(task)
                        continue
                    message = message if message.reason or is_done(task) else _missing(task)
                    display.end(task, message)
                    if message.reason:
                        failed.append((task, message))
                else:
                    display.round(task, message)
    finally:
        mark.unlink()
    return failed


def _next(ray: Any, cell_run: Any) -> Line | Ended | Files:
    """The next message of a cell."""
    try:
        message: Line | Ended | Files = ray.get(next(cell_run))
    except (ray.exceptions.RayError, StopIteration) as error:
        reason = one_line(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, 200)
        return Ended(reason=f"it was {_LOST} {_ATTEMPTS} times ({reason}); the same command tries again", details=_LOST)
    return message


def _missing(task: Task) -> Ended:
    """How a cell ended that its node has finished, but whose result is missing here."""
    return Ended(reason=f"its node has finished it, but {task.folder} has no result; the same command tries again")


def keep_files(files: Files, folder: Path) -> None:
    """Write the files of a run that a node has sent; the result is the last, because it marks the run as finished."""
    for name, content in files.content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


def cell(task: Task, mark: Path, cwd: Path) -> Iterator[Line | Ended | Files]:
    """Run a cell on a node: yields every round, its files if the node does not share the grid's folder, and its end."""
    with suppress(OSError):  # where relative paths and custom code are, if this node has it
        os.chdir(cwd)
    with tempfile.TemporaryDirectory(prefix="feddle-cell-") as own:
        shares = mark.exists()
        here = task if shares else replace(task, folder=Path(own) / "run")
        messages: SimpleQueue[Line | Ended] = SimpleQueue()
        threading.Thread(target=lambda: messages.put(run_safely(here, messages.put)), daemon=True).start()
        while not isinstance(message := messages.get(), Ended):
            yield message
        if not shares and not message.reason:
            paths = sorted(filter(Path.is_file, here.folder.rglob("*")), key=lambda path: path.name == RESULT)
            yield Files({str(path.relative_to(here.folder)): path.read_bytes() for path in paths})
        yield message
