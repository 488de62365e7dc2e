"""The Gaussian mechanism on updates, and what it spends."""

import math
import os

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError


def clip(delta: Tensor, bound: float) -> Tensor:
    """`delta` (d,) scaled down to norm `bound` if it is longer; zero if its norm is no number."""
    norm = torch.linalg.vector_norm(delta.double())
    if not bool(norm.isfinite()):  # whatever the data did, nothing longer than the bound may come out
        return torch.zeros_like(delta)
    return delta * min(1.0, bound / norm.item()) if norm else delta


def privatise(delta: Tensor, bound: float, noise_multiplier: float, generator: torch.Generator | None = None) -> Tensor:
    """`delta` (d,) clipped to norm C = `bound`, plus Normal(0, (zC)²) in each coordinate.

    The guarantee is only as good as the randomness: without a generator the noise comes from the system's source of
    secrets. A simulation gives one, seeded so that it repeats; torch's has 32 bits of seed, which anybody can try out.
    Sums of floats leak a little of what was added (Mironov 2012); nothing is done about that.
    """
    noise = secret_normal(delta.numel()) if generator is None else torch.randn(delta.shape, generator=generator)
    return clip(delta, bound) + noise_multiplier * bound * noise.to(delta)


def secret_normal(count: int) -> Tensor:
    """Standard normal numbers (count,) in float64 from the system's source of secrets, two at a time (Box, Muller)."""
    half = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64).reshape(2, half)
    first, second = ((bits >> np.uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2.0 * np.log(first)), 2.0 * np.pi * second
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])


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
