"""The storage of an atlas's anchors: a linear map that every step of a search reads twice."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from feddle.core.blocks import Blocks
from feddle.core.errors import FeddleError


class Anchors(Protocol):
    """Rows a_1 … a_m of length d, in any storage.

    With `blocks`, there are B coefficients per row: the numbers of a row that belong to block b have coefficient b.
    """

    def __len__(self) -> int:
        """The number of rows (m)."""

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None = None) -> Tensor:
        """origin + Σ c_m a_m (d,), with `coefficients` (m,), or (m, B) with blocks."""

    def project(self, vector: Tensor, blocks: Blocks | None = None) -> Tensor:
        """The inner product of each row with a vector (d,): (m,), or with blocks (m, B), each over its block only."""


class Rows(Anchors, Protocol):
    """Preallocated rows for a fixed number of anchors: a dataclass of tensors with one row per anchor."""

    def put(self, row: int, anchor: Tensor) -> None:
        """Store an anchor (d,)."""

    def first(self, count: int) -> Self:
        """The first rows, as a view."""


@dataclass(frozen=True, eq=False)
class FloatRows:
    """Exact anchors: an (m, d) matrix of float32."""

    matrix: Tensor

    @classmethod
    def empty(cls, capacity: int, dimension: int, device: str = "cpu") -> "FloatRows":
        """Empty rows for `capacity` anchors."""
        return cls(allocate(capacity, dimension, torch.float32, device))

    def __len__(self) -> int:
        return len(self.matrix)

    def put(self, row: int, anchor: Tensor) -> None:
        """See `Rows`."""
        self.matrix[row] = anchor

    def first(self, count: int) -> "FloatRows":
        """See `Rows`."""
        return FloatRows(self.matrix[:count])

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None = None) -> Tensor:
        """See `Anchors`."""
        if blocks is None:
            return torch.addmv(origin, self.matrix.T, coefficients)
        out = torch.empty_like(origin)
        for part in blocks.segments:
            rows, scales = self.matrix[:, part.place], coefficients[:, part.blocks]
            if part.rows == 1:
                torch.addmv(origin[part.place], rows.T, scales[:, 0], out=out[part.place])
            else:
                step = torch.einsum("mr,mrw->rw", scales, rows.view(-1, part.rows, part.width))
                torch.add(origin[part.place], step.flatten(), out=out[part.place])
        return out

    def project(self, vector: Tensor, blocks: Blocks | None = None) -> Tensor:
        """See `Anchors`."""
        if blocks is None:
            return self.matrix @ vector
        out = vector.new_zeros(len(self), len(blocks))
        for part in blocks.segments:
            rows, gradient = self.matrix[:, part.place], vector[part.place]
            if part.rows == 1:
                out[:, part.block].addmv_(rows, gradient)
            else:
                shape = part.rows, part.width
                out[:, part.blocks] += torch.einsum("mrw,rw->mr", rows.view(-1, *shape), gradient.view(shape))
        return out


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Anchors of an atlas, followed by further rows."""

    anchors: Anchors
    more: FloatRows

    def __len__(self) -> int:
        return len(self.anchors) + len(self.more)

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None = None) -> Tensor:
        """See `Anchors`."""
        first, rest = coefficients.tensor_split([len(self.anchors)])
        return self.more.combine(self.anchors.combine(origin, first, blocks), rest, blocks)

    def project(self, vector: Tensor, blocks: Blocks | None = None) -> Tensor:
        """See `Anchors`."""
        return torch.cat([self.anchors.project(vector, blocks), self.more.project(vector, blocks)])


def allocate(capacity: int, width: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Zeros (capacity, width), or an error that says what to do."""
    try:
        return torch.zeros(capacity, width, dtype=dtype, device=device)
    except RuntimeError as error:  # out of memory
        size = f"{dtype.itemsize * capacity * width / 1e9:.1f} GB"
        raise FeddleError(
            f"no memory for an atlas of {capacity} anchors ({size}); lower method.atlas_size, or use less memory "
            "per anchor (method.storage: int8)"
        ) from error
