"""The cells of a grid: the config of each, or why it cannot be run on this machine; and running one of them."""

import signal
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from feddle.core.errors import FeddleError
from feddle.core.messages import Job
from feddle.core.metrics import ACCURACY, Metric, metric_named
from feddle.data.datasets import named, title_of
from feddle.data.options import source_of
from feddle.data.source import Source
from feddle.grids.grid import Cell
from feddle.reading import read_cell, read_result
from feddle.records import CELL, CONFIG, HOW, CellEntry, CellRecord, finite, json_digest, write_record
from feddle.run.folder import RunFolder, run_or_resume
from feddle.run.load import parse_config
from feddle.run.plan import Config
from feddle.run.problem import build_problem
from feddle.run.run import Line, Listener, Run
from feddle.run.simulate import simulated
from feddle.run.trackers import TrackerName, tracking
from feddle.runtimes.simulation import Delays, Simulation
from feddle.version import __version__, source_digest

source_digest()  # computed on import: the code may be edited while a grid runs
_WAITS = "a server that waits has no delays, and its clock uses the σ of the table; leave out -o delays.sigma"


@dataclass(frozen=True)
class Planned:
    """A cell with the config for this machine."""

    cell: Cell
    config: Config | None  # for seed 0
    reason: str = ""  # why it is left out
    substitute: str = ""  # what replaces data that the paper used, in words
    changed: tuple[str, ...] = ()  # overrides of the user that change the setting of the table
    refused: bool = False  # left out because its config does not accept the overrides

    @property
    def sources(self) -> list[Source[Any]]:
        """The data and weights that it reads."""
        return [] if self.config is None else self.config.sources()

    def unless(self, reason: str) -> "Planned":
        """The same cell, left out if there is a reason."""
        return replace(self, config=None, reason=reason) if reason else self


def plan(cell: Cell, overrides: Sequence[str] = ()) -> Planned:
    """Check the config of a cell, and that its data and model are available."""
    tree = dict(cell.tree)
    given = {key: value for key, _, value in (text.partition("=") for text in overrides)}
    if cell.outside:
        guide = _guide(cell, given)
        server = {k: v for k, v in tree["data"]["server"].items() if k != "samples"}
        # the paper uses 250,000 images of ImageNet; of a substitute, all images are used
        samples = {"samples": 250_000} if guide == "imagenet" else {}
        tree["data"] = {**tree["data"], "server": {**server, "name": guide, **samples}}
    elif not given.get("data.server.name"):  # the folder is for cells with out-of-domain data
        overrides = [text for text in overrides if text.partition("=")[0] != "data.server.folder"]
    try:
        config = parse_config(tree, overrides)
        reasons = [source.missing() for source in config.sources()]
    except FeddleError as error:
        return Planned(cell, None, str(error).removeprefix("config: "), refused=bool(overrides))
    if cell.waits is not None and config.delays.sigma:
        return Planned(cell, None, _WAITS, refused=True)
    if any(reasons):
        return Planned(cell, None, next(filter(None, reasons)))
    # where files are and how a cell is run do not change its setting
    setting = [key for key in given if not key.endswith("folder") and key.partition(".")[0] not in HOW]
    used, substitute = config.data.server.name, ""
    if used and cell.outside and used != cell.outside[0]:
        substitute = f"{title_of(used)} guides instead of {title_of(cell.outside[0])}"
    return Planned(cell, config, substitute=substitute, changed=tuple(f"{key}={given[key]}" for key in setting))


def _guide(cell: Cell, given: Mapping[str, str]) -> str:
    """The out-of-domain data set: the user's choice, else the first that is available.

    A folder from the user belongs to the paper's data set. If that folder is wrong, there is no substitute.
    """
    if given.get("data.server.folder") or given.get("data.server.name"):
        return given.get("data.server.name") or cell.outside[0]
    return next((name for name in cell.outside if named(name).missing() is None), cell.outside[0])


def config_hash(config: Config) -> str:
    """The SHA-256 of a config without seed, workers, executor and checkpoints, and without options that are null.

    So a new option that is off by default does not change the hash of earlier runs.
    """
    return json_digest(config.model_dump(mode="json", exclude=set(HOW), exclude_none=True))


