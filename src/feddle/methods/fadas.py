"""FADAS."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.buffer import Buffer
from feddle.methods.strategy import BufferSize, MethodOptions, ServerLr
from feddle.options import Count, Positive, no_bool
from feddle.training.parts import Parts

Decay = Annotated[float, BeforeValidator(no_bool), Field(ge=0, lt=1)]


class FadasOptions(MethodOptions):
    """AMSGrad at the server over buffered updates, with smaller steps if the buffer is stale."""

    name: Literal["fadas"] = "fadas"
    buffer_size: BufferSize = 10
    lr: ServerLr = 1e-3
    beta1: Decay = Field(0.9, description="decay of the first moment (β₁)")
    beta2: Decay = Field(0.99, description="decay of the second moment (β₂)")
    epsilon: Positive = Field(1e-8, description="small number added to the root of the second moment (ε)")
    delay_threshold: Count = Field(
        10, description="if the largest staleness in the buffer exceeds this, η is divided by that staleness"
    )

    def build(self, parts: Parts) -> "Fadas":
        """The method."""
        moments = Amsgrad.zeros(parts.bench.layout.size, parts.device)
        return Fadas(moments, self.buffer_size, self.lr, self.delay_threshold, self.beta1, self.beta2, self.epsilon)


@dataclass(eq=False)
class Amsgrad:
    """The moments of AMSGrad without bias correction: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², v̂ ← max(v̂, v)."""

    first: Tensor
    second: Tensor
    largest: Tensor

    @classmethod
    def zeros(cls, dimension: int, device: str = "cpu") -> "Amsgrad":
        """The moments before the first step."""
        return cls(*(torch.zeros(dimension, device=device) for _ in range(3)))

    def observe(self, step: Tensor, beta1: float, beta2: float) -> None:
        """Update the moments with a step (d,)."""
        self.first = self.first.lerp(step, 1 - beta1)
        self.second = self.second.lerp(step * step, 1 - beta2)
        self.largest = torch.maximum(self.largest, self.second)

    def precondition(self, step: Tensor, epsilon: float) -> Tensor:
        """step / (√v̂ + ε)."""
        return step / (self.largest.sqrt() + epsilon)


@dataclass(eq=False)
class FadasState:
    """The moments and the buffer."""

    moments: Amsgrad
    buffer: Buffer = field(default_factory=Buffer)


@dataclass(eq=False)
class Fadas:
    """Pass the unweighted mean of B updates to AMSGrad: w ← w + η_τ m/(√v̂ + ε).

    η_τ is η, divided by the largest staleness in the buffer if that exceeds `delay_threshold`. The updates are used
    as they arrive, however stale they are.
    """

    moments: Amsgrad
    buffer_size: int = 10
    lr: float = 1e-3
    delay_threshold: int = 10
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        self.state = FadasState(self.moments)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        """See `Strategy`."""
        moments, flushes = self.state.moments, 0
        for arrival in arrivals:
            if full := self.state.buffer.add(arrival.update.delta, arrival, self.buffer_size):
                moments.observe(full.total / self.buffer_size, self.beta1, self.beta2)
                late = full.max_staleness > self.delay_threshold
                lr = self.lr / full.max_staleness if late else self.lr
                step = moments.precondition(moments.first, self.epsilon)
                model = Weights(model.vector + lr * step, full.buffers)
                flushes += 1
        return Merged(model, {"flushes": flushes, "buffered": self.state.buffer.count})
