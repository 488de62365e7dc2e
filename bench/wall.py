"""How near a Feddle run with workers comes to its own work shared out evenly: `python bench/wall.py`.

The paper's setting for Fashion-MNIST, shortened. A run in one process of one thread gives the work: the CPU time of its
clients' training, and of everything else (search, merging, evaluation), which is the server's. A run with one worker a
core then does the same work, to the same bits. Printed is wall time / ((client work + server work) / cores): 1 is the
machine's limit, and jobs that a worker trains for nothing count against it.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.run.run import Run
from feddle.run.simulated import simulated
from feddle.runtimes.simulation import Simulation
from feddle.runtimes.trainers import Trainer

CONFIG = Path(__file__).resolve().parent.parent / "experiments" / "fashion-mnist-cnn.yaml"
GOAL = 1.15


@dataclass(frozen=True)
class Work:
    """The CPU seconds of a run in one process."""

    clients: float
    server: float


@dataclass
class TimedTrainer:
    """Any trainer, its CPU time added up."""

    trainer: Trainer
    seconds: float = 0.0

    def submit(self, job: Job, start: Weights, due: int) -> None:
        """See `Trainer`."""
        self.trainer.submit(job, start, due)

    def result(self, job: Job) -> Update:
        """See `Trainer`."""
        began = time.process_time()
        try:
            return self.trainer.result(job)
        finally:
            self.seconds += time.process_time() - began


def build(changes: Sequence[str], workers: int) -> Run[Simulation]:
    """The run with so many workers; 0: in this process."""
    config = load_config(CONFIG, [*changes, f"workers={workers}", "device=cpu"])
    return simulated(config, build_problem(config, quiet=True))


def inline(changes: Sequence[str]) -> tuple[Work, Weights]:
    """The work of the run, and the model that comes of it."""
    run = build(changes, 0)
    timed = TimedTrainer(run.runtime.trainer)
    run.runtime.trainer = timed
    began = time.process_time()
    run.go()
    return Work(timed.seconds, time.process_time() - began - timed.seconds), run.server.model


def wall_time(changes: Sequence[str], workers: int) -> tuple[float, Weights]:
    """The seconds that the run takes with workers, and the model that comes of it."""
    run = build(changes, workers)
    began = time.perf_counter()
    run.go()
    return time.perf_counter() - began, run.server.model


def main() -> None:
    """Print the ratio of each repeat and the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--search", default=None, help="another search than the config's, by name: lbfgs")
    options = parser.parse_args()
    changes = [f"rounds={options.rounds}", *([f"method.search={options.search}"] if options.search else [])]
    cores = len(os.sched_getaffinity(0))
    ratios = []
    for repeat in range(options.repeats):
        work, expected = inline(changes)
        seconds, model = wall_time(changes, cores)
        if not torch.equal(expected.vector, model.vector):
            raise SystemExit("the run with workers ended with another model: it did not do the same work")
        ratios.append(seconds / ((work.clients + work.server) / cores))
        share = work.server / (work.clients + work.server)
        print(f"repeat {repeat + 1}: {ratios[-1]:.3f} (the server's share of the work is {share:.0%})", flush=True)
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(
        f"wall time / ((client work + server work) / {cores} cores) = {middle:.2f} "
        f"(median; {low:.2f} to {high:.2f}; goal {GOAL})"
    )


if __name__ == "__main__":
    main()