def described(planned: Planned) -> CellEntry:
    """A planned cell as an entry of the grid's record."""
    cell = planned.cell
    return {
        "key": dict(cell.key),
        "paper": list(cell.paper) if cell.paper else None,
        "server": cell.server,
        "substitute": planned.substitute,
        "changed": list(planned.changed),
        "waits": cell.waits,
        "config": config_hash(planned.config) if planned.config else None,
        "left_out": planned.reason,
    }


@dataclass(frozen=True)
class Task:
    """A run that a grid needs."""

    name: str  # of the cell
    folder: Path
    config: Config
    waits: float | None = None
    track: tuple[TrackerName, ...] = ()

    @property
    def label(self) -> str:
        """The name of the run for readers."""
        return f"{self.name}, seed {self.config.seed}"


@dataclass(frozen=True)
class Ended:
    """How a task ended: its main metric, or the reason why there is none."""

    score: float | None = None
    seconds: float = 0.0
    reason: str = ""
    begun: bool = True  # False if the run could not be set up because something it needs is missing
    metric: Metric = ACCURACY
    details: str = field(default="", compare=False)  # the traceback of a bug in feddle


def is_done(task: Task) -> bool:
    """Whether a task is complete."""
    folder = RunFolder(task.folder)
    if not folder.is_finished() or folder.checkpoint.folder.exists():
        return False
    return task.waits is None or "clock" in read_cell(task.folder)


def work(task: Task, pipe: Connection) -> None:
    """The main function of a process: send every round to the parent, then how the run ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which then stops its cells
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        pipe.send(run_safely(task, pipe.send))
    except (KeyboardInterrupt, BrokenPipeError):  # stopped by the parent, or the parent has died
        sys.exit(130)


def run_safely(task: Task, listener: Listener) -> Ended:
    """Run a task; a bug in one cell should not stop the others."""
    try:
        return run_task(task, listener)
    except BrokenPipeError:
        raise
    except Exception as error:
        return Ended(reason=f"{type(error).__name__}: {error}", details=traceback.format_exc())


def run_task(task: Task, listener: Listener) -> Ended:
    """Run a task, or resume it if it was stopped."""

    def listen(line: Line) -> None:
        if read_cell(task.folder) != record:  # the first round of this process
            write_record(task.folder / CELL, record)
        listener(line)

    try:
        record = _record(task)
        with tracking(task.track, task.folder, task.config, listen) as tracked:
            run = run_or_resume(task.config, task.folder, tracked, quiet=True)
    except FeddleError as error:
        return Ended(reason=str(error), begun=(task.folder / CONFIG).exists())
    kept = read_cell(task.folder) or record
    if task.waits is not None:
        kept["clock"] = clock(task.config, task.waits, run)
    write_record(task.folder / CELL, kept)
    result = read_result(task.folder)
    metric = metric_named(result.get("metric"))
    return Ended(finite(result.get(metric.name)), result["seconds"], metric=metric)


def clock(config: Config, sigma: float, run: Run[Simulation] | None) -> list[int]:
    """When each round of a synchronous server ends. The unit of time is a round of an asynchronous server."""
    run = run or simulated(config.model_copy(update={"workers": 0}), build_problem(config, quiet=True))
    delays = Delays(sigma=sigma, per=config.delays.per)
    jobs: Counter[int] = Counter()
    lengths = []
    for now in range(config.rounds):
        asked = run.runtime.sample(now)
        lengths.append(1 + max(delays.draw(Job(client, jobs[client], now), config.seed) for client in asked))
        jobs.update(asked)
    return list(accumulate(lengths))


def _record(task: Task) -> CellRecord:
    """What produces a run. A resumed run names the source of every process that worked on it."""
    sources = [*read_cell(task.folder).get("source", "").split(), source_digest()]
    return {
        "config": config_hash(task.config),
        "data": data_hashes(task.config),
        "feddle": __version__,
        "source": " ".join(dict.fromkeys(sources)),
        "torch": torch.__version__,
    }


def data_hashes(config: Config) -> dict[str, str | None]:
    """The SHA-256 of each data set of a run, and of the user's own model folder."""
    data, server, weights = config.data, config.data.server, config.model.weights()
    hashes = {data.name: source_of(data).digest()}
    if data.outside:
        name = str(server.name) if server.name != data.name else f"{server.name} of the server"
        hashes[name] = source_of(server).digest()
    if weights is not None and (model := weights.digest()):
        hashes["model"] = model
    return hashes
