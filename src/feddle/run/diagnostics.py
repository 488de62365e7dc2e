"""The quantities of the paper's figures and theorems, measured during a run."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from feddle.core.layout import Layout, Weights
from feddle.core.messages import Arrival, Job
from feddle.core.search import Found, Objective, Observer, Search, SearchTask, full_pass
from feddle.core.seeds import numpy_generator, seed_for
from feddle.options import Count, Options
from feddle.runtimes.trainers import Trainer
from feddle.training.objectives import TaskObjective

if TYPE_CHECKING:
    from feddle.run.problem import Problem

_REMEMBERED = 10  # true updates of earlier rounds


class DiagnosticsOptions(Options):
    """Extra measurements of what the paper's figures and theorems are about; they do not change the run."""

    every: Count = Field(10, description="rounds between two measurements")
    clients: Annotated[Count, Field(ge=2)] = Field(
        20, description="clients that are trained for a measurement, as an estimate of the true update"
    )


@dataclass(eq=False)
class DiagnosticsState:
    """The true updates of earlier measurements, oldest first."""

    earlier: deque[Tensor] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class Diagnostics:
    """Measures a model on the data of some sampled clients, without an effect on the run.

    It trains what the clients would send, attacks and privacy noise included. Nothing is sent, so ε does not count it.
    Gradients are taken on the clients' data as it is.
    """

    def __init__(
        self,
        problem: "Problem",
        layout: Layout,
        trainer: Trainer,
        *,
        every: int,
        clients: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self.problem = problem
        self.layout = layout
        self.trainer = trainer
        self.every = every
        self.clients = clients
        self.batch_size = batch_size
        self.seed = seed
        self._eligible = problem.sizes.nonzero().flatten().numpy()
        self.state = DiagnosticsState()

    def look(self, number: int, model: Weights, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        """The measurements of the model after round `number`."""
        order = numpy_generator(seed_for(self.seed, "diagnostics", number)).permutation(self._eligible)
        chosen = order[: self.clients]
        return self._updates(number, model, chosen) | self._gradients(model, chosen) | self._norms(model, arrivals)

    def _updates(self, number: int, model: Weights, chosen: np.ndarray) -> dict[str, Any]:
        """Cosines of clients' updates with the true update, Σ n_j/n Δ_j, and of true updates with earlier ones.

        The true update is that of the sampled clients; each is compared with that of the others, so that
        a small sample does not flatter it.
        """
        jobs = [Job(int(client), -number, number) for client in chosen]  # no client's own job has such a number
        for job in jobs:
            self.trainer.submit(job, model, due=0)
        updates = [self.trainer.result(job) for job in jobs]
        weighted = [u.num_examples * u.delta for u in updates]
        total = torch.stack(weighted).sum(0)
        cosines = [cosine(u.delta, total - own) for u, own in zip(updates, weighted, strict=True)]
        across = [cosine(total, earlier) for earlier in reversed(self.state.earlier)]
        self.state.earlier.append(total)
        return {
            "update_cosine": {"mean": fmean(cosines), "min": min(cosines), "max": max(cosines)},
            "true_update_cosines": across,  # with the true update of the last measurement, the one before, …
        }

    def _gradients(self, model: Weights, chosen: np.ndarray) -> dict[str, Any]:
        """Theorem 1's constant C = (σ_l² + σ_g²)/‖∇F‖², over the sampled clients."""
        means, local = [], []
        for client in chosen.tolist():
            mean, variance = self._client_gradient(model, client)
            means.append(mean)
            local.append(variance)
        every = torch.stack(means)
        mean = every.mean(0)
        spread = (every - mean).square().sum(1).mean()
        return {"noise_to_signal": float((fmean(local) + spread) / mean.square().sum().clamp(min=1e-30))}

    def _client_gradient(self, model: Weights, client: int) -> tuple[Tensor, float]:
        """∇F_j (d,), and the variance σ_l² of a mini-batch's gradient around it."""
        objective = self._objective(client)
        batches = torch.split(torch.arange(len(objective)), self.batch_size)
        gradients = torch.stack([objective.loss_and_gradient(model, index)[1] for index in batches])
        shares = torch.tensor([len(index) / len(objective) for index in batches])[:, None].to(gradients.device)
        mean = (shares * gradients).sum(0)
        return mean, float((shares * (gradients - mean).square()).sum())

    def _norms(self, model: Weights, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        """Theorem 1's C_max: how ‖∇F_j‖² at the model that a client began from compares with now."""
        ratios = []
        for arrival in arrivals:
            client = arrival.update.job.client
            then, now = (self._client_gradient(at, client)[0].square().sum() for at in (arrival.start, model))
            ratios.append(float(then / now.clamp(min=1e-30)))
        return {"gradient_norm_ratio": {"mean": fmean(ratios), "max": max(ratios)}} if ratios else {}

    def _objective(self, client: int) -> TaskObjective:
        problem = self.problem
        return TaskObjective(problem.model, self.layout, problem.clients[client], problem.loss)


@dataclass(frozen=True, eq=False)
class InDomainComparison:
    """Compares an out-of-domain search with the same search on in-domain data: figures search_pattern, ood_signal."""

    objective: Objective
    every: int

    def __call__(self, round: int, task: SearchTask, search: Search, found: Found) -> Mapping[str, Any]:
        """Cosines between the two objectives' directions: ∂ℓ/∂c at c′ over all examples, and ĉ − c′."""
        if round % self.every:
            return {}
        point, other = task.space.point(task.start), replace(task, objective=self.objective)
        self.objective.begin(point, task.seed)
        slopes = [task.space.project(full_pass(each.objective, point)[1]) for each in (task, other)]
        moves = [result.coefficients - task.start for result in (found, search(other))]
        return {"signal_cosine": cosine(*slopes), "search_cosine": cosine(*moves)}


def build_diagnostics(
    options: DiagnosticsOptions | None,
    problem: "Problem",
    layout: Layout,
    trainer: Trainer,
    batch_size: int,
    seed: int,
) -> Diagnostics | None:
    """The measurements that a plan asks for."""
    if options is None:
        return None
    every, clients = options.every, options.clients
    return Diagnostics(problem, layout, trainer, every=every, clients=clients, batch_size=batch_size, seed=seed)


def build_observer(options: DiagnosticsOptions | None, problem: "Problem", layout: Layout) -> Observer | None:
    """A comparison with in-domain data, if diagnostics are on and the server's data is of another domain."""
    examples = problem.witness
    if options is None or examples is None:
        return None
    objective = TaskObjective(problem.model, layout, examples, problem.loss, samples_per_round=1000)
    return InDomainComparison(objective, options.every)


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two vectors; 0 if one of them is zero."""
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))
