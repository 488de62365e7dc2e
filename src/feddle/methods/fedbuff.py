"""FedBuff."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.staleness import StalenessWeight, staleness_weight
from feddle.methods.buffer import Buffer


class FedBuff:
    """Collect B updates, then w ← w + η/B · Σ s(τ) Δ, with τ at arrival; what is left over waits.

    The sum is divided by the buffer's size, not by the sum of the weights: stale buffers take smaller steps.
    """

    max_staleness: int | None = None

    def __init__(self, buffer_size: int = 10, lr: float = 1.0, staleness: StalenessWeight = "sqrt") -> None:
        self.lr = lr
        self.staleness: StalenessWeight = staleness
        self.buffer = Buffer(buffer_size)
        self.notes: Mapping[str, Any] = {}

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        flushes = 0
        for arrival in arrivals:
            step = staleness_weight(self.staleness, arrival.staleness) * arrival.update.delta
            if full := self.buffer.add(step, arrival):
                model = Weights(model.vector + self.lr / self.buffer.size * full.total, full.buffers)
                flushes += 1
        self.notes = {"flushes": flushes, "buffered": self.buffer.count}
        return model

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return self.buffer.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self.buffer.load_state_dict(state)
