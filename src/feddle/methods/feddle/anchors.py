"""What arrivals become before they are anchors of the atlas."""

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Discriminator
from torch import Tensor

from feddle.core.messages import Arrival
from feddle.methods.client_cache import CacheLimit, ClientCache, build_cache
from feddle.methods.fadas import Amsgrad, Epsilon, SecondDecay
from feddle.options import Options, choice
from feddle.training.parts import Parts


class Anchoring(Protocol):
    """Makes directions (d,) of what arrived since the last merge; an optional `state` is what it remembers."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """One anchor per arrival."""


class RawAnchors(Options):
    """The updates as they are."""

    name: Literal["raw"] = "raw"

    def build(self, parts: Parts) -> Anchoring:  # noqa: ARG002
        """Itself: nothing is remembered."""
        return self

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """The paper's anchors."""
        return [a.update.delta for a in arrivals]


class CalibratedOptions(Options):
    """Updates calibrated by the clients' last ones, as in CA2FL."""

    name: Literal["calibrated"] = "calibrated"
    cache_limit: CacheLimit = 2000.0

    def build(self, parts: Parts) -> Anchoring:
        """With a cache for every client's last update."""
        return CalibratedAnchors(build_cache(parts, self.cache_limit))


class CalibratedAnchors:
    """h̄ + Δ_i − h_i, with the client's last update h_i and the mean h̄ over all clients.

    Both are as they were before the merge; then the cache takes the new updates. So the anchors' mean is CA2FL's step.
    """

    def __init__(self, cache: ClientCache) -> None:
        self.state = cache

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """See `Anchoring`."""
        mean = self.state.mean()
        anchors = [mean + a.update.delta - self.state[a.update.job.client] for a in arrivals]
        for arrival in arrivals:
            self.state.put(arrival.update.job.client, arrival.update.delta)
        return anchors


class AdaptiveOptions(Options):
    """Updates preconditioned by AMSGrad's moments, as in FADAS."""

    name: Literal["adaptive"] = "adaptive"
    beta2: SecondDecay = 0.99
    epsilon: Epsilon = 1e-8

    def build(self, parts: Parts) -> Anchoring:
        """With moments that start at zero."""
        return AdaptiveAnchors(Amsgrad.zeros(parts.bench.layout.size, parts.device), self.beta2, self.epsilon)


class AdaptiveAnchors:
    """Δ/(√v̂ + ε), each scaled back to the length of its Δ; the moments take in the mean of what arrived."""

    def __init__(self, moments: Amsgrad, beta2: float = 0.99, epsilon: float = 1e-8) -> None:
        self.beta2 = beta2
        self.epsilon = epsilon
        self.state = moments

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """See `Anchoring`."""
        deltas = [a.update.delta for a in arrivals]
        if deltas:
            self.state.observe(torch.stack(deltas).mean(0), 0.0, self.beta2)
        return [_at_length(self.state.precondition(delta, self.epsilon), delta) for delta in deltas]


def _at_length(anchor: Tensor, delta: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(anchor)
    if not length or not bool(length.isfinite()):  # it under- or overflows: use the update itself
        return delta
    return anchor.mul(torch.linalg.vector_norm(delta) / length)


AnyAnchors = RawAnchors | CalibratedOptions | AdaptiveOptions
AnchorOptions = Annotated[AnyAnchors, Discriminator("name"), choice("raw")]
