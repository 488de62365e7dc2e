"""Objectives: the losses that a search minimises on the server's data."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.layout import Layout, Weights
from feddle.core.search import Objective
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples, draw
from feddle.options import Options, choice
from feddle.training.parts import Parts
from feddle.training.surrogate import ClustersOptions, RotationOptions, SurrogateOptions
from feddle.training.train import Loss


class TaskOptions(Options):
    """The clients' own loss; needs server data of the clients' task."""

    name: Literal["task"] = "task"

    def build(self, parts: Parts) -> Objective:
        """On labelled in-domain data."""
        return _on_model(parts, parts.server_data(), parts.bench.loss)


class EntropyOptions(Options):
    """Confident predictions: the entropy of the model's outputs; needs no labels."""

    name: Literal["entropy"] = "entropy"

    def build(self, parts: Parts) -> Objective:
        """On any data."""
        return _on_model(parts, parts.server_data(labelled=False), entropy)


AnyObjective = TaskOptions | SurrogateOptions | RotationOptions | ClustersOptions | EntropyOptions
ObjectiveOptions = Annotated[
    AnyObjective,
    Discriminator("name"),
    choice("task"),
    Field(description="what the search minimises; by default `task` with in-domain data, `surrogate` otherwise"),
]


def default_objective(parts: Parts) -> AnyObjective:
    """The paper's: the clients' loss on in-domain data, a surrogate head on other data."""
    return SurrogateOptions() if parts.out_of_domain else TaskOptions()


def _on_model(parts: Parts, examples: Examples, loss: Loss) -> "TaskObjective":
    bench = parts.bench
    return TaskObjective(bench.model, bench.layout, examples, loss, samples_per_round=parts.samples_per_round)


class TaskObjective:
    """A loss on the outputs of the clients' model: their own loss, or one that needs no labels.

    Each call sets the model's weights. The model runs in eval mode, so that BatchNorm uses the merged statistics and a
    batch of one is no special case. A search uses all examples, or a seeded sample of them.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        examples: Examples,
        loss: Loss = F.cross_entropy,
        *,
        samples_per_round: int | None = None,
    ) -> None:
        self.model = model
        self.layout = layout
        self.examples = examples
        self.loss = loss
        self.samples_per_round = samples_per_round
        self._current = examples

    def begin(self, start: Weights, seed: int) -> None:  # noqa: ARG002
        """Choose the examples of a search."""
        self._current = draw(self.examples, self.samples_per_round, seed_for(seed, "examples"))

    def __len__(self) -> int:
        return len(self._current)

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """See `core.search.Objective`."""
        self.layout.write(self.model, point)
        self.model.eval()
        self.model.zero_grad(set_to_none=True)
        inputs, targets = self._current.take(examples)
        device = point.vector.device
        value = self.loss(self.model(inputs.to(device)), targets.to(device))
        value.backward()  # type: ignore[no-untyped-call]
        return value.item(), self.layout.read_grad(self.model)


def entropy(outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG001
    """The mean entropy of the predictions, as AdaMerging minimises it; the targets are not used."""
    logs = F.log_softmax(outputs, dim=1)
    return -(logs.exp() * logs).sum(1).mean()
