"""3×3 convolutions by Winograd's algorithm F(4×4, 3×3): a quarter of the multiplications of the direct sum.

A 4×4 square of outputs depends on a 6×6 patch of inputs. In one dimension, with input d, filter g and output y,

    y = Aᵀ[(G g) ∘ (Bᵀ d)],

and both dimensions apply it one after the other (Lavin & Gray, 2016). The products ∘ of all patches and channels are
36 matrix products. Gradients are the adjoint of each step, so they need no separate formula.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.compiled import compiled

_FILTER = torch.tensor(  # G, in 24ths
    [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], dtype=torch.float64
).div(24)
_FILTER_2D = torch.kron(_FILTER, _FILTER).float()  # G ⊗ G: 9 weights of a filter to 36
_TILES = 128  # patches at a time, so that they stay in the processor's cache
_ROWS, _PLANES = "float32[:,:,::1]", "float32[:,:,::1]"  # images (n, H, W·C), planes (36, patches, C)
_two, _four, _five, _eight, _zero = (np.float32(number) for number in (2, 4, 5, 8, 0))


class WinogradConv2d(nn.Conv2d):
    """A 3×3 convolution with padding 1, equal to torch's up to rounding.

    The kernel handles float32 batches in channels_last on the CPU. Everything else uses torch's own function: function
    transforms (vmap, jvp), compilers, autocast, and images of less than 4×4.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        """(n, in_channels, H, W) to (n, out_channels, H, W)."""
        if not _is_fast(images, self.weight):
            return F.conv2d(images, self.weight, self.bias, padding=1)
        convolved: Tensor = _Winograd.apply(  # type: ignore[no-untyped-call]
            images, self.weight, self.bias, torch.is_grad_enabled()
        )
        return convolved


def _is_fast(images: Tensor, weight: Tensor) -> bool:
    return (
        images.device.type == "cpu"
        and images.dtype == weight.dtype == torch.float32
        and images.ndim == 4
        and min(images.shape[1:]) >= 4  # torch's own is faster for the smallest images
        and images.is_contiguous(memory_format=torch.channels_last)
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_compiling()
    )


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, images: Tensor, weight: Tensor, bias: Tensor | None, training: bool) -> Tensor:
        outputs, inputs = weight.shape[:2]
        transformed = (_FILTER_2D @ weight.detach().permute(2, 3, 0, 1).reshape(9, -1)).view(36, outputs, inputs)
        convolved = torch.empty(len(images), outputs, *images.shape[2:], memory_format=torch.channels_last)
        added = (torch.zeros(outputs) if bias is None else bias.detach()).repeat(images.shape[3])
        source, target, kept = _rows(images), _rows(convolved), []
        for part, tiles in _parts(images):
            patches, products = torch.empty(36, tiles, inputs), torch.empty(36, tiles, outputs)
            _to_patches(source[part], patches.numpy())
            torch.bmm(patches, transformed.mT, out=products)
            _from_products(products.numpy(), target[part], added.numpy())
            if training and context.needs_input_grad[1]:
                kept.append(patches)
        context.save_for_backward(images, weight, transformed)
        context.patches = kept
        return convolved

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, transformed = context.saved_tensors
        wants_images, wants_weight, wants_bias, _ = context.needs_input_grad
        if torch.is_grad_enabled():  # for a second derivative, use operations that torch can differentiate
            return *_differentiable(gradient, images, weight, context.needs_input_grad[:3]), None
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        outputs, inputs = weight.shape[:2]
        spread = torch.empty_like(images, memory_format=torch.channels_last) if wants_images else None
        slopes = torch.zeros(36, outputs, inputs)
        for place, (part, tiles) in enumerate(_parts(images)):
            products = torch.empty(36, tiles, outputs)
            _to_products(_rows(gradient)[part], products.numpy())
            if wants_weight:
                slopes.baddbmm_(products.mT, context.patches[place])
            if spread is not None:
                _from_patches(torch.bmm(products, transformed).numpy(), _rows(spread)[part])
        slope = (_FILTER_2D.T @ slopes.view(36, -1)).view(3, 3, outputs, inputs).permute(2, 3, 0, 1)
        return spread, slope if wants_weight else None, gradient.sum((0, 2, 3)) if wants_bias else None, None


