"""HFCL: the server is an additional client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Merged, Update
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples
from feddle.methods.cost import Cost, Setting
from feddle.methods.fedavg import Late, average, in_time, staleness_limit
from feddle.methods.strategy import MethodOptions
from feddle.training.parts import Parts
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


class HfclOptions(MethodOptions):
    """The server trains like a client, and its update is averaged with the clients' updates."""

    name: Literal["hfcl"] = "hfcl"
    late: Late = "discard"

    def build(self, parts: Parts) -> "HFCL":
        """The method."""
        return HFCL(self, parts.bench, parts.server_data(), parts.recipe, parts.seed)

    def cost(self, setting: Setting) -> Cost:
        trained = float(setting.epochs * setting.server)
        return Cost(trained=trained, working=3, max_staleness=staleness_limit(self.late))


@dataclass(eq=False)
class HFCL:
    """The server trains from the current model on its own data, as a client does.

    Its update is averaged with the arrivals, weighted by examples. Without arrivals it is the only update.
    """

    options: HfclOptions
    bench: Workbench
    examples: Examples
    recipe: Recipe  # the clients'
    seed: int = 0

    def __post_init__(self) -> None:
        self.max_staleness = staleness_limit(self.options.late)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        end = self.bench.fit(model, self.examples, self.recipe, seed_for(self.seed, "hfcl", round))
        job = Job(client=-1, number=round, version=round)  # no client has this number
        own = Update(job, end.vector - model.vector, end.buffers, len(self.examples))
        late = self.options.late
        return Merged(average(model, [*in_time(arrivals, late), Arrival(own, 0, model)], late))
