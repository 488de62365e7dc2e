"""Compare searches on the same rounds: the result of each, and its cost.

Runs a federation with the paper's search. In a few rounds, every other search solves the same problem (same atlas, same
start, same server data), and its result is then discarded. Prints for each search the final loss on the server's data,
the accuracy of that model on the test images, and its time divided by that of one pass of Adam. With `--whole NAME...`,
makes whole runs with each of these searches instead. Gauss-Newton is here and not in the package; docs/results.md says
why.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch._dynamo  # otherwise L-BFGS's first step imports it, and its time includes that
from torch import Tensor
from torch.func import functional_call, jvp

from feddle.core.atlas import SearchSpace
from feddle.methods.feddle.method import Feddle
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.run.run import Run
from feddle.run.simulate import simulated
from feddle.runtimes.simulation import Simulation
from feddle.training.objectives import TaskObjective
from feddle.training.search import (
    AnnealedSearch,
    Found,
    LbfgsSearch,
    Objective,
    PaperSearch,
    Search,
    SearchTask,
    full_pass,
)
from feddle.training.train import evaluate


@dataclass(frozen=True)
class GaussNewtonSearch:
    """Steps that solve (H + μ) δ = −g, with H = mean of Jᵀ(diag p − p pᵀ)J by forward-mode products on a sample.

    The gradient is over all data. A step that does not lower the loss is tried again at a quarter of its length.
    """

    iterations: int
    sample: int = 256
    damping: float = 1e-3

    def __call__(self, task: SearchTask) -> Found:
        """Search."""
        space, objective, start, regularisation = task.space, task.objective, task.start, task.regularisation
        assert isinstance(objective, TaskObjective)
        coefficients = start.clone()
        loss, gradient = full_pass(objective, space.point(coefficients), 250)
        chosen = torch.randperm(len(objective), generator=torch.Generator().manual_seed(task.seed))[: self.sample]
        for _ in range(self.iterations):
            slope = task.slope(coefficients, gradient)
            curvature = self._curvature(space, objective, coefficients, chosen)
            damping = self.damping * curvature.diagonal().mean() + regularisation
            step = torch.linalg.solve(curvature + damping * torch.eye(len(start)), -slope)
            for length in (1.0, 0.25, 0.0625):
                tried = coefficients + length * step
                new_loss, new_gradient = full_pass(objective, space.point(tried), 250)
                if new_loss < loss:
                    coefficients, loss, gradient = tried, new_loss, new_gradient
                    break
            else:
                break
        return Found(coefficients, loss)

    @staticmethod
    def _curvature(space: SearchSpace, objective: TaskObjective, at: Tensor, chosen: Tensor) -> Tensor:
        model, layout = objective.model, objective.layout

        def named(vector: Tensor) -> dict[str, Tensor]:
            return {s.name: vector[s.place].view(s.shape) for s in layout.parameters}

        inputs, _ = objective.examples.take(chosen)
        point = named(space.point(at).vector)
        directions = torch.eye(len(at))
        zeros = torch.zeros_like(space.origin.vector)
        tangents = []
        for direction in directions:
            along = named(space.anchors.combine(zeros, direction * space.scales))
            logits, tangent = jvp(lambda p: functional_call(model, p, (inputs,)), (point,), (along,))
            tangents.append(tangent)
        probabilities = logits.detach().softmax(1)
        jacobian = torch.stack(tangents).detach()  # (m, n, classes)
        weighted = probabilities * jacobian - probabilities * (probabilities * jacobian).sum(2, keepdim=True)
        return torch.einsum("anc,bnc->ab", jacobian, weighted) / len(chosen)


CANDIDATES: dict[str, Search] = {
    "Adam 1e-3, 1 pass": PaperSearch(lr=1e-3, epochs=1, batch_size=32),
    "Adam 3e-3, 1 pass": PaperSearch(lr=3e-3, epochs=1, batch_size=32),
    "Adam 1e-2, 1 pass": PaperSearch(lr=1e-2, epochs=1, batch_size=32),
    "Adam 1e-3, 10 passes": PaperSearch(lr=1e-3, epochs=10, batch_size=32),
    "annealed 1e-2, 1 pass": AnnealedSearch(lr=1e-2, epochs=1, batch_size=32),
    "annealed 3e-2, 1 pass": AnnealedSearch(lr=3e-2, epochs=1, batch_size=32),
    "annealed 1e-2, 3 passes": AnnealedSearch(lr=1e-2, epochs=3, batch_size=32),
    "annealed 1e-2, batch 128, 3 passes": AnnealedSearch(lr=1e-2, epochs=3, batch_size=128),
    "L-BFGS, 2": LbfgsSearch(iterations=2),
    "L-BFGS, 5": LbfgsSearch(iterations=5),
    "L-BFGS, 10": LbfgsSearch(iterations=10),
    "Gauss-Newton, 1": GaussNewtonSearch(1),
    "Gauss-Newton, 3": GaussNewtonSearch(3),
}


@dataclass(eq=False)
class Comparing:
    """Runs every candidate in the chosen merges. The run itself continues with the first."""

    run: Run[Simulation]
    merges: Sequence[int]
    rows: dict[str, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))
    seen: int = 0

    def __call__(self, task: SearchTask) -> Found:
        self.seen += 1
        if self.seen in self.merges:
            self._note("the start c′", task.space, task.objective, task.start, 0.0)
            for name, search in CANDIDATES.items():
                began = time.process_time()
                found = search(task)
                self._note(name, task.space, task.objective, found.coefficients, time.process_time() - began)
        return next(iter(CANDIDATES.values()))(task)

    def _note(self, name: str, space: SearchSpace, objective: Objective, at: Tensor, seconds: float) -> None:
        point = space.point(at)
        loss, _ = full_pass(objective, point, 250)
        self.run.layout.write(self.run.problem.model, point)
        assert self.run.problem.test is not None
        accuracy = evaluate(self.run.problem.model, self.run.problem.test).accuracy
        self.rows[name].append((loss, accuracy, seconds))


def whole_runs(config: Path, seeds: Sequence[int], names: Sequence[str]) -> None:
    """Print the accuracy (best of the last five evaluations, and last) of whole runs, and their CPU time."""
    print("| search | accuracy | last | CPU seconds of a run |\n|---|---|---|---|")
    for name in names:
        results, seconds = [], []
        for seed in seeds:
            chosen = load_config(config, [f"seed={seed}", "workers=0"])
            run = simulated(chosen, build_problem(chosen))
            assert isinstance(run.server.strategy, Feddle)
            run.server.strategy.search = CANDIDATES[name]
            began = time.process_time()
            run.go()
            seconds.append(time.process_time() - began)
            results.append(run.result)
        best, last = ([100 * r[key] for r in results] for key in ("accuracy", "last_accuracy"))
        print(f"| {name} | {_spread(best)} | {_spread(last)} | {statistics.fmean(seconds):.0f} |", flush=True)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("experiments/demo.yaml"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--merges", type=int, nargs="+", default=[10, 25, 45])
    parser.add_argument("--whole", nargs="+", choices=CANDIDATES, help="whole runs with these searches")
    arguments = parser.parse_args()
    if arguments.whole:
        whole_runs(arguments.config, arguments.seeds, arguments.whole)
        return
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for seed in arguments.seeds:
        overrides = [f"seed={seed}", "workers=0", f"rounds={max(arguments.merges) + 1}", "evaluation.every=1000"]
        config = load_config(arguments.config, overrides)
        run = simulated(config, build_problem(config))
        assert isinstance(run.server.strategy, Feddle)
        comparing = Comparing(run, arguments.merges)
        run.server.strategy.search = comparing
        run.go()
        for name, measured in comparing.rows.items():
            rows[name] += measured
    unit = statistics.median(seconds for _, _, seconds in rows["Adam 1e-3, 1 pass"])
    print("| search | loss on the server's data | accuracy of the model found | cost, in passes of Adam |")
    print("|---|---|---|---|")
    for name, measured in rows.items():
        losses, accuracies, times = zip(*measured, strict=True)
        cost = statistics.median(times) / unit
        print(f"| {name} | {statistics.fmean(losses):.3f} | {100 * statistics.fmean(accuracies):.1f} | {cost:.1f} |")


if __name__ == "__main__":
    main()
