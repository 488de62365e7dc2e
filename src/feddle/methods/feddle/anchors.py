"""What arrivals become before they are anchors of the atlas."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from feddle.core.messages import Arrival
from feddle.methods.client_cache import ClientCache
from feddle.methods.fadas import Amsgrad


class AnchorKind(Protocol):
    """Makes directions (d,) of what arrived since the last merge."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """An anchor for each arrival."""

    def state_dict(self) -> dict[str, Tensor]:
        """What is remembered of earlier arrivals."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""


class RawAnchors:
    """The clients' updates as they are: the paper's."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """See `AnchorKind`."""
        return [a.update.delta for a in arrivals]

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing is remembered."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `AnchorKind`."""


class CalibratedAnchors:
    """CA2FL's calibrated updates, h̄ + Δ_i − h_i, with the client's last update h_i and the mean h̄ over all clients.

    Both are as they were before the merge; then the cache takes the new updates. So the anchors' mean is CA2FL's step.
    """

    def __init__(self, cache: ClientCache) -> None:
        self.cache = cache

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """See `AnchorKind`."""
        mean = self.cache.mean()
        anchors = [mean + a.update.delta - self.cache[a.update.job.client] for a in arrivals]
        for arrival in arrivals:
            self.cache.put(arrival.update.job.client, arrival.update.delta)
        return anchors

    def state_dict(self) -> dict[str, Tensor]:
        """The cache."""
        return self.cache.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `AnchorKind`."""
        self.cache.load_state_dict(state)


class AdaptiveAnchors:
    """FADAS's preconditioned updates, Δ/(√v̂ + ε), each brought back to the length of its Δ.

    The moments are fed the mean of what arrived, as FADAS feeds them its buffer's.
    """

    def __init__(self, moments: Amsgrad) -> None:
        self.moments = moments

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """See `AnchorKind`."""
        deltas = [a.update.delta for a in arrivals]
        if deltas:
            self.moments.observe(torch.stack(deltas).mean(0))
        return [self._at_length(self.moments.precondition(delta), delta) for delta in deltas]

    @staticmethod
    def _at_length(anchor: Tensor, delta: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(anchor)
        if not length or not bool(length.isfinite()):  # it under- or overflows: the update itself must do
            return delta
        return anchor.mul(torch.linalg.vector_norm(delta) / length)

    def state_dict(self) -> dict[str, Tensor]:
        """The moments."""
        return self.moments.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `AnchorKind`."""
        self.moments.load_state_dict(state)
