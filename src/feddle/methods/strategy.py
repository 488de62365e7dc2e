"""The protocol of every method, and functions that several methods share."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.cost import Cost, Setting
from feddle.options import Count, Options, Positive


class Strategy(Protocol):
    """A method: how the arrivals of a round change the server's model.

    Three attributes are optional. `max_staleness` is the largest staleness that the method uses (None: any, −1: the
    method uses no updates); a simulation does not train updates that are staler. `state` is what the method keeps
    from round to round: a dataclass of tensors and numbers (`core/state.py`), which is saved in checkpoints. `personal`
    is True if every client has its own model, so that the server's model is not evaluated.
    """

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """The next version of the model.

        Called once per round with the arrivals since the last call, in order; there may be none. `round` counts from 1
        and seeds any randomness. The arguments are not changed.
        """


class MethodOptions(Options):
    """Base of every method's options. It lets an error message name the method that has a misplaced option.

    An optional attribute `reads_labels` is False if the method does not read the labels of the server's data. An
    optional method `cost(setting)` returns a `Cost`, from which `feddle plan` estimates the server's work and memory.
    """

    searches: ClassVar[bool] = False  # whether several ranks can share its search
    averages: ClassVar[float] = 0.0  # the decay of `averaging`, unless the plan sets it


BufferSize = Annotated[Count, Field(description="number of updates per step (B)")]
ServerLr = Annotated[Positive, Field(description="the server's learning rate (η)")]
Staleness = Annotated[
    Literal["sqrt", "constant"], Field(description="staleness weight s(τ): `sqrt` is 1/√(1+τ), `constant` is 1")
]


def polynomial(staleness: int, exponent: float) -> float:
    """s(τ) = (1 + τ)^(−a)."""
    return float((1 + staleness) ** -exponent)


def staleness_weight(kind: Staleness, staleness: int) -> float:
    """`sqrt` is FedBuff's 1/√(1 + τ), `constant` is 1."""
    return polynomial(staleness, 0.5 if kind == "sqrt" else 0.0)


def max_staleness(strategy: Strategy) -> int | None:
    """The largest staleness of the updates that the method uses; None: any, −1: it uses no updates."""
    limit: int | None = getattr(strategy, "max_staleness", None)
    return limit


def reads_labels(options: MethodOptions) -> bool:
    """Whether the method reads the labels of the server's data, if they belong to the clients' task."""
    return bool(getattr(options, "reads_labels", True))


def cost_of(options: MethodOptions, setting: Setting) -> Cost:
    """What a method costs the server; unknown if its options do not say."""
    known: Callable[[Setting], Cost] | None = getattr(options, "cost", None)
    return Cost(known=False) if known is None else known(setting)


def state_of(strategy: Strategy) -> Any:
    """The state of the method; None if it has none."""
    return getattr(strategy, "state", None)


def is_personal(strategy: Strategy) -> bool:
    """Whether every client has its own model."""
    return bool(getattr(strategy, "personal", False))


def average_buffers(model: Weights, arrivals: Sequence[Arrival]) -> Tensor:
    """The example-weighted average of the arrivals' running statistics (b,); the model's own without arrivals."""
    if not arrivals or not len(model.buffers):
        return model.buffers
    counts = torch.tensor([float(a.update.num_examples) for a in arrivals], device=model.buffers.device)
    return counts / counts.sum() @ torch.stack([a.update.buffers for a in arrivals])
