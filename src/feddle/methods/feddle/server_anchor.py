"""The server anchor: the server's own update as one more direction of the search."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.seeds import seed_for, torch_generator
from feddle.data.examples import Examples, draw
from feddle.methods.cost import Setting
from feddle.options import BatchSize, Count, Options, Positive, no_bool
from feddle.training.parts import Parts
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench

_ENOUGH = 1000  # examples that the server trains on in a round


class ServerAnchorOptions(Options):
    """The server trains on its own data in every round, and its update is one more anchor; in-domain data only."""

    lr: Positive = Field(1e-4, description="learning rate of the server's training")
    epochs: Count | None = Field(
        None, description="passes over the server's data per round; by default enough for 1000 examples, at least one"
    )
    batch_size: BatchSize = 32
    holdout: Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=0.9)] = Field(
        0.2,
        description="share of the server's data kept for the search and never trained on; 0: train and search on all",
    )
    rotate: bool = Field(False, description="hold out other examples in each round")

    def build(self, parts: Parts) -> "ServerAnchor":
        """The anchor of a method that is built from these parts."""
        examples, limit = parts.server_data(user="method.server_anchor"), parts.samples_per_round
        epochs = self._passes(min(len(examples), limit or _ENOUGH))
        recipe = Recipe(lr=self.lr, epochs=epochs, batch_size=self.batch_size)
        return ServerAnchor(self, parts.bench, examples, recipe, limit, parts.seed)

    def _passes(self, examples: int) -> int:
        return self.epochs or math.ceil(_ENOUGH / examples)

    def trained(self, setting: Setting) -> float:
        """The number of examples that the server trains on in a round, each as often as there are passes."""
        kept = setting.server - round(self.holdout * setting.server)
        return float(self._passes(max(1, setting.drawn)) * min(kept, setting.samples_per_round))

    def searched(self, setting: Setting) -> int:
        """The number of examples for the search."""
        return round(self.holdout * setting.server) or setting.server


@dataclass(frozen=True, eq=False)
class ServerAnchor:
    """Trains from the fallback's point w′ to w″. The anchor is w″ − w′, with scale 1 and start 1.

    So the search starts at w″, which is Fed+FT on the fallback. After a few rounds the model fits its training
    examples, so their gradient no longer guides the search. Therefore a share `holdout` is kept for the search.
    """

    options: ServerAnchorOptions
    bench: Workbench
    examples: Examples
    recipe: Recipe
    samples_per_round: int | None = None
    seed: int = 0

    def train(self, start: Weights, round: int) -> Weights:
        """w″, from w′ = `start`."""
        kept, _ = self.split(round)
        examples = draw(self.examples, self.samples_per_round, seed_for(self.seed, "train on", round), kept)
        return self.bench.fit(start, examples, self.recipe, seed_for(self.seed, "fine-tune", round))

    def split(self, round: int) -> tuple[Tensor, Tensor]:
        """The indices of the examples to train on, and of those to search on."""
        count = len(self.examples)
        held = min(int(self.options.holdout * count + 0.5), count - 1)  # train on at least one
        if not held:
            return torch.arange(count), torch.arange(count)
        order = torch.randperm(count, generator=torch_generator(seed_for(self.seed, "holdout")))
        order = order.roll(-held * round if self.options.rotate else 0)
        return order[held:], order[:held]
