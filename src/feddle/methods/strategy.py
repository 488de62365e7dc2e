"""What every method is."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.options import Count, Options, Positive


class Strategy(Protocol):
    """A method: how the arrivals of a round change the server's model.

    Two attributes are optional. `max_staleness` is the largest staleness that the method uses, so that a simulation
    need not train older updates (None: any, −1: no updates at all). `state` is what the method remembers from round
    to round: a dataclass of tensors and numbers (`core/state.py`), saved in checkpoints.
    """

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """The next version of the model.

        Called once per round with what arrived since the last call, in order of arrival, also when nothing did.
        `round` counts from 1 and seeds what is random. No argument is changed.
        """


class MethodOptions(Options):
    """Base of every method's options, so that an error can name the method that has a misplaced option."""


BufferSize = Annotated[Count, Field(description="number of updates per step (B)")]
ServerLr = Annotated[Positive, Field(description="the server's learning rate (η)")]
ServerEpochs = Annotated[Count, Field(description="passes over the server's data per round")]
BatchSize = Annotated[Count, Field(description="examples per batch")]
Staleness = Annotated[
    Literal["sqrt", "constant"], Field(description="staleness weight s(τ): `sqrt` is 1/√(1+τ), `constant` is 1")
]


def max_staleness(strategy: Strategy) -> int | None:
    """The largest staleness of an update that the method uses; None: any, −1: it uses no updates."""
    limit: int | None = getattr(strategy, "max_staleness", None)
    return limit


def state_of(strategy: Strategy) -> Any:
    """What the method remembers; None if it remembers nothing."""
    return getattr(strategy, "state", None)


def average_buffers(model: Weights, arrivals: Sequence[Arrival]) -> Tensor:
    """The arrivals' running statistics, averaged by examples (b,); the model's own if nothing arrived."""
    if not arrivals or not len(model.buffers):
        return model.buffers
    counts = torch.tensor([float(a.update.num_examples) for a in arrivals], device=model.buffers.device)
    return counts / counts.sum() @ torch.stack([a.update.buffers for a in arrivals])
