"""Run one cell of a grid for one seed, in its own process."""

import signal
import sys
import traceback
from dataclasses import dataclass, field
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import torch

from feddle.core.errors import FeddleError
from feddle.core.messages import Job
from feddle.data.options import source_of
from feddle.grids.plan import config_hash
from feddle.records import CELL, CONFIG, CellRecord, read_cell, read_result, write_record
from feddle.run.folder import RunFolder, resume_run, run_config
from feddle.run.plan import Config
from feddle.run.problem import build_problem
from feddle.run.run import Line, Listener, Run
from feddle.run.simulated import simulated
from feddle.run.trackers import TrackerName, tracking
from feddle.runtimes.simulation import Delays, Simulation
from feddle.version import __version__, source_digest

source_digest()  # computed on import: the code may be edited while a grid runs


@dataclass(frozen=True)
class Task:
    """A run that a grid needs."""

    name: str  # of the cell
    seed: int
    folder: Path
    config: Config
    waits: float | None = None
    track: tuple[TrackerName, ...] = ()

    @property
    def label(self) -> str:
        """The name of the run for readers."""
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Ended:
    """How a task ended: its accuracy, or the reason why there is none."""

    accuracy: float | None = None
    seconds: float = 0.0
    reason: str = ""
    begun: bool = True  # False if the run could not be set up because something it needs is missing
    details: str = field(default="", compare=False)  # the traceback of a bug in feddle


def is_done(task: Task) -> bool:
    """Whether a task is complete."""
    if not RunFolder(task.folder).is_finished():
        return False
    return task.waits is None or "clock" in read_cell(task.folder)


def work(task: Task, pipe: Connection) -> None:
    """The main function of a process: send every round to the parent, then how the run ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which then stops its cells
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        ended = run_task(task, pipe.send)
    except (KeyboardInterrupt, BrokenPipeError):  # stopped by the parent, or the parent has died
        sys.exit(130)
    except Exception as error:  # a bug in one cell should not stop the others
        ended = Ended(reason=f"{type(error).__name__}: {error}", details=traceback.format_exc())
    pipe.send(ended)


def run_task(task: Task, listener: Listener) -> Ended:
    """Run a task, or resume it if it was stopped."""

    def listen(line: Line) -> None:
        if line["round"] == 1:
            write_record(task.folder / CELL, record)
        listener(line)

    try:
        record = _record(task)
        with tracking(task.track, task.folder, task.config, listen) as tracked:
            if (task.folder / CONFIG).exists():
                if not RunFolder(task.folder).is_finished():
                    write_record(task.folder / CELL, record)
                run = resume_run(task.folder, tracked, quiet=True)
            else:
                run = run_config(task.config, task.folder, tracked, quiet=True)
    except FeddleError as error:
        return Ended(reason=str(error), begun=(task.folder / CONFIG).exists())
    kept = read_cell(task.folder) or record
    if task.waits is not None:
        kept["clock"] = clock(task, run)
    write_record(task.folder / CELL, kept)
    result = read_result(task.folder)
    return Ended(result["accuracy"], result["seconds"])


def clock(task: Task, run: Run[Simulation] | None) -> list[int]:
    """The end of each round of a server that waits for its slowest client, in rounds of a server that does not wait."""
    assert task.waits is not None
    run = run or simulated(task.config.model_copy(update={"workers": 0}), build_problem(task.config, quiet=True))
    delays = Delays(sigma=task.waits, per=task.config.delays.per)
    jobs: dict[int, int] = {}
    lengths = []
    for now in range(task.config.rounds):
        asked = run.runtime.sample(now)
        waiting = (delays.draw(Job(client, jobs.get(client, 0), now), task.config.seed) for client in asked)
        lengths.append(1 + max(waiting))
        jobs |= {client: jobs.get(client, 0) + 1 for client in asked}
    return list(accumulate(lengths))


def conflict(place: Path, config: Config) -> str:
    """What differs between the runs in the folder of a cell and this config: "config", "data" or nothing ("")."""
    runs = sorted(path.parent for path in place.glob(f"seed*/{CONFIG}"))
    # a run that was stopped early has no record yet
    kept = [read_cell(run).get("config") or config_hash(RunFolder(run).config()) for run in runs]
    if set(kept) - {config_hash(config)}:
        return "config"
    contents = _contents(config) if runs else {}
    known = [read_cell(run).get("data", {}) for run in runs]
    return "data" if any(made.get(name, now) != now for made in known for name, now in contents.items()) else ""


def _record(task: Task) -> CellRecord:
    """What produces a run. A resumed run names the source of every process that worked on it."""
    sources = [*read_cell(task.folder).get("source", "").split(), source_digest()]
    return {
        "config": config_hash(task.config),
        "data": _contents(task.config),
        "feddle": __version__,
        "source": " ".join(dict.fromkeys(sources)),
        "torch": torch.__version__,
        "cell": task.name,
    }


def _contents(config: Config) -> dict[str, str | None]:
    """The SHA-256 of each data set of a run, and of the user's own model folder."""
    weights = config.model.weights()
    model = None if weights is None else weights.digest()
    return data_hashes(config) | ({} if model is None else {"model": model})


def data_hashes(config: Config) -> dict[str, str | None]:
    """The SHA-256 of each data set of a run."""
    data, server = config.data, config.data.server
    hashes = {data.name: source_of(data).digest()}
    if data.outside:
        name = str(server.name) if server.name != data.name else f"{server.name} of the server"
        hashes[name] = source_of(server).digest()
    return hashes


def _interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the arguments of a signal handler
    raise KeyboardInterrupt
