"""Clients that send well-formed poison; each attack is client work, so workers and this process do it alike."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddle.clients.work import Work
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.core.seeds import numpy_generator, seed_for, torch_generator
from feddle.training.train import Loss


def draw_attackers(eligible: Tensor, share: float, seed: int) -> frozenset[int]:
    """A share of the clients that have data, rounded; the same ones for every method."""
    order = numpy_generator(seed_for(seed, "attackers")).permutation(eligible.numpy())
    return frozenset(order[: round(share * len(order))].tolist())


@dataclass(frozen=True, eq=False)
class Mixed:
    """The attackers do `poisoned` work, all others `honest` work."""

    honest: Work
    poisoned: Work
    attackers: frozenset[int]

    def __call__(self, job: Job, start: Weights) -> Update:
        """Do the job as its client does."""
        return (self.poisoned if job.client in self.attackers else self.honest)(job, start)


@dataclass(frozen=True, eq=False)
class Scaled:
    """The honest update times `factor`; a negative one flips its sign."""

    honest: Work
    factor: float

    def __call__(self, job: Job, start: Weights) -> Update:
        """Train, then scale."""
        update = self.honest(job, start)
        return replace(update, delta=update.delta * self.factor)


@dataclass(frozen=True, eq=False)
class RandomDirection:
    """A direction drawn evenly from all, as long as the honest update."""

    honest: Work
    seed: int

    def __call__(self, job: Job, start: Weights) -> Update:
        """Train, then keep nothing of it but the norm."""
        update = self.honest(job, start)
        generator = torch_generator(seed_for(self.seed, "attack", job.client, job.number))
        noise = torch.randn(update.delta.shape, generator=generator).to(update.delta)
        length = torch.linalg.vector_norm(update.delta) / torch.linalg.vector_norm(noise)
        return replace(update, delta=noise * length)


@dataclass(frozen=True, eq=False)
class FlippedLabels:
    """A loss that takes class y for C − 1 − y, with the C classes that the model tells apart."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss on flipped labels."""
        if targets.is_floating_point():
            raise FeddleError("attack: label-flip needs class numbers for labels, but these are real numbers")
        return self.loss(outputs, outputs.shape[1] - 1 - targets)
