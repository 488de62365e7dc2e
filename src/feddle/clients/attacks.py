"""Clients that send well-formed but poisoned updates.

An attack is a kind of client work, so it runs in worker processes and in the main process alike.
"""

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


class AttackOptions(Options):
    """Base of the options of every attack; errors use it to name the attack that a misplaced option belongs to."""


class NoAttack(AttackOptions):
    """Every client is honest."""

    name: Literal["none"] = "none"


class SignFlip(AttackOptions):
    """Attackers send their update with its sign flipped."""

    name: Literal["sign-flip"] = "sign-flip"
    share: Attackers = 0.1
    factor: Positive = Field(1.0, description="scale factor of the flipped update")

    def poison(self, update: Update, seed: int) -> Update:  # noqa: ARG002
        """The opposite update, scaled."""
        return replace(update, delta=update.delta * -self.factor)


class Scale(AttackOptions):
    """Attackers send their update scaled up."""

    name: Literal["scale"] = "scale"
    share: Attackers = 0.1
    factor: Positive = Field(10.0, description="scale factor of the update")

    def poison(self, update: Update, seed: int) -> Update:  # noqa: ARG002
        """The scaled update."""
        return replace(update, delta=update.delta * self.factor)


class RandomUpdate(AttackOptions):
    """Attackers send a random direction with the norm of their honest update."""

    name: Literal["random"] = "random"
    share: Attackers = 0.1

    def poison(self, update: Update, seed: int) -> Update:
        """A direction drawn uniformly, with the norm of the update."""
        generator = torch_generator(seed_for(seed, "attack", update.job.client, update.job.number))
        noise = torch.randn(update.delta.shape, generator=generator).to(update.delta)
        length = torch.linalg.vector_norm(update.delta) / torch.linalg.vector_norm(noise)
        return replace(update, delta=noise * length)


class LabelFlip(AttackOptions):
    """Attackers train on class C − 1 − y instead of y, so that their updates look honest."""

    name: Literal["label-flip"] = "label-flip"
    share: Attackers = 0.1


AnyAttack = NoAttack | SignFlip | Scale | RandomUpdate | LabelFlip
Attack = Annotated[AnyAttack, Discriminator("name"), choice("none")]


def client_work(training: ClientWork, attack: AnyAttack, privacy: Privacy | None, eligible: Tensor) -> Work:
    """The work of all clients; attackers alter their updates last, after any noise is added."""
    honest = protected(training, privacy)
    if isinstance(attack, NoAttack):
        return honest
    attackers = draw_attackers(eligible, attack.share, training.seed)
    if isinstance(attack, LabelFlip):  # all else is as with an honest client
        flipped = replace(training, loss=FlippedLabels(training.loss))
        return Mixed(honest, protected(flipped, privacy), attackers)

    def poisoned(job: Job, start: Weights) -> Update:
        return attack.poison(honest(job, start), training.seed)

    return Mixed(honest, poisoned, attackers)


def draw_attackers(eligible: Tensor, share: float, seed: int) -> frozenset[int]:
    """A random share of the clients that have data; the same clients for every method."""
    order = numpy_generator(seed_for(seed, "attackers")).permutation(eligible.numpy())
    return frozenset(order[: round(share * len(order))].tolist())


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
