"""Running one cell for one seed, in a process of its own."""

import json
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.core.messages import Job
from feddle.data.options import source_of
from feddle.grids.plan import config_hash
from feddle.run.folder import RunFolder, resume_run, run_config
from feddle.run.plan import Config
from feddle.run.problem import build_federation
from feddle.run.run import Line, Listener, Run
from feddle.run.simulated import simulated
from feddle.run.trackers import TrackerName, tracking
from feddle.runtimes.simulation import Delays, Simulation
from feddle.version import __version__, source_digest

RECORD = "cell.json"
source_digest()  # remembered as the code is loaded: what is edited while a grid runs is not what its cells run


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
        """The run in words."""
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Ended:
    """What came of a task: an accuracy, or why there is none."""

    accuracy: float | None = None
    seconds: float = 0.0
    reason: str = ""
    begun: bool = True  # whether the run was set up; else what the cell needs cannot be had
    details: str = field(default="", compare=False)  # of a mistake in feddle itself


def is_done(task: Task) -> bool:
    """Whether there is nothing left to do for a task."""
    if not RunFolder(task.folder).is_finished():
        return False
    return task.waits is None or "clock" in read_record(task.folder)


def read_record(folder: Path) -> dict[str, Any]:
    """What is known of the run in a folder: the hashes of its config and data, and the feddle that made it."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def work(task: Task, pipe: Connection) -> None:
    """The life of a cell's process: run, tell every round, tell the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its cells
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        ended = run_task(task, pipe.send)
    except (KeyboardInterrupt, BrokenPipeError):  # told to stop, or the parent is gone; what was done is kept
        sys.exit(130)
    except Exception as error:  # a mistake of ours in one cell should not end the others
        details = traceback.format_exc()
        ended = Ended(reason=f"{type(error).__name__}: {error}", details=details)
    pipe.send(ended)


def run_task(task: Task, tell: Listener) -> Ended:
    """Run a task, or go on with it where it was stopped."""
    begun = (task.folder / "config.yaml").exists()

    def listen(line: Line) -> None:
        if line["round"] == 1:
            write_record(task.folder, record)
        tell(line)

    try:
        made_by = {"source": source_digest(), "torch": torch.__version__, "cell": task.name}
        record = {**_made_of(task.config), **made_by}
        with tracking(task.track, task.folder, task.config, listen) as told:
            if begun:
                _require_same(task, record)
                _note_source(task)
                run = resume_run(task.folder, told, quiet=True)
            else:
                run = run_config(task.config, task.folder, told, quiet=True)
    except FeddleError as error:
        return Ended(reason=str(error), begun=(task.folder / "config.yaml").exists())
    if task.waits is not None:
        write_record(task.folder, {**(read_record(task.folder) or record), "clock": clock(task, run)})
    elif not read_record(task.folder):
        write_record(task.folder, record)
    result = json.loads((task.folder / "result.json").read_bytes())
    return Ended(result["accuracy"], result["seconds"])


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Keep what is known of a run beside it."""
    write_whole(folder / RECORD, (json.dumps(record, indent=2) + "\n").encode())


def clock(task: Task, run: Run[Simulation] | None) -> list[int]:
    """When each round of a server that waits for its slowest client ends, in rounds of one that does not wait."""
    assert task.waits is not None
    run = run or simulated(task.config.model_copy(update={"workers": 0}), build_federation(task.config, quiet=True))
    delays = Delays(sigma=task.waits, per=task.config.delays.per)
    jobs: dict[int, int] = {}
    lengths = []
    for now in range(task.config.rounds):
        asked = run.runtime.sample(now)
        lengths.append(
            1 + max(delays.draw(Job(client, jobs.get(client, 0), now), task.config.seed) for client in asked)
        )
        jobs |= {client: jobs.get(client, 0) + 1 for client in asked}
    return list(accumulate(lengths))


def other_configs(task: Task) -> bool:
    """Whether the cell of a task has a run with another config, of any seed."""
    return set(configs_in(task.folder.parent)) - {config_hash(task.config)} != set()


def configs_in(place: Path) -> list[str]:
    """The hash of the config of each run in a cell's folder."""
    runs = sorted(path.parent for path in place.glob("seed*/config.yaml"))
    return [str(read_record(run).get("config") or config_hash(RunFolder(run).config())) for run in runs]


def differences(task: Task) -> Sequence[str]:
    """In what the run in a task's folder is not what would be run now."""
    record = read_record(task.folder)
    return [name for name, value in _made_of(task.config).items() if name in record and record[name] != value]


def _made_of(config: Config) -> dict[str, Any]:
    """What a result depends on: config, content of data and model, version."""
    made: dict[str, Any] = {"config": config_hash(config), "data": data_hashes(config), "feddle": __version__}
    weights = config.model.weights()
    model = None if weights is None else weights.digest()
    return made if model is None else {**made, "model": model}


def data_hashes(config: Config) -> dict[str, str | None]:
    """The SHA-256 of each data set of a run."""
    data, server = config.data, config.data.server
    hashes = {data.name: source_of(data).digest()}
    if data.outside:
        name = str(server.name) if server.name != data.name else f"{server.name} of the server"
        hashes[name] = source_of(server).digest()
    return hashes


def _note_source(task: Task) -> None:
    """Keep in a stopped run's record that another state of feddle's source goes on with it; the version is the same."""
    record, source = read_record(task.folder), source_digest()
    known = [record.get("source"), *record.get("resumed_by", [])]
    if record and source not in known and not RunFolder(task.folder).is_finished():
        write_record(task.folder, {**record, "resumed_by": [*known[1:], source]})


def _require_same(task: Task, record: dict[str, Any]) -> None:
    other = [name for name in differences(task) if record[name] is not None]
    if "config" not in other and config_hash(RunFolder(task.folder).config()) != config_hash(task.config):
        other.insert(0, "config")  # stopped before its record was written
    if other:
        raise FeddleError(
            f"{task.folder} was begun with another {' and '.join(other)}; finish it with what it was begun with, "
            "or remove the folder to start again"
        )


def _interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's arguments
    raise KeyboardInterrupt
