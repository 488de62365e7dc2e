"""The coordinate-wise median."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.methods.strategy import average_buffers


class CoordinateMedian:
    """w ← w + η · median of the arrivals' updates in each coordinate: a few wild updates do not move it.

    The median of an even number is the mean of the two middle ones. Examples do not count: a client could claim any.
    """

    max_staleness: int | None = None

    def __init__(self, lr: float = 1.0) -> None:
        self.lr = lr
        self.notes: Mapping[str, Any] = {}

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        if not arrivals:
            return model
        ordered = torch.stack([a.update.delta for a in arrivals]).sort(dim=0).values
        low, high = (len(arrivals) - 1) // 2, len(arrivals) // 2
        step = (ordered[low] + ordered[high]) / 2
        return Weights(model.vector + self.lr * step, average_buffers(model, arrivals))

    def state_dict(self) -> dict[str, Tensor]:
        """The median remembers nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