def _differentiable(
    gradient: Tensor, images: Tensor, weight: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        gradient, images, weight, [len(weight)], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(wanted)
    )
    return found


def _parts(images: Tensor) -> list[tuple[slice, int]]:
    """Slices of the batch, and the number of patches in each."""
    each = -(-images.shape[2] // 4) * -(-images.shape[3] // 4)
    size = max(1, _TILES // each)
    starts = range(0, len(images), size)
    return [(slice(start, start + size), each * len(images[start : start + size])) for start in starts]


def _rows(images: Tensor) -> "np.ndarray[Any, Any]":
    """(n, C, H, W) in channels_last as (n, H, W·C)."""
    return images.detach().permute(0, 2, 3, 1).flatten(2).numpy()


# A pass over rows works on all columns and channels at once, a pass over columns on the channels of one patch. Each
# output has a separate loop: in a joint loop, numba checks that the outputs do not overlap, and does not vectorise.


@compiled(f"void({_ROWS}, {_PLANES})", fastmath=True)
def _to_patches(images, patches):  # type: ignore[no-untyped-def]
    """Bᵀ d B of each patch d."""
    channels, (count, height, width) = patches.shape[2], images.shape
    rows, columns = (height + 3) // 4, (width // channels + 3) // 4
    padded = np.zeros((4 * rows + 2, (4 * columns + 2) * channels), np.float32)
    half = np.empty((6, (4 * columns + 2) * channels), np.float32)
    for n in range(count):
        for i in range(height):
            padded[i + 1, channels : channels + width] = images[n, i]
        for row in range(rows):
            a, b, c = padded[4 * row], padded[4 * row + 1], padded[4 * row + 2]
            d, e, f = padded[4 * row + 3], padded[4 * row + 4], padded[4 * row + 5]
            t, u, v, w, x, y = half[0], half[1], half[2], half[3], half[4], half[5]
            for k in range(len(a)):
                t[k] = _four * a[k] - _five * c[k] + e[k]
            for k in range(len(a)):
                u[k] = (d[k] + e[k]) - _four * (b[k] + c[k])
            for k in range(len(a)):
                v[k] = (e[k] - d[k]) + _four * (b[k] - c[k])
            for k in range(len(a)):
                w[k] = (e[k] - c[k]) + _two * (d[k] - b[k])
            for k in range(len(a)):
                x[k] = (e[k] - c[k]) - _two * (d[k] - b[k])
            for k in range(len(a)):
                y[k] = _four * b[k] - _five * d[k] + f[k]
            for column in range(columns):
                at, left = (n * rows + row) * columns + column, 4 * column * channels
                for i in range(6):
                    h = half[i, left : left + 6 * channels]
                    a, b, c = h[:channels], h[channels : 2 * channels], h[2 * channels : 3 * channels]
                    d, e, f = h[3 * channels : 4 * channels], h[4 * channels : 5 * channels], h[5 * channels :]
                    t, u, v = patches[6 * i, at], patches[6 * i + 1, at], patches[6 * i + 2, at]
                    w, x, y = patches[6 * i + 3, at], patches[6 * i + 4, at], patches[6 * i + 5, at]
                    for k in range(channels):
                        t[k] = _four * a[k] - _five * c[k] + e[k]
                    for k in range(channels):
                        u[k] = (d[k] + e[k]) - _four * (b[k] + c[k])
                    for k in range(channels):
                        v[k] = (e[k] - d[k]) + _four * (b[k] - c[k])
                    for k in range(channels):
                        w[k] = (e[k] - c[k]) + _two * (d[k] - b[k])
                    for k in range(channels):
                        x[k] = (e[k] - c[k]) - _two * (d[k] - b[k])
                    for k in range(channels):
                        y[k] = _four * b[k] - _five * d[k] + f[k]


@compiled(f"void({_PLANES}, {_ROWS})", fastmath=True)
def _from_patches(patches, images):  # type: ignore[no-untyped-def]
    """The adjoint of `_to_patches`, B p Bᵀ. Where patches overlap, their values are added."""
    channels, (count, height, width) = patches.shape[2], images.shape
    rows, columns = (height + 3) // 4, (width // channels + 3) // 4
    padded = np.empty((4 * rows + 2, (4 * columns + 2) * channels), np.float32)
    half = np.empty((6, (4 * columns + 2) * channels), np.float32)
    for n in range(count):
        padded[:] = _zero
        for row in range(rows):
            half[:] = _zero
            for column in range(columns):
                at, left = (n * rows + row) * columns + column, 4 * column * channels
                for i in range(6):
                    a, b, c = patches[6 * i, at], patches[6 * i + 1, at], patches[6 * i + 2, at]
                    d, e, f = patches[6 * i + 3, at], patches[6 * i + 4, at], patches[6 * i + 5, at]
                    h = half[i, left : left + 6 * channels]
                    t, u, v = h[:channels], h[channels : 2 * channels], h[2 * channels : 3 * channels]
                    w, x, y = h[3 * channels : 4 * channels], h[4 * channels : 5 * channels], h[5 * channels :]
                    for k in range(channels):
                        t[k] += _four * a[k]
                    for k in range(channels):
                        u[k] += _four * (c[k] - b[k] + f[k]) + _two * (e[k] - d[k])
                    for k in range(channels):
                        v[k] -= _five * a[k] + _four * (b[k] + c[k]) + (d[k] + e[k])
                    for k in range(channels):
                        w[k] += (b[k] - c[k]) + _two * (d[k] - e[k]) - _five * f[k]
                    for k in range(channels):
                        x[k] += a[k] + (b[k] + c[k]) + (d[k] + e[k])
                    for k in range(channels):
                        y[k] += f[k]
            a, b, c, d, e, f = half[0], half[1], half[2], half[3], half[4], half[5]
            t, u, v = padded[4 * row], padded[4 * row + 1], padded[4 * row + 2]
            w, x, y = padded[4 * row + 3], padded[4 * row + 4], padded[4 * row + 5]
            for k in range(len(a)):
                t[k] += _four * a[k]
            for k in range(len(a)):
                u[k] += _four * (c[k] - b[k] + f[k]) + _two * (e[k] - d[k])
            for k in range(len(a)):
                v[k] -= _five * a[k] + _four * (b[k] + c[k]) + (d[k] + e[k])
            for k in range(len(a)):
                w[k] += (b[k] - c[k]) + _two * (d[k] - e[k]) - _five * f[k]
            for k in range(len(a)):
                x[k] += a[k] + (b[k] + c[k]) + (d[k] + e[k])
            for k in range(len(a)):
                y[k] += f[k]
        for i in range(height):
            images[n, i] = padded[i + 1, channels : channels + width]


@compiled(f"void({_PLANES}, {_ROWS}, float32[::1])", fastmath=True)
def _from_products(products, images, bias):  # type: ignore[no-untyped-def]
    """Aᵀ m A of the products m of each patch, plus the bias."""
    channels, (count, height, width) = products.shape[2], images.shape
    rows, columns = (height + 3) // 4, (width // channels + 3) // 4
    half = np.empty((6, 4 * columns * channels), np.float32)
    for n in range(count):
        for row in range(rows):
            for column in range(columns):
                at, left = (n * rows + row) * columns + column, 4 * column * channels
                for i in range(6):
                    a, b, c = products[6 * i, at], products[6 * i + 1, at], products[6 * i + 2, at]
                    d, e, f = products[6 * i + 3, at], products[6 * i + 4, at], products[6 * i + 5, at]
                    h = half[i, left : left + 4 * channels]
                    t, u = h[:channels], h[channels : 2 * channels]
                    v, w = h[2 * channels : 3 * channels], h[3 * channels :]
                    for k in range(channels):
                        t[k] = a[k] + (b[k] + c[k]) + (d[k] + e[k])
                    for k in range(channels):
                        u[k] = (b[k] - c[k]) + _two * (d[k] - e[k])
                    for k in range(channels):
                        v[k] = (b[k] + c[k]) + _four * (d[k] + e[k])
                    for k in range(channels):
                        w[k] = (b[k] - c[k]) + _eight * (d[k] - e[k]) + f[k]
            a, b, c, d, e, f = half[0], half[1], half[2], half[3], half[4], half[5]
            left = height - 4 * row  # rows of the image that are left
            t = images[n, 4 * row]
            for k in range(width):
                t[k] = a[k] + (b[k] + c[k]) + (d[k] + e[k]) + bias[k]
            if left > 1:
                u = images[n, 4 * row + 1]
                for k in range(width):
                    u[k] = (b[k] - c[k]) + _two * (d[k] - e[k]) + bias[k]
            if left > 2:
                v = images[n, 4 * row + 2]
                for k in range(width):
                    v[k] = (b[k] + c[k]) + _four * (d[k] + e[k]) + bias[k]
            if left > 3:
                w = images[n, 4 * row + 3]
                for k in range(width):
                    w[k] = (b[k] - c[k]) + _eight * (d[k] - e[k]) + f[k] + bias[k]


@compiled(f"void({_ROWS}, {_PLANES})", fastmath=True)
def _to_products(images, products):  # type: ignore[no-untyped-def]
    """The adjoint of `_from_products` without the bias, A g Aᵀ."""
    channels, (count, height, width) = products.shape[2], images.shape
    rows, columns = (height + 3) // 4, (width // channels + 3) // 4
    padded = np.zeros((4 * rows, 4 * columns * channels), np.float32)
    half = np.empty((6, 4 * columns * channels), np.float32)
    for n in range(count):
        for i in range(height):
            padded[i, :width] = images[n, i]
        for row in range(rows):
            a, b, c, d = padded[4 * row], padded[4 * row + 1], padded[4 * row + 2], padded[4 * row + 3]
            t, u, v, w, x, y = half[0], half[1], half[2], half[3], half[4], half[5]
            t[:], y[:] = a, d
            for k in range(len(a)):
                u[k] = (a[k] + c[k]) + (b[k] + d[k])
            for k in range(len(a)):
                v[k] = (a[k] + c[k]) - (b[k] + d[k])
            for k in range(len(a)):
                w[k] = (a[k] + _four * c[k]) + _two * (b[k] + _four * d[k])
            for k in range(len(a)):
                x[k] = (a[k] + _four * c[k]) - _two * (b[k] + _four * d[k])
            for column in range(columns):
                at, left = (n * rows + row) * columns + column, 4 * column * channels
                for i in range(6):
                    h = half[i, left : left + 4 * channels]
                    a, b = h[:channels], h[channels : 2 * channels]
                    c, d = h[2 * channels : 3 * channels], h[3 * channels :]
                    t, u, v = products[6 * i, at], products[6 * i + 1, at], products[6 * i + 2, at]
                    w, x, y = products[6 * i + 3, at], products[6 * i + 4, at], products[6 * i + 5, at]
                    for k in range(channels):
                        t[k] = a[k]
                    for k in range(channels):
                        u[k] = (a[k] + c[k]) + (b[k] + d[k])
                    for k in range(channels):
                        v[k] = (a[k] + c[k]) - (b[k] + d[k])
                    for k in range(channels):
                        w[k] = (a[k] + _four * c[k]) + _two * (b[k] + _four * d[k])
                    for k in range(channels):
                        x[k] = (a[k] + _four * c[k]) - _two * (b[k] + _four * d[k])
                    for k in range(channels):
                        y[k] = d[k]
