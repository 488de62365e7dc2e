"""FedBuff."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.staleness import StalenessWeight, staleness_weight


class FedBuff:
    """Collect B updates, then w ← w + η/B · Σ s(τ) Δ, with τ at arrival; what is left over waits.

    The sum is divided by the buffer's size, not by the sum of the weights: stale buffers take smaller steps.
    """

    max_staleness: int | None = None

    def __init__(self, buffer_size: int = 10, lr: float = 1.0, staleness: StalenessWeight = "sqrt") -> None:
        self.buffer_size = buffer_size
        self.lr = lr
        self.staleness: StalenessWeight = staleness
        self.notes: Mapping[str, Any] = {}
        self._count = 0
        self._examples = 0
        self._step: Tensor | None = None  # Σ s(τ) Δ over the buffer
        self._buffers: Tensor | None = None  # Σ n_j · buffers_j over the buffer

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        flushes = 0
        for arrival in arrivals:
            self._collect(arrival)
            if self._count == self.buffer_size:
                model = self._flush(model)
                flushes += 1
        self.notes = {"flushes": flushes, "buffered": self._count}
        return model

    def _collect(self, arrival: Arrival) -> None:
        update = arrival.update
        step = staleness_weight(self.staleness, arrival.staleness) * update.delta
        buffers = update.num_examples * update.buffers
        self._step = step if self._step is None else self._step + step
        self._buffers = buffers if self._buffers is None else self._buffers + buffers
        self._examples += update.num_examples
        self._count += 1

    def _flush(self, model: Weights) -> Weights:
        assert self._step is not None
        assert self._buffers is not None
        vector = model.vector + self.lr / self.buffer_size * self._step
        buffers = self._buffers / self._examples
        self._count, self._examples, self._step, self._buffers = 0, 0, None, None
        return Weights(vector, buffers)

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        if self._step is None or self._buffers is None:
            return {}
        counts = torch.tensor([self._count, self._examples])
        return {"step": self._step, "buffers": self._buffers, "counts": counts}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self._step, self._buffers = state.get("step"), state.get("buffers")
        self._count, self._examples = state["counts"].tolist() if "counts" in state else (0, 0)
