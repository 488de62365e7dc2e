"""Fallbacks: the trusted methods whose step Σ b_m a_m is the start of a search.

Each options class can be called; it returns one raw coefficient b_m per arrival, in order of arrival.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Discriminator, Field

from feddle.core.messages import Arrival
from feddle.methods.fedasync import Exponent, Mixing
from feddle.methods.strategy import ServerLr, Staleness, polynomial, staleness_weight
from feddle.options import Count, NonNegative, Options, choice

Fallback = Callable[[Sequence[Arrival]], list[float]]  # one raw coefficient per anchor that just arrived


class FedBuffFallback(Options):
    """FedBuff's step with the arrivals as its buffer."""

    name: Literal["fedbuff"] = "fedbuff"
    lr: ServerLr = 1.0
    staleness: Staleness = "sqrt"
    buffer_size: Count | None = Field(
        1,
        description="if fewer updates than this arrive, the step is shorter, as if the missing ones were zero; null: "
        "clients.per_round",
    )

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """η·s(τ)/max(n, B)."""
        assert self.buffer_size is not None, "the method sets it"
        size = max(len(arrivals), self.buffer_size)
        return [self.lr * staleness_weight(self.staleness, a.staleness) / size for a in arrivals]


class FedAvgFallback(Options):
    """The arrivals' mean, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """n_j/n."""
        examples = sum(a.update.num_examples for a in arrivals)
        return [a.update.num_examples / examples for a in arrivals]


class FedAsyncFallback(Options):
    """FedAsync's mixing of the arrivals, one after the other."""

    name: Literal["fedasync"] = "fedasync"
    alpha: Mixing = 0.4
    exponent: Exponent = 0.5

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """α_m Π_{later i} (1 − α_i). The drift of the start models is outside the anchors' span, so it is dropped."""
        raw, rest = [], 1.0
        for arrival in reversed(arrivals):
            mixing = self.alpha * polynomial(arrival.staleness, self.exponent)
            raw.append(mixing * rest)
            rest *= 1.0 - mixing
        return raw[::-1]


class AdaptiveFallback(Options):
    """FedAvg's step if the arrivals are fresh on average, else FedBuff's."""

    name: Literal["adaptive"] = "adaptive"
    threshold: NonNegative = Field(1.0, description="largest mean staleness of the arrivals that counts as fresh")

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """FedAvg's coefficients if the mean staleness is at most `threshold`, else FedBuff's."""
        fresh = sum(a.staleness for a in arrivals) <= self.threshold * len(arrivals)
        chosen: Fallback = FedAvgFallback() if fresh else FedBuffFallback()
        return chosen(arrivals)


class NoFallback(Options):
    """Start from the current model."""

    name: Literal["none"] = "none"

    def __call__(self, arrivals: Sequence[Arrival]) -> list[float]:
        """Zeros."""
        return [0.0] * len(arrivals)


AnyFallback = FedBuffFallback | FedAvgFallback | FedAsyncFallback | AdaptiveFallback | NoFallback
FallbackOptions = Annotated[
    AnyFallback,
    Discriminator("name"),
    choice("fedbuff"),
    Field(description="the trusted method whose step the search starts from"),
]
