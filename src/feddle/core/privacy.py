"""The Gaussian mechanism on updates, and its privacy cost."""

import math
import os

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError


def clip(delta: Tensor, bound: float) -> Tensor:
    """`delta` (d,) scaled down to norm `bound` if it is longer; zero if its norm is not finite."""
    norm = torch.linalg.vector_norm(delta.double())
    if not bool(norm.isfinite()):  # the result must never be longer than the bound
        return torch.zeros_like(delta)
    return delta * min(1.0, bound / norm.item()) if norm else delta


def privatise(delta: Tensor, bound: float, noise_multiplier: float, generator: torch.Generator | None = None) -> Tensor:
    """`delta` (d,) clipped to norm C = `bound`, plus Normal(0, (zC)²) in each coordinate.

    Without a generator, the noise comes from the operating system's secure random source. A simulation passes a seeded
    generator, so that its results can be reproduced. That is not secure, because all 32-bit seeds of torch can be
    tried. Floating-point sums leak some information about the noise (Mironov 2012); this is not prevented.
    """
    noise = secret_normal(delta.numel()) if generator is None else torch.randn(delta.shape, generator=generator)
    return clip(delta, bound) + noise_multiplier * bound * noise.to(delta)


def secret_normal(count: int) -> Tensor:
    """Standard normal numbers (count,) in float64 from the secure random source, by the Box–Muller method."""
    half = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64).reshape(2, half)
    first, second = ((bits >> np.uint64(11)) + 1.0) * 2.0**-53  # in (0, 1]
    radius, angle = np.sqrt(-2.0 * np.log(first)), 2.0 * np.pi * second
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])


def epsilon(updates: int, noise_multiplier: float, delta: float) -> float:
    """ε at δ = `delta` of a client that sent this many updates, each through its own Gaussian mechanism.

    k mechanisms with noise multiplier z equal one with z/√k, even if each depends on the results of the previous ones
    (Dong, Roth and Su 2022, corollary 2). Amplification by subsampling is not used.
    """
    if not updates:
        return 0.0
    try:
        from dp_accounting import get_epsilon_gaussian
    except ImportError as error:
        raise FeddleError(
            "privacy requires dp-accounting, which is not installed; pip install 'feddle[privacy]'"
        ) from error
    return float(get_epsilon_gaussian(noise_multiplier / math.sqrt(updates), delta))
