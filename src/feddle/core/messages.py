"""The messages between server, clients and strategies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from feddle.core.layout import Weights


@dataclass(frozen=True)
class Job:
    """One training of one client.

    client: the number of the client.
    number: how many jobs it had before.
    version: the version of the model that it starts from.
    """

    client: int
    number: int
    version: int


@dataclass(frozen=True, eq=False)
class Update:
    """A client's result.

    job: the job that it belongs to.
    delta: the final minus the initial parameters (d,), in the order of the `Layout`.
    buffers: the running statistics of the final model (b,).
    num_examples: how many examples the client has.
    metrics: `loss`, the mean training loss.
    digest: the digest of the layout of `delta` and `buffers`.
    """

    job: Job
    delta: Tensor
    buffers: Tensor
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True, eq=False)
class Arrival:
    """An update, as it is passed to a strategy.

    `staleness` (τ) is the number of versions made since the client started. `start` is the version that it started
    from; all jobs of a version share it.
    """

    update: Update
    staleness: int
    start: Weights

    @property
    def model(self) -> Weights:
        """The client's whole model: start + Δ, with its running statistics."""
        return Weights(self.start.vector + self.update.delta, self.update.buffers)


@dataclass(frozen=True, eq=False)
class Merged:
    """The result of a strategy: the next version of the model, and notes for the history (JSON values)."""

    weights: Weights
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Round:
    """The events of a round: jobs sent, updates returned, updates accepted, and notes for the history."""

    dispatched: int
    returned: int
    arrivals: Sequence[Arrival]
    notes: Mapping[str, Any] = field(default_factory=dict)
