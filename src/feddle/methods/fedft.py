"""Fed+FT: merge, then fine-tune."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Discriminator, Field

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples
from feddle.methods.cost import Cost, Setting
from feddle.methods.fedavg import FedAvgOptions
from feddle.methods.fedbuff import FedBuffOptions
from feddle.methods.strategy import MethodOptions, Strategy, max_staleness, state_of
from feddle.options import BatchSize, Positive, ServerEpochs, choice
from feddle.training.parts import Parts
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


class FedFTOptions(MethodOptions):
    """Merge with another method, then fine-tune on the server's data, in every round."""

    name: Literal["fed+ft"] = "fed+ft"
    base: Annotated[FedAvgOptions | FedBuffOptions, Discriminator("name"), choice("fedavg")] = Field(
        FedAvgOptions(), description="the method that merges before the fine-tuning"
    )
    lr: Positive = Field(1e-4, description="learning rate of the fine-tuning")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def build(self, parts: Parts) -> "FedFT":
        """The method."""
        recipe = Recipe(lr=self.lr, epochs=self.epochs, batch_size=self.batch_size)
        return FedFT(self.base.build(parts), parts.bench, parts.server_data(), recipe, seed=parts.seed)

    def cost(self, setting: Setting) -> Cost:
        return replace(self.base.cost(setting), trained=float(self.epochs * setting.server), working=2)


@dataclass(eq=False)
class FedFT:
    """Merge as `base` does, then fine-tune on the server's data. Fine-tuning also runs in rounds without arrivals."""

    base: Strategy
    bench: Workbench
    examples: Examples
    recipe: Recipe
    seed: int

    def __post_init__(self) -> None:
        self.max_staleness, self.state = max_staleness(self.base), state_of(self.base)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        merged = self.base.merge(model, arrivals, round)
        seed = seed_for(self.seed, "fine-tune", round)
        return Merged(self.bench.fit(merged.weights, self.examples, self.recipe, seed), merged.notes)
