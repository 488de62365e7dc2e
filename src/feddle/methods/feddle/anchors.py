"""How arrivals are turned into anchors."""

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Discriminator, Field
from torch import Tensor

from feddle.core.messages import Arrival
from feddle.methods.client_cache import CacheLimit, ClientCache, build_cache
from feddle.methods.fadas import Amsgrad, Epsilon, SecondDecay
from feddle.options import Options, choice
from feddle.training.parts import Parts


class Anchoring(Protocol):
    """Turns the arrivals of a round into anchors (d,). An optional attribute `state` is saved in checkpoints."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """One anchor per arrival."""


class RawAnchors(Options):
    """The updates, unchanged."""

    name: Literal["raw"] = "raw"

    def build(self, parts: Parts) -> Anchoring:  # noqa: ARG002
        """Itself, since it has no state."""
        return self

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """The paper's anchors."""
        return [a.update.delta for a in arrivals]


class CalibratedOptions(Options):
    """Updates calibrated by the clients' previous ones, as in CA2FL."""

    name: Literal["calibrated"] = "calibrated"
    cache_limit: CacheLimit = 2000.0

    def build(self, parts: Parts) -> Anchoring:
        """Calibrated anchors with an empty cache."""
        return CalibratedAnchors(build_cache(parts, self.cache_limit))


class CalibratedAnchors:
    """h̄ + Δ_i − h_i, with the client's last update h_i and the mean h̄ over all clients.

    Both are the values before this merge; the cache is updated afterwards. So the mean of the anchors is CA2FL's step.
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
        """Build adaptive anchors whose moments start at zero."""
        return AdaptiveAnchors(Amsgrad.zeros(parts.bench.layout.size, parts.device), self.beta2, self.epsilon)


class AdaptiveAnchors:
    """Δ/(√v̂ + ε), rescaled to the norm of Δ. The moments are updated with the mean of the arrivals."""

    def __init__(self, moments: Amsgrad, beta2: float = 0.99, epsilon: float = 1e-8) -> None:
        self.beta2 = beta2
        self.epsilon = epsilon
        self.state = moments

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """See `Anchoring`."""
        deltas = [a.update.delta for a in arrivals]
        if deltas:
            self.state.observe(torch.stack(deltas).mean(0), 0.0, self.beta2)
        return [_rescaled(self.state.precondition(delta, self.epsilon), delta) for delta in deltas]


def _rescaled(anchor: Tensor, delta: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(anchor)
    if not length or not bool(length.isfinite()):  # underflow or overflow: use the update itself
        return delta
    return anchor.mul(torch.linalg.vector_norm(delta) / length)


AnyAnchors = RawAnchors | CalibratedOptions | AdaptiveOptions
AnchorOptions = Annotated[
    AnyAnchors, Discriminator("name"), choice("raw"), Field(description="how updates are turned into anchors")
]
