"""Who does the clients' work in a simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from torch import nn

from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Job, Update
from feddle.core.seeds import seed_for, torch_generator
from feddle.learning.augmentation import Augment, Augmented
from feddle.learning.examples import Examples
from feddle.learning.training import Loss, Recipe, train_client

Work = Callable[[Job, Weights], Update]  # what becomes of a job and the model that it starts from


class Trainer(Protocol):
    """Does the clients' work, at any time between a job's start and its end."""

    def submit(self, job: Job, start: Weights, due: int) -> None:
        """Announce a job whose result is wanted in round `due`."""

    def result(self, job: Job) -> Update:
        """The job's update; waits for it if need be."""


@dataclass(frozen=True, eq=False)
class ClientWork:
    """Everything that training a job needs but the job; its seed is derived, so it does not matter who trains it."""

    model: nn.Module
    layout: Layout
    clients: Sequence[Examples]
    recipe: Recipe
    loss: Loss
    seed: int
    augment: Augment | None = None

    def __call__(self, job: Job, start: Weights) -> Update:
        """Train the job."""
        seed = seed_for(self.seed, "train", job.client, job.number)
        examples = self.clients[job.client]
        if self.augment is not None:
            generator = torch_generator(seed_for(self.seed, "augment", job.client, job.number))
            examples = Augmented(examples, self.augment, generator)
        return train_client(self.model, self.layout, start, examples, self.recipe, job, seed, self.loss)


class InlineTrainer:
    """Trains a job in this process when its result is wanted."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._starts: dict[Job, Weights] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._starts.clear()

    def submit(self, job: Job, start: Weights, due: int) -> None:  # noqa: ARG002
        """See `Trainer`."""
        self._starts[job] = start

    def result(self, job: Job) -> Update:
        """See `Trainer`."""
        try:
            return self.work(job, self._starts.pop(job))
        except FeddleError:
            raise
        except Exception as error:  # as the workers tell it
            raise StoppedError(f"training client {job.client} failed: {type(error).__name__}: {error}") from error
