"""FedAvg."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import MethodOptions, average_buffers
from feddle.training.parts import Parts

Late = Annotated[
    Literal["discard", "average_models", "add_deltas"],
    Field(
        description="how updates that miss their own round are used: `discard` drops them, `add_deltas` adds their "
        "deltas like any other, `average_models` averages the clients' whole models"
    ),
]


class FedAvgOptions(MethodOptions):
    """Average the updates, weighted by examples; by default, late updates are discarded."""

    name: Literal["fedavg"] = "fedavg"
    late: Late = "discard"

    def build(self, parts: Parts) -> "FedAvg":  # noqa: ARG002
        """The method."""
        return FedAvg(self)

    def cost(self, setting: Setting) -> Cost:  # noqa: ARG002
        return Cost(working=1, max_staleness=staleness_limit(self.late))


class FedAvg:
    """Average weighted by examples: w ← w + Σ n_j/n · Δ_j, where n is the number of examples of the updates used.

    `late` decides about updates that do not arrive in their own round. `discard` drops them. `add_deltas` uses their
    deltas like any other. `average_models` averages the whole models of all arrivals: w ← Σ n_j/n · (start_j + Δ_j).
    """

    def __init__(self, options: FedAvgOptions) -> None:
        self.options = options
        self.max_staleness = staleness_limit(options.late)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        return Merged(average(model, arrivals, self.options.late))


def average(model: Weights, arrivals: Sequence[Arrival], late: Late) -> Weights:
    """The example-weighted average of the arrivals that are used; the model itself if there are none."""
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
    """The arrivals that are used: with `discard`, only those from the current round."""
    return [a for a in arrivals if late != "discard" or a.staleness == 0]


def staleness_limit(late: Late) -> int | None:
    """The largest staleness of the updates that are used; None: any."""
    return 0 if late == "discard" else None
