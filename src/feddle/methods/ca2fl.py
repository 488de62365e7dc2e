"""CA2FL."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.methods.buffer import Buffer
from feddle.methods.client_cache import ClientCache
from feddle.methods.strategy import above, below


class CA2FL:
    """Calibrate each update by the client's last one: w ← w + η (h̄ + 1/B Σ (Δ_i − h_i)) when B have arrived.

    Both h̄ (over all J clients) and h_i are as they were before the flush; then the cache takes the new updates. A
    client that is twice in the buffer is taken against the same old h_i both times, and its later update is kept.
    """

    max_staleness: int | None = None

    def __init__(self, cache: ClientCache, buffer_size: int = 10, lr: float = 1.0) -> None:
        self.lr = lr
        self.cache = cache
        self.buffer = Buffer(buffer_size)
        self.notes: Mapping[str, Any] = {}
        self._new: dict[int, Tensor] = {}  # the latest update of each client in the buffer

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        flushes = 0
        for arrival in arrivals:
            client, delta = arrival.update.job.client, arrival.update.delta
            self._new[client] = delta.clone()
            if full := self.buffer.add(delta - self.cache[client], arrival):
                step = self.cache.mean() + full.total / self.buffer.size
                model = Weights(model.vector + self.lr * step, full.buffers)
                self._remember()
                flushes += 1
        self.notes = {"flushes": flushes, "buffered": self.buffer.count}
        return model

    def _remember(self) -> None:
        for client, delta in self._new.items():
            self.cache.put(client, delta)
        self._new = {}

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        new = torch.stack(list(self._new.values())) if self._new else torch.zeros(0, self.cache.dimension)
        return {
            **above("buffer.", self.buffer.state_dict()),
            **above("cache.", self.cache.state_dict()),
            "new.clients": torch.tensor(list(self._new), dtype=torch.int64),
            "new.updates": new,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self.buffer.load_state_dict(below("buffer.", state))
        self.cache.load_state_dict(below("cache.", state))
        self._new = dict(zip(state["new.clients"].tolist(), state["new.updates"].clone(), strict=True))
