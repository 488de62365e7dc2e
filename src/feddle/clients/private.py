"""Clients that protect what they send."""

from dataclasses import dataclass

from feddle.clients.work import Work
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.core.privacy import privatise
from feddle.core.seeds import seed_for, torch_generator


@dataclass(frozen=True, eq=False)
class Private:
    """Client work whose update is clipped to norm `clip` and noised; nothing else of it is sent.

    The number of examples and the loss are the client's data too: every client says 1, and no loss. The noise is seeded
    from the job, so that a simulation repeats; it protects nobody who knows the seed.
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
