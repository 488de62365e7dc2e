"""What every method is."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival


class Strategy(Protocol):
    """A method: how the server's model takes in what arrived.

    `merge` is called once a round with what arrived since the last call, in order of arrival, also when nothing
    did. It never changes its arguments.
    """

    @property
    def max_staleness(self) -> int | None:
        """Updates older than this are not used, so a simulation need not train them; None: all are used, −1: none."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """What the last merge puts on the record, as JSON values."""

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """The next version of the model."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on after a stop, as tensors."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""


def below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state under a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def above(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state put under a prefix."""
    return {prefix + name: tensor for name, tensor in state.items()}


def average_buffers(model: Weights, arrivals: Sequence[Arrival]) -> Tensor:
    """The arrivals' running statistics, averaged by examples (b,); the model's own if nothing arrived."""
    if not arrivals or not len(model.buffers):
        return model.buffers
    counts = torch.tensor([float(a.update.num_examples) for a in arrivals], device=model.buffers.device)
    return counts / counts.sum() @ torch.stack([a.update.buffers for a in arrivals])
