"""FADAS."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.methods.buffer import Buffer
from feddle.methods.strategy import above, below


class Amsgrad:
    """AMSGrad without bias correction: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², v̂ ← max(v̂, v)."""

    def __init__(
        self, dimension: int, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-8, device: str = "cpu"
    ) -> None:
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.first, self.second, self.largest = (torch.zeros(dimension, device=device) for _ in range(3))

    def observe(self, step: Tensor) -> None:
        """Take a step (d,) into the moments."""
        self.first = self.first.lerp(step, 1 - self.beta1)
        self.second = self.second.lerp(step * step, 1 - self.beta2)
        self.largest = torch.maximum(self.largest, self.second)

    def precondition(self, step: Tensor) -> Tensor:
        """step / (√v̂ + ε)."""
        return step / (self.largest.sqrt() + self.epsilon)

    def state_dict(self) -> dict[str, Tensor]:
        """The three moments."""
        return {"first": self.first, "second": self.second, "largest": self.largest}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""
        device = self.first.device
        self.first, self.second, self.largest = (state[n].to(device, copy=True) for n in ("first", "second", "largest"))


class Fadas:
    """Feed the plain mean of B updates to AMSGrad, w ← w + η_τ m/(√v̂ + ε).

    η_τ is η, divided by the largest staleness in the buffer when that passes `delay_threshold`. The updates are the
    clients' own deltas from where they started, however old.
    """

    max_staleness: int | None = None

    def __init__(self, moments: Amsgrad, buffer_size: int = 10, lr: float = 1e-3, delay_threshold: int = 10) -> None:
        self.moments = moments
        self.lr = lr
        self.delay_threshold = delay_threshold
        self.buffer = Buffer(buffer_size)
        self.notes: Mapping[str, Any] = {}

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        flushes = 0
        for arrival in arrivals:
            if full := self.buffer.add(arrival.update.delta, arrival):
                self.moments.observe(full.total / self.buffer.size)
                late = full.max_staleness > self.delay_threshold
                lr = self.lr / full.max_staleness if late else self.lr
                step = self.moments.precondition(self.moments.first)
                model = Weights(model.vector + lr * step, full.buffers)
                flushes += 1
        self.notes = {"flushes": flushes, "buffered": self.buffer.count}
        return model

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {**above("buffer.", self.buffer.state_dict()), **above("moments.", self.moments.state_dict())}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self.buffer.load_state_dict(below("buffer.", state))
        self.moments.load_state_dict(below("moments.", state))
