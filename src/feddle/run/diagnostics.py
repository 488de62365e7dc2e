"""The quantities of the paper's figures and theorems, measured during a run."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddle.core.batches import in_order
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Arrival, Job
from feddle.core.seeds import numpy_generator, seed_for
from feddle.methods.feddle.gate import GatedSearch
from feddle.run.plan import DiagnosticsOptions
from feddle.run.problem import Problem
from feddle.runtimes.simulation import Trainer
from feddle.training.objectives import TaskObjective
from feddle.training.search import Found, Objective, Search, SearchTask, cosine, full_pass

_REMEMBERED = 10  # true updates of earlier rounds


@dataclass(eq=False)
class DiagnosticsState:
    """The true updates of earlier measurements, oldest first."""

    earlier: deque[Tensor] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


@dataclass(eq=False)
class Diagnostics:
    """Measures a model on the data of sampled clients, without changing the run.

    Clients are trained as in the run, including attacks and privacy noise. Nothing is sent, so ε does not count it.
    Gradients are computed on the clients' data, without attacks or noise.
    """

    problem: Problem
    layout: Layout
    trainer: Trainer
    options: DiagnosticsOptions
    batch_size: int
    seed: int
    state: DiagnosticsState = field(default_factory=DiagnosticsState)

    def measure(self, number: int, model: Weights, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        """The measurements after round `number`; empty if none is due."""
        if number % self.options.every:
            return {}
        order = numpy_generator(seed_for(self.seed, "diagnostics", number)).permutation(self.problem.eligible.numpy())
        chosen = order[: self.options.clients]
        return self._updates(number, model, chosen) | self._gradients(model, chosen) | self._norms(model, arrivals)

    def _updates(self, number: int, model: Weights, chosen: np.ndarray) -> dict[str, Any]:
        """Cosines of clients' updates with the true update, Σ n_j/n Δ_j, and of true updates with earlier ones.

        The true update is estimated from the sampled clients. Each client is compared with the sum over the others,
        because its own part would raise the cosine in a small sample.
        """
        jobs = [Job(int(client), -number, number) for client in chosen]  # clients' own jobs have no negative number
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
            "true_update_cosines": across,  # with the previous measurements, latest first
        }

    def _gradients(self, model: Weights, chosen: np.ndarray) -> dict[str, Any]:
        """Theorem 1's constant C = (σ_l² + σ_g²)/‖∇F‖², over the sampled clients."""
        means, local = zip(*(self._client_gradient(model, client) for client in chosen.tolist()), strict=True)
        every = torch.stack(means)
        mean = every.mean(0)
        spread = (every - mean).square().sum(1).mean()
        return {"noise_to_signal": float((fmean(local) + spread) / mean.square().sum().clamp(min=1e-30))}

    def _client_gradient(self, model: Weights, client: int) -> tuple[Tensor, float]:
        """∇F_j (d,), and the variance σ_l² of a mini-batch's gradient around it; one batch at a time (Welford)."""
        problem = self.problem
        objective = TaskObjective(problem.model, self.layout, problem.clients[client], problem.loss)
        mean, spread, seen = torch.zeros_like(model.vector), 0.0, 0
        for index in in_order(len(objective), self.batch_size):
            gradient = objective.loss_and_gradient(model, index)[1]
            seen += len(index)
            step = gradient - mean
            mean = mean + (len(index) / seen) * step
            spread += len(index) * float(step @ (gradient - mean))
        return mean, spread / seen

    def _norms(self, model: Weights, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        """Theorem 1's C_max: ‖∇F_j‖² at the model that a client started from, relative to the current model."""
        ratios = []
        for arrival in arrivals:
            client = arrival.update.job.client
            then, now = (self._client_gradient(at, client)[0].square().sum() for at in (arrival.start, model))
            ratios.append(float(then / now.clamp(min=1e-30)))
        return {"gradient_norm_ratio": {"mean": fmean(ratios), "max": max(ratios)}} if ratios else {}


@dataclass(frozen=True, eq=False)
class InDomainComparison:
    """Compares an out-of-domain search with the same search on in-domain data: figures search_pattern, ood_signal."""

    objective: Objective
    every: int

    def __call__(self, round: int, task: SearchTask, search: Search, found: Found) -> Mapping[str, Any]:
        """Cosines between the two objectives' directions: ∂ℓ/∂c at c′ over all examples, and ĉ − c′ of a search."""
        if round % self.every:
            return {}
        if isinstance(search, GatedSearch):  # the gate is about the guiding data
            search = search.search
        point, other = task.space.point(task.start), replace(task, objective=self.objective)
        self.objective.begin(point, task.seed)
        slopes = [task.space.project(full_pass(each.objective, point)[1]) for each in (task, other)]
        notes = {"signal_cosine": cosine(*slopes)}
        if found.notes.get("gate_closed"):
            return notes
        moves = [result.coefficients - task.start for result in (found, search(other))]
        return {**notes, "search_cosine": cosine(*moves)}
