"""Anchors that take less memory than float32, so each step of a search reads less.

The products are compiled by numba, because torch has no public product of 8-bit rows and a float32 vector. They work
on blocks that fit in the cache.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddle.core.atlas import allocate, copy_rows, load_rows
from feddle.core.blocks import Blocks, Segment
from feddle.core.compiled import compiled

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
        return Int8Rows(self.codes[:count], self.scales[:count])

    def saved(self, count: int) -> dict[str, Tensor]:
        return copy_rows(vars(self), count)

    def load(self, count: int, saved: Mapping[str, Tensor]) -> None:
        load_rows(self, count, saved)

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None = None) -> Tensor:
        out = torch.empty_like(origin)
        width = 1 if blocks is None else len(blocks)
        scaled = coefficients.view(len(self), width).T * self.scales  # (B, m)
        _combine(self.codes.numpy(), scaled.contiguous().numpy(), origin.numpy(), out.numpy(), self._segments(blocks))
        return out

    def project(self, vector: Tensor, blocks: Blocks | None = None) -> Tensor:
        out = torch.zeros(1 if blocks is None else len(blocks), len(self))
        _project(self.codes.numpy(), vector.numpy(), out.numpy(), self._segments(blocks))
        products = out.mul_(self.scales).T
        return products[:, 0] if blocks is None else products.contiguous()

    def _segments(self, blocks: Blocks | None) -> "np.ndarray[Any, np.dtype[np.int64]]":
        segments = [Segment(0, 1, self.codes.shape[1], 0)] if blocks is None else blocks.segments
        return np.array([astuple(part) for part in segments], dtype=np.int64)


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
def _combine(rows, coefficients, origin, out, segments):  # type: ignore[no-untyped-def]
    count = rows.shape[0]
    for start, lines, width, block in segments:
        for line in range(lines):
            own = coefficients[block + line]
            end = start + (line + 1) * width
            for first in range(end - width, end, _BLOCK):
                last = min(end, first + _BLOCK)
                part, sums = rows[:, first:last], out[first:last]
                sums[:] = origin[first:last]
                for r in range(0, count - 3, 4):
                    _add4(sums, part[r], part[r + 1], part[r + 2], part[r + 3], own[r : r + 4])
                for r in range(count - count % 4, count):
                    _add(sums, part[r], own[r])


@_jit
def _project(rows, vector, out, segments):  # type: ignore[no-untyped-def]
    count = rows.shape[0]
    for start, lines, width, block in segments:
        for line in range(lines):
            own = out[block + line]
            end = start + (line + 1) * width
            for first in range(end - width, end, _BLOCK):
                last = min(end, first + _BLOCK)
                part, gradient = rows[:, first:last], vector[first:last]
                for r in range(0, count - 3, 4):
                    _dot4(own[r : r + 4], part[r], part[r + 1], part[r + 2], part[r + 3], gradient)
                for r in range(count - count % 4, count):
                    own[r] += _dot(part[r], gradient)
