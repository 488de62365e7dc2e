"""2×2 max pooling with a ReLU: one pass over memory forwards and one backwards, where torch takes four."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.compiled import compiled

_NONE = 4  # the largest of a square's four numbers has index 0 to 3; this one means that the ReLU removes it
_zero, _none = np.float32(0), np.uint8(_NONE)
_FLOATS, _BYTES = "float32[:,:,:,::1]", "uint8[:,:,:,::1]"


class PooledReLU(nn.Module):
    """`ReLU(MaxPool2d(2)(x))`, bit-identical to torch.

    The kernel handles float32 batches in channels_last on the CPU. Everything else uses torch's own functions: function
    transforms (vmap, jvp), compilers, and images with a single channel, which have every memory format at once.
    """

    def forward(self, images: Tensor) -> Tensor:
        """(n, C, H, W) to (n, C, ⌊H/2⌋, ⌊W/2⌋)."""
        if not _is_fast(images):
            return F.relu_(F.max_pool2d(images, 2))
        pooled: Tensor = _PooledReLU.apply(images)  # type: ignore[no-untyped-call]
        return pooled


def _is_fast(images: Tensor) -> bool:
    return (
        images.device.type == "cpu"
        and images.dtype == torch.float32
        and images.is_contiguous(memory_format=torch.channels_last)
        and min(images.shape[1:]) > 1
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_compiling()
    )


class _PooledReLU(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, images: Tensor) -> Tensor:
        count, channels, height, width = context.shape = images.shape
        shape = count, channels, height // 2, width // 2
        pooled = torch.empty(shape, memory_format=torch.channels_last)
        which = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        _pool(_channels_last(images), _channels_last(pooled), _channels_last(which))
        context.save_for_backward(which)
        return pooled

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (which,) = context.saved_tensors
        height, width = context.shape[2:]
        if torch.is_grad_enabled():  # for a second derivative, use operations that torch can differentiate
            squares = torch.stack([gradient * (which == place) for place in range(_NONE)], dim=2).flatten(1, 2)
            return F.pad(F.pixel_shuffle(squares, 2), (0, width % 2, 0, height % 2))
        spread = torch.empty(context.shape, memory_format=torch.channels_last)
        if height % 2 or width % 2:
            spread.zero_()  # an odd edge belongs to no square
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        _spread(_channels_last(gradient), _channels_last(which), _channels_last(spread))
        return spread


def _channels_last(tensor: Tensor) -> "np.ndarray[Any, Any]":
    return tensor.detach().permute(0, 2, 3, 1).numpy()


@compiled(f"void({_FLOATS}, {_FLOATS}, {_BYTES})")
def _pool(images, pooled, which):  # type: ignore[no-untyped-def]
    count, height, width, channels = pooled.shape
    for n in range(count):
        for i in range(height):
            for j in range(width):
                a, b = images[n, 2 * i, 2 * j], images[n, 2 * i, 2 * j + 1]
                c, d = images[n, 2 * i + 1, 2 * j], images[n, 2 * i + 1, 2 * j + 1]
                out, place = pooled[n, i, j], which[n, i, j]
                for k in range(channels):  # the first of equal numbers wins; NaN wins over every number
                    most, at = a[k], np.uint8(0)
                    if b[k] > most or b[k] != b[k]:
                        most, at = b[k], np.uint8(1)
                    if c[k] > most or c[k] != c[k]:
                        most, at = c[k], np.uint8(2)
                    if d[k] > most or d[k] != d[k]:
                        most, at = d[k], np.uint8(3)
                    if most <= _zero:
                        at = _none
                    out[k] = _zero if most < _zero else most
                    place[k] = at


@compiled(f"void({_FLOATS}, {_BYTES}, {_FLOATS})")
def _spread(gradient, which, spread):  # type: ignore[no-untyped-def]
    count, height, width, channels = gradient.shape
    for n in range(count):
        for i in range(height):
            for j in range(width):
                # Zero is added as in torch, so that −0 and flushed numbers become 0. Each output has its own loop:
                # in a joint loop, numba checks that the outputs do not overlap, and does not vectorise.
                slope, place = gradient[n, i, j], which[n, i, j]
                for at in range(_NONE):
                    out, here = spread[n, 2 * i + at // 2, 2 * j + at % 2], np.uint8(at)
                    for k in range(channels):
                        out[k] = slope[k] + _zero if place[k] == here else _zero
