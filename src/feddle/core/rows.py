"""The storage of an atlas's anchors: a linear map that every step of a search reads twice."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from feddle.core.errors import FeddleError


class Anchors(Protocol):
    """Rows a_1 … a_m of length d, in any storage."""

    def __len__(self) -> int:
        """The number of rows (m)."""

    def combine(self, origin: Tensor, coefficients: Tensor) -> Tensor:
        """origin + Σ c_m a_m (d,), with `coefficients` (m,)."""

    def project(self, vector: Tensor) -> Tensor:
        """The inner product (m,) of each row with a vector (d,)."""


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

    def combine(self, origin: Tensor, coefficients: Tensor) -> Tensor:
        """See `Anchors`."""
        return torch.addmv(origin, self.matrix.T, coefficients)

    def project(self, vector: Tensor) -> Tensor:
        """See `Anchors`."""
        return self.matrix @ vector


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
