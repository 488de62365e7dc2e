"""Clients that send well-formed but poisoned updates.

An attack is a kind of client work, so it runs in worker processes and in the main process alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Discriminator, Field
from torch import Tensor

from feddle.clients.private import Privacy, protected
from feddle.clients.work import ClientWork, Work
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.core.seeds import numpy_generator, seed_for, torch_generator
from feddle.options import Options, Positive, Share, choice
from feddle.training.train import Loss

Attackers = Annotated[Share, Field(description="share of the clients that attack, drawn from the seed")]


@dataclass(frozen=True, eq=False)
class AttackParts:
    """What an attack is built from: the honest training, its privacy, and the clients that have data."""

    training: ClientWork
    privacy: Privacy | None
    eligible: Tensor

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.training.seed

    def honest(self) -> Work:
        """The work of a client that does not attack."""
        return protected(self.training, self.privacy)

    def mixed(self, share: float, poisoned: Work) -> Work:
        """The work of all clients, if a share of them does `poisoned` work."""
        return Mixed(self.honest(), poisoned, draw_attackers(self.eligible, share, self.seed))


class AttackOptions(Options):
    """Base of the options of every attack; errors use it to name the attack that a misplaced option belongs to."""


class NoAttack(AttackOptions):
    """Every client is honest."""

    name: Literal["none"] = "none"

    def build(self, parts: AttackParts) -> Work:
        """The work of all clients."""
        return parts.honest()


class SignFlip(AttackOptions):
    """Attackers send their update with its sign flipped."""

    name: Literal["sign-flip"] = "sign-flip"
    share: Attackers = 0.1
    factor: Positive = Field(1.0, description="scale factor of the flipped update")

    def build(self, parts: AttackParts) -> Work:
        """The work of all clients."""
        return parts.mixed(self.share, Altered(parts.honest(), lambda update: scaled(update, -self.factor)))


class Scale(AttackOptions):
    """Attackers send their update scaled up."""

    name: Literal["scale"] = "scale"
    share: Attackers = 0.1
    factor: Positive = Field(10.0, description="scale factor of the update")

    def build(self, parts: AttackParts) -> Work:
        """The work of all clients."""
        return parts.mixed(self.share, Altered(parts.honest(), lambda update: scaled(update, self.factor)))


class RandomUpdate(AttackOptions):
    """Attackers send a random direction with the norm of their honest update."""

    name: Literal["random"] = "random"
    share: Attackers = 0.1

    def build(self, parts: AttackParts) -> Work:
        """The work of all clients."""
        return parts.mixed(self.share, Altered(parts.honest(), lambda update: randomised(update, parts.seed)))


class LabelFlip(AttackOptions):
    """Attackers train on class C − 1 − y instead of y, so that their updates look honest."""

    name: Literal["label-flip"] = "label-flip"
    share: Attackers = 0.1

    def build(self, parts: AttackParts) -> Work:
        """The work of all clients. Attackers differ only in their loss."""
        flipped = replace(parts.training, loss=FlippedLabels(parts.training.loss))
        return parts.mixed(self.share, protected(flipped, parts.privacy))


AnyAttack = NoAttack | SignFlip | Scale | RandomUpdate | LabelFlip
Attack = Annotated[AnyAttack, Discriminator("name"), choice("none")]


def scaled(update: Update, factor: float) -> Update:
    """The update times a factor."""
    return replace(update, delta=update.delta * factor)


def randomised(update: Update, seed: int) -> Update:
    """A direction drawn uniformly, with the norm of the update."""
    generator = torch_generator(seed_for(seed, "attack", update.job.client, update.job.number))
    noise = torch.randn(update.delta.shape, generator=generator).to(update.delta)
    length = torch.linalg.vector_norm(update.delta) / torch.linalg.vector_norm(noise)
    return replace(update, delta=noise * length)


def draw_attackers(eligible: Tensor, share: float, seed: int) -> frozenset[int]:
    """A random share of the clients that have data; the same clients for every method."""
    order = numpy_generator(seed_for(seed, "attackers")).permutation(eligible.numpy())
    return frozenset(order[: round(share * len(order))].tolist())


@dataclass(frozen=True, eq=False)
class Altered:
    """Work whose update is altered last, after any privacy noise."""

    work: Work
    alter: Callable[[Update], Update]

    def __call__(self, job: Job, start: Weights) -> Update:
        """Do the job, then alter the update."""
        return self.alter(self.work(job, start))


@dataclass(frozen=True, eq=False)
class Mixed:
    """The attackers do `poisoned` work, all others `honest` work."""

    honest: Work
    poisoned: Work
    attackers: frozenset[int]

    def __call__(self, job: Job, start: Weights) -> Update:
        """Do the job the way its client does."""
        return (self.poisoned if job.client in self.attackers else self.honest)(job, start)


@dataclass(frozen=True, eq=False)
class FlippedLabels:
    """A loss that replaces class y by C − 1 − y; the model distinguishes C classes."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss on flipped labels."""
        if targets.is_floating_point():
            raise FeddleError("attack: label-flip needs class numbers as labels, got real numbers; use another attack")
        return self.loss(outputs, outputs.shape[1] - 1 - targets)
