"""Adam for a small vector."""

import torch
from torch import Tensor

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


class SmallAdam:
    """Adam (Kingma & Ba) on one vector, with the same order of operations as `torch.optim.Adam`."""

    def __init__(self, like: Tensor) -> None:
        self._mean = torch.zeros_like(like)
        self._square = torch.zeros_like(like)
        self._steps = 0

    def step(self, at: Tensor, gradient: Tensor, lr: float) -> None:
        """Take a step from `at`, in place."""
        self._steps += 1
        self._mean.lerp_(gradient, 1 - _BETA1)
        self._square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        size = lr / (1 - _BETA1**self._steps)
        spread = (self._square.sqrt() / (1 - _BETA2**self._steps) ** 0.5).add_(_EPSILON)
        at.addcdiv_(self._mean, spread, value=-size)
