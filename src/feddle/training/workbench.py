"""The model that the server computes with."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.batches import in_order
from feddle.core.layout import Layout, Weights
from feddle.core.seeds import global_seed
from feddle.data.examples import Examples
from feddle.training.kernels import Optimizer
from feddle.training.train import Loss, Recipe, forget_batches, outputs_of, train


@dataclass(frozen=True, eq=False)
class Workbench:
    """The server's model, the layout of its weights, and its loss; every use sets the weights first."""

    model: nn.Module
    layout: Layout
    loss: Loss = F.cross_entropy

    def fit(
        self, start: Weights, examples: Examples, recipe: Recipe, seed: int, optimizer: Optimizer | None = None
    ) -> Weights:
        """The weights after training on examples from `start`; without `optimizer`, the recipe makes a fresh one."""
        self.layout.write(self.model, start)
        forget_batches(self.model)
        with global_seed(seed):
            train(self.model, examples, recipe, seed, self.loss, optimizer)
        return self.layout.read(self.model)

    @torch.no_grad()
    def logits(self, weights: Weights, examples: Examples, batch_size: int = 250) -> Tensor:
        """The model's outputs (n, classes) for all examples, in eval mode."""
        self.layout.write(self.model, weights)
        self.model.eval()
        batches = (examples.take(index)[0] for index in in_order(len(examples), batch_size))
        return torch.cat([outputs_of(self.model, batch) for batch in batches])
