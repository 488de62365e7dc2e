"""FADAS."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.buffer import Buffer
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import BufferSize, MethodOptions, ServerLr
from feddle.options import Count, Decay, Positive
from feddle.training.parts import Parts


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
        return Fadas(self, parts.bench.layout.size, parts.device)

    def cost(self, setting: Setting) -> Cost:  # noqa: ARG002
        """It keeps three moments and the buffer."""
        return Cost(kept=4, working=3)


@dataclass(eq=False)
class FadasState:
    """The buffer, and the moments of AMSGrad without bias correction."""

    first: Tensor
    second: Tensor
    largest: Tensor
    buffer: Buffer = field(default_factory=Buffer)

    def observe(self, step: Tensor, beta1: float, beta2: float) -> None:
        """m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², v̂ ← max(v̂, v), with a step g (d,)."""
        self.first = self.first.lerp(step, 1 - beta1)
        self.second = self.second.lerp(step * step, 1 - beta2)
        self.largest = torch.maximum(self.largest, self.second)


class Fadas:
    """Pass the unweighted mean of B updates to AMSGrad: w ← w + η_τ m/(√v̂ + ε).

    η_τ is η, divided by the largest staleness in the buffer if that exceeds `delay_threshold`. The updates are used
    as they arrive, however stale they are.
    """

    def __init__(self, options: FadasOptions, dimension: int, device: str = "cpu") -> None:
        self.options = options
        zeros = torch.zeros(dimension, device=device)
        self.state = FadasState(zeros, zeros, zeros)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        options, state, flushes = self.options, self.state, 0
        for arrival in arrivals:
            if full := state.buffer.add(arrival.update.delta, arrival, options.buffer_size):
                state.observe(full.total / options.buffer_size, options.beta1, options.beta2)
                late = full.max_staleness > options.delay_threshold
                lr = options.lr / full.max_staleness if late else options.lr
                step = state.first / (state.largest.sqrt() + options.epsilon)
                model = Weights(model.vector + lr * step, full.buffers)
                flushes += 1
        return Merged(model, {"flushes": flushes, "buffered": state.buffer.count})
