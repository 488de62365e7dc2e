"""Anchors that take less memory than float32, so each step of a search reads less.

The products are compiled by numba, because torch has no public product of 8-bit rows and a float32 vector. They work
on blocks that fit in the cache.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddle.core.compiled import compiled
from feddle.core.rows import allocate

_BLOCK = 8192  # columns, whose float32 sums fit in the first-level cache
_jit = compiled(fastmath=True)  # allows SIMD sums
_f32 = np.float32


@dataclass(frozen=True, eq=False)
class Int8Rows:
    """Anchors as 8-bit integers (m, d) with one scale per row: a quarter of float32's memory."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, capacity: int, dimension: int) -> "Int8Rows":
        """Empty rows for `capacity` anchors."""
        return cls(allocate(capacity, dimension, torch.int8), torch.zeros(capacity))

    def __len__(self) -> int:
        return len(self.codes)

    def put(self, row: int, anchor: Tensor) -> None:
        """Store an anchor, rounded to multiples of its largest absolute value / 127."""
        scale = anchor.abs().max() / 127
        self.scales[row] = scale
        self.codes[row] = (anchor / scale).round_().clamp_(-127, 127) if scale else 0

    def first(self, count: int) -> "Int8Rows":
        """See `Rows`."""
        return Int8Rows(self.codes[:count], self.scales[:count])

    def combine(self, origin: Tensor, coefficients: Tensor) -> Tensor:
        """See `Anchors`."""
        out = torch.empty_like(origin)
        _combine(self.codes.numpy(), (coefficients * self.scales).numpy(), origin.numpy(), out.numpy())
        return out

    def project(self, vector: Tensor) -> Tensor:
        """See `Anchors`."""
        out = torch.zeros(len(self))
        _project(self.codes.numpy(), vector.numpy(), out.numpy())
        return out.mul_(self.scales)


# four rows at a time, so that the vector is loaded once for the four


@_jit
def _add4(out, a, b, c, d, k):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] += k[0] * _f32(a[i]) + k[1] * _f32(b[i]) + k[2] * _f32(c[i]) + k[3] * _f32(d[i])


@_jit
def _add(out, a, k):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] += k * _f32(a[i])


@_jit
def _dot4(out, a, b, c, d, vector):  # type: ignore[no-untyped-def]
    s0, s1, s2, s3 = _f32(0), _f32(0), _f32(0), _f32(0)
    for i in range(vector.size):
        x = vector[i]
        s0 += _f32(a[i]) * x
        s1 += _f32(b[i]) * x
        s2 += _f32(c[i]) * x
        s3 += _f32(d[i]) * x
    out[0] += s0
    out[1] += s1
    out[2] += s2
    out[3] += s3


@_jit
def _dot(a, vector):  # type: ignore[no-untyped-def]
    s = _f32(0)
    for i in range(vector.size):
        s += _f32(a[i]) * vector[i]
    return s


@_jit
def _combine(rows, coefficients, origin, out):  # type: ignore[no-untyped-def]
    count, width = rows.shape
    for first in range(0, width, _BLOCK):
        block = rows[:, first : min(width, first + _BLOCK)]
        sums = out[first : first + block.shape[1]]
        sums[:] = origin[first : first + block.shape[1]]
        for r in range(0, count - 3, 4):
            _add4(sums, block[r], block[r + 1], block[r + 2], block[r + 3], coefficients[r : r + 4])
        for r in range(count - count % 4, count):
            _add(sums, block[r], coefficients[r])


@_jit
def _project(rows, vector, out):  # type: ignore[no-untyped-def]
    count, width = rows.shape
    for first in range(0, width, _BLOCK):
        block = rows[:, first : min(width, first + _BLOCK)]
        part = vector[first : first + block.shape[1]]
        for r in range(0, count - 3, 4):
            _dot4(out[r : r + 4], block[r], block[r + 1], block[r + 2], block[r + 3], part)
        for r in range(count - count % 4, count):
            out[r] += _dot(block[r], part)
