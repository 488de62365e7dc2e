"""Wall time of a Feddle run with workers, compared with its work shared evenly: `python bench/wall.py`.

The setting is the paper's for Fashion-MNIST, shortened. A run in one process with one thread gives the work: the CPU
time of the clients' training, and of everything else (search, merging, evaluation), which is server work. A run with
one worker per core then does the same work, with bit-identical results. Prints wall time / ((client work + server work)
/ cores). The limit of the machine is 1. Jobs that are trained but not used make the ratio larger.
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
from feddle.run.simulate import simulated
from feddle.runtimes.simulation import Simulation, Trainer

CONFIG = Path(__file__).resolve().parent.parent / "experiments" / "fashion-mnist-cnn.yaml"
GOAL = 1.15


@dataclass(frozen=True)
class Work:
    """The CPU seconds of a run in one process."""

    clients: float
    server: float


@dataclass
class TimedTrainer:
    """A trainer that adds up its CPU time."""

    trainer: Trainer
    seconds: float = 0.0

    def submit(self, job: Job, start: Weights, due: int) -> None:
        self.trainer.submit(job, start, due)

    def result(self, job: Job) -> Update:
        began = time.process_time()
        try:
            return self.trainer.result(job)
        finally:
            self.seconds += time.process_time() - began


def build(changes: Sequence[str], workers: int) -> Run[Simulation]:
    """The run with this number of workers; 0 trains in this process."""
    config = load_config(CONFIG, [*changes, f"workers={workers}", "device=cpu"])
    return simulated(config, build_problem(config, quiet=True))


def inline(changes: Sequence[str]) -> tuple[Work, Weights]:
    """The work of the run, and the resulting model."""
    run = build(changes, 0)
    timed = TimedTrainer(run.runtime.trainer)
    run.runtime.trainer = timed
    began = time.process_time()
    run.go()
    return Work(timed.seconds, time.process_time() - began - timed.seconds), run.server.model


def wall_time(changes: Sequence[str], workers: int) -> tuple[float, Weights]:
    """The seconds that the run takes with workers, and the resulting model."""
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
