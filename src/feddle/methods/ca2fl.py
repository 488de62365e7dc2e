"""CA2FL."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.buffer import Buffer
from feddle.methods.client_cache import CacheLimit, ClientCache, build_cache, cache_cost
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import BufferSize, MethodOptions, ServerLr
from feddle.training.parts import Parts


class Ca2flOptions(MethodOptions):
    """FedBuff with each update calibrated by the previous update of the same client."""

    name: Literal["ca2fl"] = "ca2fl"
    buffer_size: BufferSize = 10
    lr: ServerLr = 1.0
    cache_limit: CacheLimit = 2000.0

    def build(self, parts: Parts) -> "CA2FL":
        """The method."""
        return CA2FL(self, build_cache(parts, self.cache_limit))

    def cost(self, setting: Setting) -> Cost:
        """It also keeps the sum of the cache, in float64, and the buffer."""
        return replace(cache_cost(setting, self.cache_limit), kept=3, working=3.0 + self.buffer_size)


@dataclass(eq=False)
class Ca2flState:
    """The cache of last updates, the buffer, and the buffer's updates that are not in the cache yet."""

    cache: ClientCache
    buffer: Buffer = field(default_factory=Buffer)
    new: dict[int, Tensor] = field(default_factory=dict)  # the latest update of each client in the buffer


class CA2FL:
    """Calibrate each update by the client's previous one: w ← w + η (h̄ + 1/B Σ (Δ_i − h_i)) when B have arrived.

    h̄ (the mean over all J clients) and h_i are the values before this step; the cache is updated afterwards. If a
    client is in the buffer twice, both updates use the same h_i, and the cache keeps the later update.
    """

    def __init__(self, options: Ca2flOptions, cache: ClientCache) -> None:
        self.options = options
        self.state = Ca2flState(cache)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        state, size, flushes = self.state, self.options.buffer_size, 0
        for arrival in arrivals:
            client, delta = arrival.update.job.client, arrival.update.delta
            state.new[client] = delta.clone()
            if full := state.buffer.add(delta - state.cache[client], arrival, size):
                step = state.cache.mean() + full.total / size
                model = Weights(model.vector + self.options.lr * step, full.buffers)
                for owner, update in state.new.items():
                    state.cache.put(owner, update)
                state.new = {}
                flushes += 1
        return Merged(model, {"flushes": flushes, "buffered": state.buffer.count})
