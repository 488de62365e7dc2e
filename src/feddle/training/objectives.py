"""Objectives: the losses that a search minimises on the server's data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator, Field
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.layout import Layout, Weights
from feddle.core.messages import Arrival
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples, draw
from feddle.options import Options, choice
from feddle.training.distil import DistilOptions
from feddle.training.parts import Parts
from feddle.training.search import Objective
from feddle.training.surrogate import ClustersOptions, SurrogateOptions
from feddle.training.train import Loss, loss_and_gradient, outputs_of


class TaskOptions(Options):
    """The clients' own loss; needs server data of the clients' task."""

    name: Literal["task"] = "task"

    def build(self, parts: Parts) -> Objective:
        """On labelled in-domain data."""
        bench, limit = parts.bench, parts.samples_per_round
        return TaskObjective(bench.model, bench.layout, parts.server_data(), bench.loss, samples_per_round=limit)


AnyObjective = TaskOptions | SurrogateOptions | ClustersOptions | DistilOptions
ObjectiveOptions = Annotated[
    AnyObjective,
    Discriminator("name"),
    choice(None),
    Field(description="what the search minimises; by default `task` with in-domain data, `surrogate` otherwise"),
]


@dataclass(eq=False)
class TaskObjective:
    """The clients' own loss on the outputs of their model.

    Each call sets the model's weights. The model runs in eval mode, so that BatchNorm uses the merged statistics and a
    batch of one example works. A search uses all examples, or a seeded sample of them.
    """

    model: nn.Module
    layout: Layout
    examples: Examples
    loss: Loss = F.cross_entropy
    samples_per_round: int | None = None

    def __post_init__(self) -> None:
        self._current = self.examples

    def begin(
        self,
        start: Weights,  # noqa: ARG002
        seed: int,
        among: Tensor | None = None,
        arrivals: Sequence[Arrival] = (),  # noqa: ARG002
    ) -> None:
        """Choose the examples of a search."""
        self._current = draw(self.examples, self.samples_per_round, seed_for(seed, "examples"), among)

    def __len__(self) -> int:
        return len(self._current)

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss on these examples, and its gradient (d,)."""
        inputs, targets = self._current.take(examples)
        targets = targets.to(point.vector.device)
        return loss_and_gradient(
            self.model, self.layout, point, lambda: self.loss(outputs_of(self.model, inputs), targets)
        )
