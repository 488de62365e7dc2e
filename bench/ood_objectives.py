"""How well objectives on data of another domain agree with the direction of the clients' own data.

Runs a federation of `experiments/small.yaml`. Every merge is a plain step of the fallback, so that all objectives get
the same rounds. In some rounds, every objective is compared at the start of the search (c′). Three quantities are
measured: the cosine between its gradient ∂ℓ/∂c and that of 3000 in-domain images, the cosine between ∂ℓ/∂c on two
halves of its own images (which `method.gate` uses), and the change in test accuracy after a search (Adam, one pass)
from c′. 1000 in-domain images are the baseline, with and without their labels. They are test images, so the gain
of the baseline is slightly optimistic. Prints means with standard errors. `--config` measures another out-of-domain
config, such as `experiments/outside-mobilenet-classes.yaml`. Its networks are large, so use `--samples 500 --lr 0.01`.
"""

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from variants import OUTSIDE

from feddle.core.atlas import SearchSpace
from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.seeds import torch_generator
from feddle.data.examples import Examples, Selection
from feddle.methods.feddle.gate import halves
from feddle.methods.feddle.method import Feddle
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.run.run import Run
from feddle.run.simulate import simulated
from feddle.runtimes.simulation import Simulation
from feddle.training.distil import DistilObjective
from feddle.training.objectives import TaskObjective
from feddle.training.search import Found, Objective, PaperSearch, SearchTask, full_pass
from feddle.training.surrogate import HeadOptions, SurrogateObjective
from feddle.training.train import evaluate


def candidates(run: Run[Simulation], number: int) -> dict[str, Objective]:
    """The objectives by name, with this number of images. The run's own is distil, whose teachers are shared."""
    model, layout, server, test = run.problem.model, run.layout, run.problem.server, run.problem.test
    classes, strategy = run.problem.server_classes, run.server.strategy
    assert server is not None
    assert test is not None
    assert classes is not None
    assert isinstance(strategy, Feddle)
    assert isinstance(strategy.objective, DistilObjective)
    own = strategy.objective

    def surrogate(head_steps: int = 20, cluster_steps: int = 0) -> SurrogateObjective:
        options = HeadOptions(head_steps=head_steps)
        return SurrogateObjective(model, layout, server, classes, number, options, cluster_steps)

    def distil(examples: Examples, samples: int) -> DistilObjective:
        objective = DistilObjective(own.bench, examples, own.teachers, samples)
        objective.state = own.state
        return objective

    return {
        "in-domain, 1000 images": TaskObjective(model, layout, test, samples_per_round=1000),
        "surrogate, θ fitted for 20 steps": surrogate(),
        "surrogate, θ fitted for 100 steps": surrogate(100),
        "surrogate, θ fitted on other images": FittedElsewhere(surrogate(200)),
        "clusters": surrogate(cluster_steps=10),
        "distil": distil(server, number),
        "distil, in-domain, 1000 images": distil(test, 1000),
    }


@dataclass(eq=False)
class FittedElsewhere:
    """The surrogate with a θ that was fitted on other images than those of the search."""

    objective: SurrogateObjective

    def begin(
        self,
        start: Weights,
        seed: int,
        among: Tensor | None = None,  # noqa: ARG002
        arrivals: Sequence[Arrival] = (),  # noqa: ARG002
    ) -> None:
        """Fit θ on the first images of a random order, and search on the next ones."""
        examples = self.objective.examples
        count = self.objective.samples_per_round or len(examples) // 2
        order = torch.randperm(len(examples), generator=torch_generator(seed))[: 2 * count]
        self.objective.begin(start, seed, order[: len(order) // 2])
        self.objective._current = Selection(examples, order[len(order) // 2 :])

    def __len__(self) -> int:
        return len(self.objective)

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        return self.objective.loss_and_gradient(point, examples)


@dataclass(eq=False)
class Probing:
    """Compares the candidates at every `every`-th merge. The run itself takes the fallback's step."""

    run: Run[Simulation]
    every: int
    samples: int
    search: PaperSearch
    rows: dict[str, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))
    seen: int = 0

    def __post_init__(self) -> None:
        test = self.run.problem.test
        assert test is not None
        self.candidates = candidates(self.run, self.samples)
        self.reference = TaskObjective(self.run.problem.model, self.run.layout, test, samples_per_round=3000)
        self.test = test

    def __call__(self, task: SearchTask) -> Found:
        space, start, seed = task.space, task.start, task.seed
        self.seen += 1
        if self.seen % self.every == 0:
            point = space.point(start)
            self.reference.begin(point, seed)
            true, before = self._slope(self.reference, space, start), self._accuracy(space, start)
            for name, candidate in self.candidates.items():
                candidate.begin(point, seed + 1)  # other images than the reference's
                cosine = torch.cosine_similarity(self._slope(candidate, space, start), true, dim=0)
                found = self.search(replace(task, objective=candidate))
                agreement = halves(replace(task, objective=candidate))[0]
                gain = self._accuracy(space, found.coefficients) - before
                self.rows[name].append((float(cosine), agreement, 100 * gain))
        return Found(start, 0.0)

    @staticmethod
    def _slope(objective: Objective, space: SearchSpace, at: Tensor) -> Tensor:
        return space.project(full_pass(objective, space.point(at))[1])

    def _accuracy(self, space: SearchSpace, at: Tensor) -> float:
        self.run.layout.write(self.run.problem.model, space.point(at))
        return evaluate(self.run.problem.model, self.test).accuracy


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--every", type=int, default=8, help="merges from one comparison to the next")
    parser.add_argument("--samples", type=int, default=2000, help="images of the other domain per merge")
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate of the searches")
    parser.add_argument("--config", type=Path, help="by default experiments/small.yaml with CIFAR-10 at the server")
    arguments = parser.parse_args()
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    changes = (
        ["method.objective=distil"] if arguments.config else [*OUTSIDE, "method={name: feddle, objective: distil}"]
    )
    for seed in arguments.seeds:
        setting = [f"seed={seed}", "workers=0", f"rounds={arguments.rounds}", "evaluation.every=1000"]
        config = load_config(arguments.config or Path("experiments/small.yaml"), [*setting, *changes])
        run = simulated(config, build_problem(config))
        assert isinstance(run.server.strategy, Feddle)
        probing = run.server.strategy.search = Probing(
            run, arguments.every, arguments.samples, PaperSearch(lr=arguments.lr)
        )
        run.go()
        for name, measured in probing.rows.items():
            rows[name] += measured
    print(
        "| objective | cosine with the in-domain ∂ℓ/∂c | cosine of two halves | accuracy gained by a search "
        "| comparisons |\n|---|---|---|---|---|"
    )
    for name, measured in rows.items():
        cosines, agreements, gains = zip(*measured, strict=True)
        print(f"| {name} | {_mean(cosines, 2)} | {_mean(agreements, 2)} | {_mean(gains, 1)} | {len(measured)} |")


def _mean(values: Sequence[float], digits: int) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.{digits}f} ± {error:.{digits}f}"


if __name__ == "__main__":
    main()
