"""FedAvg."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.strategy import MethodOptions, average_buffers
from feddle.training.parts import Parts

Late = Annotated[
    Literal["discard", "average_models", "add_deltas"],
    Field(description="what happens to late updates: `discard`, `average_models` or `add_deltas`"),
]


class FedAvgOptions(MethodOptions):
    """Average the updates that are back in time, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"
    late: Late = "discard"

    def build(self, parts: Parts) -> "FedAvg":  # noqa: ARG002
        """The method."""
        return FedAvg(self.late)


class FedAvg:
    """Average by examples, w ← w + Σ n_j/n · Δ_j.

    `late` decides about an update that is not back in its own round: it is thrown away (`discard`), its delta counts
    like any other (`add_deltas`), or the clients' whole models are averaged, w ← Σ n_j/n · (start_j + Δ_j)
    (`average_models`). n counts the examples of the updates used.
    """

    def __init__(self, late: Late = "discard") -> None:
        self.late: Late = late
        self.max_staleness = staleness_limit(late)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        """See `Strategy`."""
        return Merged(average(model, arrivals, self.late))


def average(model: Weights, arrivals: Sequence[Arrival], late: Late) -> Weights:
    """The average by examples of the arrivals that are used; the model itself if there are none."""
    used = in_time(arrivals, late)
    if not used:
        return model
    vector = torch.zeros_like(model.vector) if late == "average_models" else model.vector.clone()
    examples = sum(a.update.num_examples for a in used)
    for arrival in used:
        share = arrival.update.num_examples / examples
        vector.add_(arrival.update.delta, alpha=share)
        if late == "average_models":
            vector.add_(arrival.start.vector, alpha=share)
    return Weights(vector, average_buffers(model, used))


def in_time(arrivals: Sequence[Arrival], late: Late) -> list[Arrival]:
    """The arrivals that are used: with `discard`, those that are back in their own round."""
    return [a for a in arrivals if late != "discard" or a.staleness == 0]


def staleness_limit(late: Late) -> int | None:
    """The largest staleness of an update that is used; None: any."""
    return 0 if late == "discard" else None
