"""Clients that add privacy noise to their updates."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from feddle.clients.work import ClientWork, Work
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.core.privacy import epsilon, privatise
from feddle.core.seeds import seed_for, torch_generator
from feddle.options import Options, no_bool

_Number = Annotated[float, BeforeValidator(no_bool)]


class Privacy(Options):
    """Clients clip their updates and add Gaussian noise (off by default; `privacy: {}` turns it on)."""

    clip: _Number = Field(1.0, gt=0, le=1e6, description="norm that updates are clipped to (C)")
    noise_multiplier: _Number = Field(
        1.0, ge=1e-4, le=1e4, description="noise multiplier (z): the noise in each coordinate is Normal(0, (zC)²)"
    )
    delta: _Number = Field(1e-5, ge=1e-12, lt=1, description="probability (δ) at which ε is reported")


def protected(work: ClientWork, privacy: Privacy | None) -> Work:
    """The work with clipping and noise, if privacy is on."""
    if privacy is None:
        return work
    if work.layout.buffers:
        raise FeddleError(
            f"privacy protects a model's weights, but this model also sends running statistics "
            f"({work.layout.buffers[0].name}); use a model without BatchNorm, or turn privacy off"
        )
    epsilon(1, privacy.noise_multiplier, privacy.delta)  # fails before the run if the accountant is not installed
    return PrivateWork(work, privacy.clip, privacy.noise_multiplier, work.seed)


@dataclass(frozen=True, eq=False)
class PrivateWork:
    """Client work that clips its update to norm `clip` and adds noise; nothing else is sent.

    The number of examples and the loss also reveal something about the client's data, so every client reports 1 example
    and no loss. The noise is seeded from the job, so that a simulation can be repeated. It gives no protection against
    anyone who knows the seed.
    """

    work: Work
    clip: float
    noise_multiplier: float
    seed: int

    def __call__(self, job: Job, start: Weights) -> Update:
        """Train, then clip and add noise."""
        update = self.work(job, start)
        generator = torch_generator(seed_for(self.seed, "privacy", job.client, job.number))
        delta = privatise(update.delta, self.clip, self.noise_multiplier, generator)
        return Update(job, delta, update.buffers, num_examples=1, digest=update.digest)
