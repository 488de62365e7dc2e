"""FedBuff."""

from collections.abc import Sequence
from typing import Literal

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.buffer import Buffer
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import BufferSize, MethodOptions, ServerLr, Staleness, staleness_weight
from feddle.training.parts import Parts


class FedBuffOptions(MethodOptions):
    """Collect a buffer of updates and add their mean; stale updates have less weight."""

    name: Literal["fedbuff"] = "fedbuff"
    buffer_size: BufferSize = 10
    lr: ServerLr = 1.0
    staleness: Staleness = "sqrt"

    def build(self, parts: Parts) -> "FedBuff":  # noqa: ARG002
        """The method."""
        return FedBuff(self)

    def cost(self, setting: Setting) -> Cost:  # noqa: ARG002
        """The buffer is a sum."""
        return Cost(kept=1, working=2)


class FedBuff:
    """Collect B updates, then w ← w + η/B · Σ s(τ) Δ, with τ at arrival. Further updates wait for the next step.

    The sum is divided by the buffer's size, not by the sum of the weights, so a stale buffer takes a smaller step.
    """

    def __init__(self, options: FedBuffOptions) -> None:
        self.options = options
        self.state = Buffer()

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        size, flushes = self.options.buffer_size, 0
        for arrival in arrivals:
            step = staleness_weight(self.options.staleness, arrival.staleness) * arrival.update.delta
            if full := self.state.add(step, arrival, size):
                model = Weights(model.vector + self.options.lr / size * full.total, full.buffers)
                flushes += 1
        return Merged(model, {"flushes": flushes, "buffered": self.state.count})
