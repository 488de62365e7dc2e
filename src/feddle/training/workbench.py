"""A model to compute on, whose weights are set for each use."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.layout import Layout, Weights
from feddle.core.seeds import global_seed
from feddle.data.examples import Examples
from feddle.training.kernels import Optimizer
from feddle.training.train import Loss, Recipe, train


@dataclass(frozen=True, eq=False)
class Workbench:
    """The server's model and the layout that its weights are told in."""

    model: nn.Module
    layout: Layout
    loss: Loss = F.cross_entropy

    def fit(
        self,
        start: Weights,
        examples: Examples,
        recipe: Recipe,
        seed: int,
        optimizer: Optimizer | None = None,
    ) -> Weights:
        """The weights after training on examples from `start`; the optimiser is fresh unless it is given."""
        self.layout.write(self.model, start)
        with global_seed(seed):
            train(self.model, examples, recipe, seed, self.loss, optimizer)
        return self.layout.read(self.model)

    @torch.no_grad()
    def logits(self, weights: Weights, examples: Examples, batch_size: int = 250) -> Tensor:
        """The model's outputs (n, classes) for all examples, in eval mode."""
        self.layout.write(self.model, weights)
        self.model.eval()
        device = weights.vector.device
        batches = []
        for first in range(0, len(examples), batch_size):
            index = torch.arange(first, min(first + batch_size, len(examples)))
            batches.append(self.model(examples.take(index)[0].to(device)))
        return torch.cat(batches)
