"""Custom kernels: faster than torch's. Pooling and optimisers are bit-identical, convolutions equal up to rounding.

Other packages use only the functions below. Private names of torch appear only in this package. The environment
variable `FEDDLE_KERNELS=off` selects torch's own modules and optimisers instead.
"""

import os
from collections.abc import Iterable
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from feddle.core.errors import FeddleError
from feddle.training.kernels.optimizers import SGD, Adam, Optimizer, TorchOptimizer

__all__ = ["Optimizer", "convolution", "count_changes", "make_optimizer", "own_kernels", "pooled_relu"]

_FEW_CHANNELS = 32  # with fewer, torch's own convolution is faster


@cache
def own_kernels() -> bool:
    """Whether the custom kernels are used: FEDDLE_KERNELS is `on` (the default) or `off`."""
    switch = os.environ.get("FEDDLE_KERNELS", "on")
    if switch not in ("on", "off"):
        raise FeddleError(f"expected FEDDLE_KERNELS to be on or off, got {switch!r}; set it to one of them")
    return switch == "on"


def convolution(in_channels: int, out_channels: int, *, padding: bool = True, bias: bool = True) -> nn.Conv2d:
    """A 3×3 convolution with stride 1; with padding, it keeps the height and width."""
    if not padding or min(in_channels, out_channels) < _FEW_CHANNELS or not own_kernels():
        return nn.Conv2d(in_channels, out_channels, 3, padding=int(padding), bias=bias)
    from feddle.training.kernels.winograd import WinogradConv2d  # compiles its functions

    return WinogradConv2d(in_channels, out_channels, bias=bias)


def pooled_relu() -> nn.Module:
    """A module that computes `ReLU(MaxPool2d(2)(x))`."""
    if not own_kernels():
        return nn.Sequential(nn.MaxPool2d(2), nn.ReLU(inplace=True))
    from feddle.training.kernels.pooling import PooledReLU  # compiles its functions

    return PooledReLU()


def make_optimizer(
    name: Literal["adam", "sgd"], parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float
) -> Optimizer:
    """A new optimiser: Adam with its usual moments, or SGD without momentum."""
    if own_kernels():
        return (Adam if name == "adam" else SGD)(list(parameters), lr, weight_decay)
    make = torch.optim.Adam if name == "adam" else torch.optim.SGD
    return TorchOptimizer(make(parameters, lr=lr, weight_decay=weight_decay, fused=True))


def count_changes(tensor: Tensor) -> int:
    """How often torch has changed the tensor in place; torch has no public name for this."""
    return tensor._version
