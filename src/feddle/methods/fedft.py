"""Fed+FT: merge, then fine-tune."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples
from feddle.methods.fedavg import FedAvgOptions
from feddle.methods.fedbuff import FedBuffOptions
from feddle.methods.strategy import BatchSize, MethodOptions, ServerEpochs, Strategy, max_staleness, state_of
from feddle.options import Positive, choice
from feddle.training.parts import Parts
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


class FedFTOptions(MethodOptions):
    """Merge, then fine-tune on the server's data, every round."""

    name: Literal["fed+ft"] = "fed+ft"
    base: Annotated[FedAvgOptions | FedBuffOptions, Discriminator("name"), choice("fedavg")] = FedAvgOptions()
    lr: Positive = Field(1e-4, description="learning rate of the fine-tuning")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def build(self, parts: Parts) -> "FedFT":
        """The method."""
        recipe = Recipe(lr=self.lr, epochs=self.epochs, batch_size=self.batch_size)
        return FedFT(self.base.build(parts), parts.bench, parts.server_data(), recipe, seed=parts.seed)


class FedFT:
    """Merge as `base` does, then fine-tune on the server's data, every round: also in one without arrivals."""

    def __init__(self, base: Strategy, bench: Workbench, examples: Examples, recipe: Recipe, *, seed: int) -> None:
        self.base = base
        self.bench = bench
        self.examples = examples
        self.recipe = recipe
        self.seed = seed
        self.max_staleness = max_staleness(base)
        self.state: Any = state_of(base)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """See `Strategy`."""
        merged = self.base.merge(model, arrivals, round)
        seed = seed_for(self.seed, "fine-tune", round)
        return Merged(self.bench.fit(merged.weights, self.examples, self.recipe, seed), merged.notes)
