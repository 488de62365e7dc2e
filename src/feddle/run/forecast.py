"""Estimating a run before it starts: build its model and data, measure them, and compute its cost."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from feddle.core.atlas import FloatRows, Rows
from feddle.core.blocks import make_blocks
from feddle.methods.cost import Cost
from feddle.methods.feddle.method import AtlasOptions
from feddle.methods.feddle.storage import DiskStorage, Int8Storage
from feddle.methods.strategy import cost_of
from feddle.run.estimate import Estimate, Held, Machine, Sizes, expected_traffic, of_run, on_paper, setting_of
from feddle.run.measure import Memory, Subject, measure, memory
from feddle.run.plan import Config
from feddle.run.problem import build_problem
from feddle.run.run import Run
from feddle.run.simulate import cores, resolve_workers, simulated
from feddle.run.traffic import Traffic, replayed
from feddle.runtimes.simulation import Simulation
from feddle.training.machine import release_freed_pages

_ROWS = 4  # anchors in a measured search step


@dataclass(frozen=True)
class Forecast:
    """An estimate, the numbers that it starts from, and remarks for the reader."""

    estimate: Estimate
    config: Config
    sizes: Sizes
    traffic: Traffic
    held: Held
    remarks: tuple[str, ...]


def forecast(config: Config, began: float, *, quiet: bool = False) -> Forecast:
    """The estimate of a run on this machine. `began` is the CPU time of this process before it loaded anything.

    The data is read and partitioned as in the run, so clients and delays are the same. The time that this takes
    is the time that the run takes to start.
    """
    run = simulated(config, build_problem(config, quiet=quiet), scratch=Path(tempfile.gettempdir()))
    start, largest = time.process_time() - began, memory()
    release_freed_pages()
    now = memory()
    workers = resolve_workers(config.workers, run.device)
    on = Machine(workers, cores(), start, Memory(now.now, largest.peak) if now and largest else None)
    schedule = replayed(run.runtime, config.rounds)
    sizes, held = Sizes(run.layout.size, len(run.server.model.buffers)), _held(run)
    setting = setting_of(config, schedule.traffic, sizes, held)
    cost = cost_of(config.method, setting)
    measured = measure(subject_of(run, config))
    estimate = of_run(schedule, run.problem.sizes.tolist(), setting, cost, config, sizes, measured, on)
    if run.device != "cpu":  # the CPU time of this process does not include the work of the device
        estimate = replace(estimate, time=None)
    return Forecast(estimate, config, sizes, schedule.traffic, held, _remarks(config, cost, run.device))


def forecast_on_paper(config: Config, sizes: Sizes, examples: int | None) -> Forecast:
    """The estimate of a federation without its data and its model; `examples` is the average of a client."""
    held = Held(config.clients.count, examples or 0, config.data.server.samples or 0, 0)
    traffic = expected_traffic(config, sizes, held)
    cost = cost_of(config.method, setting_of(config, traffic, sizes, held))
    remarks = (
        "Without a config there is no time, since nothing is measured.",
        "The memory does not include data, libraries and, at clients, activations.",
        *_remarks(config, cost),
    )
    return Forecast(on_paper(traffic, sizes, cost, config), config, sizes, traffic, held, remarks)


def _held(run: Run[Simulation]) -> Held:
    problem = run.problem
    clients = len(problem.eligible)
    server, test = (0 if part is None else len(part) for part in (problem.server, problem.test))
    return Held(clients, float(problem.sizes.sum()) / max(clients, 1), server, test, problem.out_of_domain is not None)


def subject_of(run: Run[Simulation], config: Config) -> Subject:
    """The client with the most data, and anchors as the method stores them."""
    problem, method, rows, blocks = run.problem, config.method, None, None
    if isinstance(method, AtlasOptions):
        rows = _rows(method, run)
        outside = problem.out_of_domain is not None and method.adapts
        blocks = None if outside else make_blocks(method.coefficients, run.layout)
    examples = problem.clients[int(problem.sizes.argmax())]
    return Subject(problem.model, examples, config.training, problem.loss, problem.augment, rows, blocks)


def _rows(method: AtlasOptions, run: Run[Simulation]) -> Rows:
    """A few anchors, to time the products of a search. They are in memory, even if the run keeps them on disk."""
    if isinstance(method.storage, Int8Storage):
        from feddle.core.packed import Int8Rows  # numba takes a second to import

        return Int8Rows.empty(_ROWS, run.layout.size)
    return FloatRows.empty(_ROWS, run.layout.size, run.device)


def _remarks(config: Config, cost: Cost, device: str = "cpu") -> tuple[str, ...]:
    found = []
    if config.delays.sigma and cost.max_staleness != -1:  # some methods use no updates
        kept = "Slow clients stay slow." if config.delays.per == "client" else "A client's delay changes with each job."
        found.append(f"Delays are ⌊|Normal(0, σ)|⌋ rounds with σ = {config.delays.sigma:g}. {kept}")
    if isinstance(config.method, AtlasOptions) and isinstance(config.method.storage, DiskStorage):
        found.append("The time to read the anchors from the disk is not measured, so it is not included.")
    if not cost.known:
        found.append(f"What {config.method.name} itself computes and keeps is not known, so it is not included.")
    if device != "cpu":
        found.append(f"Time and memory on {device} are not measured; the estimate is the memory of the host.")
    return tuple(found)
