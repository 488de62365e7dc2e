"""The gate: a search is made only if two halves of the server's data agree about its direction."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import BeforeValidator, Field

from feddle.core.seeds import seed_for, torch_generator
from feddle.options import no_bool
from feddle.training.search import START_REMEDY, Found, Search, SearchTask, checked, cosine, full_pass

Threshold = Annotated[float, BeforeValidator(no_bool), Field(ge=-1, le=2)]


@dataclass(frozen=True, eq=False)
class GatedSearch:
    """A search that stays at its start c′ if the cosine of ∂ℓ/∂c on two halves of the examples is below `threshold`."""

    search: Search
    threshold: float

    def __call__(self, task: SearchTask) -> Found:
        """Search if the gate is open. It is also open if the cosine is NaN, so that the search reports the error."""
        agreement, loss = halves(task)
        closed = agreement < self.threshold
        found = checked(task.start, loss, START_REMEDY) if closed else self.search(task)
        return replace(found, notes={"gate_cosine": agreement, "gate_closed": closed})


def halves(task: SearchTask) -> tuple[float, float]:
    """The cosine between ∂ℓ/∂c on two random halves of the examples, at the start c′, and the loss there.

    A single example cannot be halved; its cosine is 0.
    """
    count, point = len(task.objective), task.space.point(task.start)
    order = torch.randperm(count, generator=torch_generator(seed_for(task.seed, "halves")))
    parts = [half for half in order.tensor_split(2) if len(half)]
    losses, gradients = zip(*(full_pass(task.objective, point, among=half) for half in parts), strict=True)
    loss = sum(len(half) * value for half, value in zip(parts, losses, strict=True)) / count
    slopes = [task.space.project(gradient) for gradient in gradients]
    return (cosine(*slopes) if len(slopes) == 2 else 0.0), loss
