"""Where the time of a simulated round goes: `python bench/round_time.py`.

The workload is that of `bench/peers.py` (synchronous FedAvg, the paper's CNN). The first table is the CPU time of a job
in one process with one thread, by part. The second is the wall time of two workers: how long they train, and how long
they wait for the first job, for the last job of a round, and for the server. The last line is the share of the workers'
time that the passes through the model take: what is left of a run if everything else took no time.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from feddle.clients.work import ClientWork, Work
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Job, Update
from feddle.data.examples import Examples
from feddle.run.problem import Problem, build_problem
from feddle.run.simulate import simulated
from feddle.runtimes.workers import WorkerPool
from feddle.training.kernels import Optimizer
from feddle.training.machine import one_thread
from feddle.training.train import Recipe

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from settings import workload_config

PASSES = "forward and backward passes"


class Times:
    """CPU seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of a block to a part."""
        began = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began


@dataclass(frozen=True, eq=False)
class TimedExamples:
    """Examples whose batches are timed."""

    examples: Examples
    times: Times

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, index: Tensor) -> tuple[Any, Tensor]:
        with self.times.part("preparing batches"):
            return self.examples.take(index)


def timed_job(problem: Problem, layout: Layout, start: Weights, client: int, recipe: Recipe, times: Times) -> None:
    """The steps of `train_client`, each timed."""
    model, examples = problem.model, TimedExamples(problem.clients[client], times)
    with times.part("copying weights in and out"):
        layout.write(model, start)
    with times.part("making the optimiser"):
        optimizer: Optimizer = recipe.make_optimizer(model)
    model.train()
    for index in torch.randperm(len(examples)).split(recipe.batch_size):
        inputs, targets = examples.take(index)
        with times.part(PASSES):
            model.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        with times.part("optimiser's steps"):
            optimizer.step()
    with times.part("copying weights in and out"):
        end = layout.read(model)
        end.vector.sub_(start.vector)


def by_part(jobs: int) -> tuple[Times, float]:
    """The times of the parts of all jobs, and the CPU time of the same jobs in feddle."""
    config = workload_config(1, 0)
    problem = build_problem(config, quiet=True)
    layout, recipe = Layout.of(problem.model), config.training
    start, times = layout.read(problem.model), Times()
    work = ClientWork(problem.model, layout, problem.clients, recipe, problem.loss, 0)
    timed_job(problem, layout, start, 0, recipe, Times())  # warms up
    whole = Times()
    for client in range(jobs):
        timed_job(problem, layout, start, client, recipe, times)
        with whole.part("job"):
            work(Job(client, 0, 0), start)
    return times, whole.seconds["job"]


@dataclass(frozen=True, eq=False)
class LoggedWork:
    """Work that writes its beginning and end to a file, from whichever process does it."""

    work: Work
    path: Path

    def __call__(self, job: Job, start: Weights) -> Update:
        """Do the job."""
        began = time.monotonic()
        update = self.work(job, start)
        with self.path.open("a") as file:
            file.write(json.dumps([job.version, began, time.monotonic()]) + "\n")
        return update


def with_workers(rounds: int, workers: int) -> dict[str, float]:
    """Shares of workers × wall time: training, waiting at the start, for the last job of each round, for the server."""
    config = workload_config(rounds, workers)
    run = simulated(config, replace(build_problem(config, quiet=True), test=None))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        assert isinstance(run.workers, WorkerPool)
        run.workers.work = LoggedWork(run.workers.work, log)
        began = time.monotonic()
        run.go()
        ended = time.monotonic()
        jobs = [json.loads(line) for line in log.read_text().splitlines()]
    return shares(jobs, began, ended, workers)


def shares(jobs: Sequence[tuple[int, float, float]], began: float, ended: float, workers: int) -> dict[str, float]:
    """The shares of the time of all workers, from (version, begin, end) of each job."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    for version, begin, end in jobs:
        rounds.setdefault(version, []).append((begin, end))
    spans = [(min(b for b, _ in each), max(e for _, e in each)) for _, each in sorted(rounds.items())]
    total, busy = workers * (ended - began), sum(end - begin for _, begin, end in jobs)
    first, inside = spans[0][0] - began, sum(end - begin for begin, end in spans)
    return {
        "training": busy / total,
        "starting, until the first job": workers * first / total,
        "waiting within a round": (workers * inside - busy) / total,
        "waiting for the server between rounds": 1 - (workers * (first + inside)) / total,
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with one_thread():
        times, whole = by_part(arguments.jobs)
    print("| part of a job | share of its CPU time |\n|---|---|")
    for name, seconds in sorted(times.seconds.items(), key=lambda item: -item[1]):
        print(f"| {name} | {100 * seconds / whole:.1f} % |")
    print(f"| the rest: losses, order of the batches, loop | {100 - 100 * sum(times.seconds.values()) / whole:.1f} % |")
    print(f"\n| time of {arguments.workers} workers | share |\n|---|---|")
    found = with_workers(arguments.rounds, arguments.workers)
    for name, share in found.items():
        print(f"| {name} | {100 * share:.1f} % |")
    print(
        f"\nThe passes through the model take {100 * found['training'] * times.seconds[PASSES] / whole:.0f} % of the "
        "workers' time."
    )


if __name__ == "__main__":
    main()
