"""The trusted methods that a search starts from, as raw coefficients b of a step Σ b_m a_m."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from feddle.core.messages import Arrival
from feddle.core.staleness import StalenessWeight, polynomial, staleness_weight


class Fallback(Protocol):
    """What a trusted method would do with the anchors that just arrived."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """One raw coefficient for each arrival, in order of arrival."""


@dataclass(frozen=True)
class FedBuffFallback:
    """FedBuff's step with the arrivals as its buffer: η·s(τ)/n.

    With `buffer_size` B, η·s(τ)/max(n, B): a round with few arrivals takes a short step.
    """

    lr: float = 1.0
    staleness: StalenessWeight = "sqrt"
    buffer_size: int = 1

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """See `Fallback`."""
        size = max(len(arrivals), self.buffer_size)
        return [self.lr * staleness_weight(self.staleness, a.staleness) / size for a in arrivals]


@dataclass(frozen=True)
class FedAvgFallback:
    """FedAvg's step over all arrivals: n_j/n."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """See `Fallback`."""
        examples = sum(a.update.num_examples for a in arrivals)
        return [a.update.num_examples / examples for a in arrivals]


@dataclass(frozen=True)
class FedAsyncFallback:
    """FedAsync's mixing, α_m Π_{later i} (1 − α_i); the drift of the start models lies outside the anchors' span."""

    alpha: float = 0.4
    exponent: float = 0.5

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """See `Fallback`."""
        raw, rest = [], 1.0
        for arrival in reversed(arrivals):
            mixing = self.alpha * polynomial(arrival.staleness, self.exponent)
            raw.append(mixing * rest)
            rest *= 1.0 - mixing
        return raw[::-1]


@dataclass(frozen=True)
class AdaptiveFallback:
    """FedAvg's step if the arrivals are fresh, else FedBuff's, which trusts stale ones less.

    Fresh: a mean staleness of at most `threshold` rounds.
    """

    threshold: float = 1.0

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """See `Fallback`."""
        fresh = sum(a.staleness for a in arrivals) <= self.threshold * len(arrivals)
        chosen: Fallback = FedAvgFallback() if fresh else FedBuffFallback()
        return chosen(arrivals)


@dataclass(frozen=True)
class NoFallback:
    """Start from the current model."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """See `Fallback`."""
        return [0.0] * len(arrivals)
