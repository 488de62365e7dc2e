"""The quantities that the paper's figures and theorems speak of, measured while a run goes on."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddle.core.layout import Layout, Weights
from feddle.core.messages import Arrival, Job
from feddle.core.seeds import numpy_generator, seed_for
from feddle.run.problem import Federation
from feddle.runtimes.trainers import Trainer
from feddle.training.objectives import TaskObjective

_REMEMBERED = 10  # true updates of earlier rounds


class Diagnostics:
    """Looks at a model with the eyes of some sampled clients; nothing of it reaches the run.

    What the clients would send is looked at, attackers' poison and private clients' noise included; it is never sent,
    so ε does not count it. Gradients are taken of the clients' data as it is.
    """

    def __init__(
        self,
        federation: Federation,
        layout: Layout,
        trainer: Trainer,
        *,
        every: int,
        clients: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self.federation = federation
        self.layout = layout
        self.trainer = trainer
        self.every = every
        self.clients = clients
        self.batch_size = batch_size
        self.seed = seed
        self._eligible = federation.sizes.nonzero().flatten().numpy()
        self._earlier: deque[Tensor] = deque(maxlen=_REMEMBERED)

    def look(self, number: int, model: Weights, arrivals: Sequence[Arrival]) -> dict[str, Any]:
        """What is to be said of the model after round `number`."""
        order = numpy_generator(seed_for(self.seed, "diagnostics", number)).permutation(self._eligible)
        chosen = order[: self.clients]
        return self._updates(number, model, chosen) | self._gradients(model, chosen) | self._norms(model, arrivals)

    def state_dict(self) -> dict[str, Tensor]:
        """The true updates that later ones are compared with, oldest first."""
        return {str(i): earlier for i, earlier in enumerate(self._earlier)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""
        device = next(self.federation.model.parameters()).device
        self._earlier.clear()
        self._earlier.extend(state[str(i)].to(device, copy=True) for i in range(len(state)))

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
        across = [cosine(total, earlier) for earlier in reversed(self._earlier)]
        self._earlier.append(total)
        return {
            "update_cosine": {"mean": fmean(cosines), "min": min(cosines), "max": max(cosines)},
            "true_update_cosines": across,  # with the true update of the last look, the one before, …
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
        federation = self.federation
        return TaskObjective(federation.model, self.layout, federation.clients[client], federation.loss)


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two vectors; 0 if one of them is zero."""
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))
