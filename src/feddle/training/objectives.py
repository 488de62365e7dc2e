"""What the server's data asks of a model."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.layout import Layout, Weights
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples, draw
from feddle.training.train import Loss


class TaskObjective:
    """A loss of the clients' model as it is: their own, on in-domain server data, or one that needs no labels.

    The model is a workbench: each call sets its weights. It runs in eval mode, so that BatchNorm uses the merged
    statistics and a batch of one is no special case. A search uses all examples, or a seeded sample of them.
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

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing goes on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `core.search.Objective`."""


def entropy(outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG001
    """The mean entropy of the predictions, as AdaMerging minimises it; the targets are not used."""
    logs = F.log_softmax(outputs, dim=1)
    return -(logs.exp() * logs).sum(1).mean()
