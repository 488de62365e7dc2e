"""A buffer of updates, stored as sums."""

from dataclasses import dataclass

from torch import Tensor

from feddle.core.messages import Arrival


@dataclass(frozen=True, eq=False)
class Collected:
    """The content of a full buffer: sum of the steps (d,), mean running statistics (b,), largest staleness."""

    total: Tensor
    buffers: Tensor
    max_staleness: int


@dataclass(eq=False)
class Buffer:
    """The sums over the updates collected since the buffer was last full."""

    count: int = 0
    examples: int = 0
    max_staleness: int = 0
    step: Tensor | None = None  # the sum of the steps
    buffers: Tensor | None = None  # Σ n_j · buffers_j, in float64 because n_j may be large

    def add(self, step: Tensor, arrival: Arrival, size: int) -> Collected | None:
        """Add the step of an arrival. If that makes `size` steps, empty the buffer and return its content."""
        update = arrival.update
        buffers = update.num_examples * update.buffers.double()
        self.step = step.clone() if self.step is None else self.step + step
        self.buffers = buffers if self.buffers is None else self.buffers + buffers
        self.examples += update.num_examples
        self.max_staleness = max(self.max_staleness, arrival.staleness)
        self.count += 1
        if self.count < size:
            return None
        mean = (self.buffers / self.examples).to(update.buffers.dtype)
        full = Collected(self.step, mean, self.max_staleness)
        self.count, self.examples, self.max_staleness, self.step, self.buffers = 0, 0, 0, None, None
        return full
