"""Center: training on the server's data only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import MethodOptions
from feddle.options import BatchSize, Count, Positive
from feddle.training.parts import Parts
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


class CenterOptions(MethodOptions):
    """Train on the server's data only; no client takes part."""

    name: Literal["center"] = "center"
    lr: Positive = Field(1e-3, description="learning rate")
    epochs: Count = Field(50, description="passes over the server's data in the whole run")
    batch_size: BatchSize = 32

    def build(self, parts: Parts) -> "Center":
        """The method."""
        recipe = Recipe(lr=self.lr, epochs=self.epochs, batch_size=self.batch_size)
        return Center(parts.bench, parts.server_data(), recipe, rounds=parts.rounds, seed=parts.seed)

    def cost(self, setting: Setting) -> Cost:
        """Adam keeps two moments."""
        return Cost(trained=self.epochs * setting.server / setting.rounds, kept=2, max_staleness=-1)


@dataclass(eq=False)
class Center:
    """Train on the server's data only: `recipe.epochs` epochs in total, spread evenly over the rounds.

    Updates are not used, so a simulation trains no client. One optimiser is used in all rounds; it is the state.
    """

    bench: Workbench
    examples: Examples
    recipe: Recipe
    rounds: int
    seed: int
    max_staleness = -1

    def __post_init__(self) -> None:
        self.state = self.recipe.make_optimizer(self.bench.model)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        epochs = self._epochs_by(round) - self._epochs_by(round - 1)
        if epochs:
            seed = seed_for(self.seed, "center", round)
            recipe = self.recipe.model_copy(update={"epochs": epochs})
            model = self.bench.fit(model, self.examples, recipe, seed, self.state)
        return Merged(model, {"server_epochs": epochs})

    def _epochs_by(self, round: int) -> int:
        return self.recipe.epochs * min(round, self.rounds) // self.rounds
