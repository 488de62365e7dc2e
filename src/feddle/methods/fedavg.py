"""FedAvg."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.methods.strategy import average_buffers

Late = Literal["discard", "average_models", "add_deltas"]


def in_time(arrivals: Sequence[Arrival], late: Late) -> list[Arrival]:
    """The arrivals that are used: with `discard`, those that are back in their own round."""
    return [a for a in arrivals if late != "discard" or a.staleness == 0]


def max_staleness(late: Late) -> int | None:
    """How old an update may be to be used."""
    return 0 if late == "discard" else None


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


class FedAvg:
    """Average by examples, w ← w + Σ n_j/n · Δ_j.

    `late` says what becomes of an update that is not back in its own round: it is thrown away (`discard`), its delta
    counts like any other (`add_deltas`), or the clients' whole models are averaged instead, w ← Σ n_j/n · (start_j +
    Δ_j) (`average_models`). n counts the examples of the updates used.
    """

    def __init__(self, late: Late = "discard") -> None:
        self.late: Late = late
        self.max_staleness = max_staleness(late)
        self.notes: Mapping[str, Any] = {}

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        return average(model, arrivals, self.late)

    def state_dict(self) -> dict[str, Tensor]:
        """FedAvg remembers nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
