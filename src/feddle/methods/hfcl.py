"""HFCL: the server is one more client."""

from collections.abc import Sequence
from typing import Literal

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Merged, Update
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples
from feddle.methods.fedavg import Late, average, in_time, staleness_limit
from feddle.methods.strategy import MethodOptions
from feddle.training.parts import Parts
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


class HfclOptions(MethodOptions):
    """The server trains as one more client and is averaged in."""

    name: Literal["hfcl"] = "hfcl"
    late: Late = "discard"

    def build(self, parts: Parts) -> "HFCL":
        """The method."""
        return HFCL(parts.bench, parts.server_data(), parts.recipe, late=self.late, seed=parts.seed)


class HFCL:
    """The server trains from the current model on its own data as the clients do.

    Its update is averaged in with the arrivals, weighted by examples. In a round without arrivals it is alone.
    """

    def __init__(
        self, bench: Workbench, examples: Examples, recipe: Recipe, *, late: Late = "discard", seed: int
    ) -> None:
        self.bench = bench
        self.examples = examples
        self.recipe = recipe
        self.late: Late = late
        self.seed = seed
        self.max_staleness = staleness_limit(late)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """See `Strategy`."""
        end = self.bench.fit(model, self.examples, self.recipe, seed_for(self.seed, "hfcl", round))
        job = Job(client=-1, number=round, version=round)  # no client has this number
        own = Update(job, end.vector - model.vector, end.buffers, len(self.examples))
        return Merged(average(model, [*in_time(arrivals, self.late), Arrival(own, 0, model)], self.late))
