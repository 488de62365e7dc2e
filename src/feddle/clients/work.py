"""The work of an honest client: training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from feddle.core.errors import FeddleError, one_line
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Job, Update
from feddle.core.seeds import seed_for, torch_generator
from feddle.data.augmentation import Augment, Augmented
from feddle.data.examples import Examples
from feddle.training.train import Loss, Recipe, train_client

Work = Callable[[Job, Weights], Update]  # (job, start of the job) → update


@dataclass(frozen=True, eq=False)
class ClientWork:
    """Local training; all randomness is derived from the job, so the result does not depend on the process."""

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
        try:
            return train_client(self.model, self.layout, start, examples, self.recipe, job, seed, self.loss)
        except IndexError as error:  # a label that the model has no output for
            remedy = "check its inputs and labels, and the model's outputs"
            raise FeddleError(f"client {job.client}: {one_line(str(error).rstrip('.'))}; {remedy}") from error
