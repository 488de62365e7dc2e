"""A buffer of updates, kept as sums."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feddle.core.messages import Arrival


@dataclass(frozen=True, eq=False)
class Collected:
    """A full buffer: the sum of its steps (d,), its running statistics (b,) and its largest staleness."""

    total: Tensor
    buffers: Tensor
    max_staleness: int


class Buffer:
    """Collects a step for each arrival until there are `size`; what comes after waits for the next time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        self._examples = 0
        self._max_staleness = 0
        self._step: Tensor | None = None  # the sum of the steps
        self._buffers: Tensor | None = None  # Σ n_j · buffers_j, in float64: n_j may be large

    def add(self, step: Tensor, arrival: Arrival) -> Collected | None:
        """Add the step that this arrival stands for; the buffer's content if that filled it."""
        update = arrival.update
        buffers = update.num_examples * update.buffers.double()
        self._step = step.clone() if self._step is None else self._step.to(step.device) + step
        self._buffers = buffers if self._buffers is None else self._buffers.to(buffers.device) + buffers
        self._examples += update.num_examples
        self._max_staleness = max(self._max_staleness, arrival.staleness)
        self.count += 1
        if self.count < self.size:
            return None
        mean = (self._buffers / self._examples).to(update.buffers.dtype)
        full = Collected(self._step, mean, self._max_staleness)
        self.count, self._examples, self._max_staleness, self._step, self._buffers = 0, 0, 0, None, None
        return full

    def state_dict(self) -> dict[str, Tensor]:
        """What has been collected so far."""
        if self._step is None or self._buffers is None:
            return {}
        counts = torch.tensor([self.count, self._examples, self._max_staleness])
        return {"step": self._step, "buffers": self._buffers, "counts": counts}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""
        self._step, self._buffers = (state[n].clone() if n in state else None for n in ("step", "buffers"))
        counts = state["counts"].tolist() if "counts" in state else (0, 0, 0)
        self.count, self._examples, self._max_staleness = counts
