"""The methods that train on the server's data: Center, Fed+FT and HFCL."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Update
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples
from feddle.methods.fedavg import Late, average, in_time, max_staleness
from feddle.methods.strategy import Strategy, above, below
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


class Center:
    """Train on the server's data alone, `recipe.epochs` epochs in all, spread evenly over the rounds.

    Updates are not used, so a simulation trains no client. One optimiser lives through all rounds.
    """

    max_staleness: int | None = -1

    def __init__(self, bench: Workbench, examples: Examples, recipe: Recipe, *, rounds: int, seed: int) -> None:
        self.bench = bench
        self.examples = examples
        self.recipe = recipe
        self.rounds = rounds
        self.seed = seed
        self.optimizer = recipe.make_optimizer(bench.model)
        self.notes: Mapping[str, Any] = {}
        self._merges = 0

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:  # noqa: ARG002
        """See `Strategy`."""
        done, self._merges = self._merges, self._merges + 1
        epochs = self._epochs_by(self._merges) - self._epochs_by(done)
        self.notes = {"server_epochs": epochs}
        if not epochs:
            return model
        seed = seed_for(self.seed, "center", self._merges)
        return self.bench.fit(model, self.examples, self.recipe.lasting(epochs), seed, self.optimizer)

    def _epochs_by(self, merges: int) -> int:
        return self.recipe.epochs * min(merges, self.rounds) // self.rounds

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {**above("optimizer.", self.optimizer.state_dict()), "merges": torch.tensor(self._merges)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self._merges = int(state["merges"])
        self.optimizer.load_state_dict(below("optimizer.", state))


class FedFT:
    """Merge as `base` does, then fine-tune on the server's data, every round: also in one without arrivals."""

    def __init__(self, base: Strategy, bench: Workbench, examples: Examples, recipe: Recipe, *, seed: int) -> None:
        self.base = base
        self.bench = bench
        self.examples = examples
        self.recipe = recipe
        self.seed = seed
        self.max_staleness = base.max_staleness
        self.notes: Mapping[str, Any] = {}
        self._merges = 0

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        self._merges += 1
        merged = self.base.merge(model, arrivals)
        self.notes = self.base.notes
        return self.bench.fit(merged, self.examples, self.recipe, seed_for(self.seed, "fine-tune", self._merges))

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {**above("base.", self.base.state_dict()), "merges": torch.tensor(self._merges)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self.base.load_state_dict(below("base.", state))
        self._merges = int(state["merges"])


class HFCL:
    """The server is one more client: it trains from the current model on its own data as the clients do, and is
    averaged in with the arrivals, weighted by examples. In a round without arrivals it is alone.
    """

    def __init__(
        self, bench: Workbench, examples: Examples, recipe: Recipe, *, late: Late = "discard", seed: int
    ) -> None:
        self.bench = bench
        self.examples = examples
        self.recipe = recipe
        self.late: Late = late
        self.seed = seed
        self.max_staleness = max_staleness(late)
        self.notes: Mapping[str, Any] = {}
        self._merges = 0

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        self._merges += 1
        end = self.bench.fit(model, self.examples, self.recipe, seed_for(self.seed, "hfcl", self._merges))
        job = Job(client=-1, number=self._merges, version=self._merges)  # no client has this number
        own = Update(job, end.vector - model.vector, end.buffers, len(self.examples))
        return average(model, [*in_time(arrivals, self.late), Arrival(own, 0, model)], self.late)

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {"merges": torch.tensor(self._merges)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self._merges = int(state["merges"])
