"""What the server's data asks of a model."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.layout import Layout, Weights
from feddle.learning.examples import Examples
from feddle.learning.training import Loss


@dataclass(frozen=True, eq=False)
class TaskObjective:
    """The clients' own loss on in-domain server data.

    The model is a workbench: each call sets its weights. It runs in eval mode, so that BatchNorm uses the merged
    statistics and a batch of one is no special case.
    """

    model: nn.Module
    layout: Layout
    examples: Examples
    loss: Loss = F.cross_entropy

    def __len__(self) -> int:
        return len(self.examples)

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """See `core.search.Objective`."""
        self.layout.write(self.model, point)
        self.model.eval()
        self.model.zero_grad(set_to_none=True)
        inputs, targets = self.examples.take(examples)
        device = point.vector.device
        value = self.loss(self.model(inputs.to(device)), targets.to(device))
        value.backward()  # type: ignore[no-untyped-call]
        return value.item(), self.layout.read_grad(self.model)
