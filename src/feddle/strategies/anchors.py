"""What an arrival becomes before it is an anchor of the atlas."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from feddle.core.messages import Arrival
from feddle.strategies.client_cache import ClientCache
from feddle.strategies.fadas import Amsgrad


class AnchorKind(Protocol):
    """Makes a direction (d,) of an arrival; called once for each, in order of arrival."""

    def __call__(self, arrival: Arrival) -> Tensor:
        """The anchor."""

    def state_dict(self) -> dict[str, Tensor]:
        """What is remembered of earlier arrivals."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""


class RawAnchors:
    """The client's update as it is: the paper's."""

    def __call__(self, arrival: Arrival) -> Tensor:
        """See `AnchorKind`."""
        return arrival.update.delta

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing is remembered."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `AnchorKind`."""


class CalibratedAnchors:
    """CA2FL's calibrated update, h̄ + Δ_i − h_i, with the client's last update h_i and the mean h̄ over all clients."""

    def __init__(self, cache: ClientCache) -> None:
        self.cache = cache

    def __call__(self, arrival: Arrival) -> Tensor:
        """See `AnchorKind`."""
        client, delta = arrival.update.job.client, arrival.update.delta
        anchor = self.cache.mean() + delta - self.cache[client]
        self.cache.put(client, delta)
        return anchor

    def state_dict(self) -> dict[str, Tensor]:
        """The cache."""
        return self.cache.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `AnchorKind`."""
        self.cache.load_state_dict(state)


class AdaptiveAnchors:
    """FADAS's preconditioned update, Δ/(√v̂ + ε), brought back to the length of Δ."""

    def __init__(self, moments: Amsgrad) -> None:
        self.moments = moments

    def __call__(self, arrival: Arrival) -> Tensor:
        """See `AnchorKind`."""
        delta = arrival.update.delta
        length = torch.linalg.vector_norm(delta)
        if not length:
            return delta
        self.moments.observe(delta)
        anchor = self.moments.precondition(delta)
        return anchor.mul(length / torch.linalg.vector_norm(anchor))

    def state_dict(self) -> dict[str, Tensor]:
        """The moments."""
        return self.moments.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `AnchorKind`."""
        self.moments.load_state_dict(state)
