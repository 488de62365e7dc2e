"""The Gaussian mechanism on updates, and what it spends."""

import math

import torch
from torch import Tensor

from feddle.core.errors import FeddleError


def clip(delta: Tensor, bound: float) -> Tensor:
    """`delta` (d,) scaled down to norm `bound` if it is longer; zero if its norm is no number."""
    norm = torch.linalg.vector_norm(delta.double())
    if not bool(norm.isfinite()):  # whatever the data did, nothing longer than the bound may come out
        return torch.zeros_like(delta)
    return delta * min(1.0, bound / norm.item()) if norm else delta


def privatise(delta: Tensor, bound: float, noise_multiplier: float, generator: torch.Generator) -> Tensor:
    """`delta` (d,) clipped to norm C = `bound`, plus Normal(0, (zC)²) in each coordinate.

    The guarantee is only as good as the randomness: a simulation seeds the generator so that it repeats; a client with
    something to hide seeds it from the system (`generator.seed()`). Floats leak a little of what was added (Mironov
    2012), and torch's generator is not made for secrets; nothing is done about either.
    """
    noise = torch.randn(delta.shape, generator=generator).to(delta)
    return clip(delta, bound) + noise_multiplier * bound * noise


def epsilon(updates: int, noise_multiplier: float, delta: float) -> float:
    """ε, at δ = `delta`, of a client that sent so many updates, each through its own Gaussian mechanism.

    k mechanisms with noise multiplier z are exactly one with z/√k, also when each depends on what came of those
    before (Dong, Roth and Su 2022, corollary 2). No subsampling is claimed.
    """
    if not updates:
        return 0.0
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError as error:
        raise FeddleError(
            "privacy needs the accountant of dp-accounting, which is not installed; pip install 'feddle[privacy]'"
        ) from error
    return float(get_epsilon_gaussian(noise_multiplier / math.sqrt(updates), delta))
