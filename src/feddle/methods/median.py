"""The coordinate-wise median."""

from collections.abc import Sequence
from typing import Literal

import torch

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import MethodOptions, ServerLr
from feddle.training.parts import Parts


class MedianOptions(MethodOptions):
    """The coordinate-wise median of the arrivals; robust if a few clients are poisoned."""

    name: Literal["median"] = "median"
    lr: ServerLr = 1.0

    def build(self, parts: Parts) -> "CoordinateMedian":  # noqa: ARG002
        """The method."""
        return CoordinateMedian(self)

    def cost(self, setting: Setting) -> Cost:
        """The updates are stacked and sorted. The 64-bit indices of the sort are as large as two more copies."""
        return Cost(working=4 * setting.most + 1)


class CoordinateMedian:
    """w ← w + η · median of the arrivals' updates in each coordinate. A few extreme updates hardly change it.

    For an even number of updates it is the mean of the two middle values. The numbers of examples are not used, because
    a client could report any number.
    """

    def __init__(self, options: MedianOptions) -> None:
        self.options = options

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        if not arrivals:
            return Merged(model)
        ordered = torch.stack([a.update.delta for a in arrivals]).sort(dim=0).values
        low, high = (len(arrivals) - 1) // 2, len(arrivals) // 2
        step = (ordered[low] + ordered[high]) / 2
        return Merged(Weights(model.vector + self.options.lr * step, model.buffers))
