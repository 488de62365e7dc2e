"""The model atlas: a bounded set of anchors, how it stores them, and the search space that they span."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

from feddle.core.blocks import Blocks
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job
from feddle.core.state import prefixed, without_prefix

Eviction = Literal["importance", "fifo"]


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
    """Rows for a fixed number of anchors."""

    def put(self, row: int, anchor: Tensor) -> None:
        """Store an anchor (d,)."""

    def first(self, count: int) -> Self:
        """The first rows, as a view."""

    def saved(self, count: int) -> dict[str, Tensor]:
        """The first rows as named tensors, which later changes of the rows do not affect."""

    def load(self, count: int, saved: Mapping[str, Tensor]) -> None:
        """Replace the first rows by those that `saved` returned."""


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
        self.matrix[row] = anchor

    def first(self, count: int) -> "FloatRows":
        return FloatRows(self.matrix[:count])

    def saved(self, count: int) -> dict[str, Tensor]:
        return copy_rows(vars(self), count)

    def load(self, count: int, saved: Mapping[str, Tensor]) -> None:
        load_rows(self, count, saved)

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None = None) -> Tensor:
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
        first, rest = coefficients.tensor_split([len(self.anchors)])
        return self.more.combine(self.anchors.combine(origin, first, blocks), rest, blocks)

    def project(self, vector: Tensor, blocks: Blocks | None = None) -> Tensor:
        return torch.cat([self.anchors.project(vector, blocks), self.more.project(vector, blocks)])


def copy_rows(columns: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Copies of the first rows of tensors that have one entry per anchor."""
    return {name: tensor[:count].clone() for name, tensor in columns.items()}


def replace_rows(columns: Mapping[str, Tensor], count: int, saved: Mapping[str, Tensor]) -> None:
    """Replace the first rows of tensors that have one entry per anchor, in place."""
    for name, tensor in columns.items():
        tensor[:count] = saved[name]


def load_rows(rows: Rows, count: int, saved: Mapping[str, Tensor]) -> None:
    """Replace the first rows of a dataclass of tensors. `saved` may hold one tensor per row, as ranks save them."""
    if vars(rows).keys() <= saved.keys():
        replace_rows(vars(rows), count, saved)
    else:
        for row in range(count):
            rows.put(row, row_in(saved, row))


def row_in(saved: Mapping[str, Tensor], row: int) -> Tensor:
    """An anchor (d,) from saved rows of any kind: a matrix, 8-bit codes with scales, or one tensor per row."""
    if "matrix" in saved:
        return saved["matrix"][row]
    if "codes" in saved:
        return saved["codes"][row].float() * saved["scales"][row]
    return saved[str(row)]


def allocate(capacity: int, width: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Zeros (capacity, width), or an error that says what to do."""
    try:
        return torch.zeros(capacity, width, dtype=dtype, device=device)
    except RuntimeError as error:  # out of memory
        size = f"{dtype.itemsize * capacity * width / 1e9:.1f} GB"
        raise FeddleError(
            f"no memory for an atlas of {capacity} anchors ({size}); lower method.atlas_size, use less memory "
            "per anchor (method.storage: int8), or keep the anchors on disk (method.storage: disk)"
        ) from error


class Atlas:
    """At most M anchors in `rows`, by default float32, with the score and origin of each row.

    A full atlas replaces the anchor with the smallest score (`importance`) or the oldest one (`fifo`). An anchor has no
    score until its first search and is not replaced before that. If every anchor is new, the oldest is replaced.
    `len(atlas)` is the number of anchors. docs/methods.md has an example.

    capacity: the largest number of anchors (M).
    dimension: the number of trainable parameters (d).
    eviction: what a full atlas replaces, `importance` or `fifo`.
    rows: where the anchors are stored; by default a float32 matrix in memory.
    device: the torch device of that matrix and of the scores.
    """

    def __init__(
        self,
        capacity: int,
        dimension: int,
        *,
        eviction: Eviction = "importance",
        rows: Rows | None = None,
        device: str = "cpu",
    ) -> None:
        self.capacity = capacity
        self.eviction = eviction
        self._rows = FloatRows.empty(capacity, dimension, device) if rows is None else rows
        self._norms = torch.zeros(capacity, device=device)
        self._scores = torch.full((capacity,), torch.nan, device=device)
        self._ages = torch.zeros(capacity, dtype=torch.int64)  # number of inserts before the row was filled
        self._origins = torch.zeros(capacity, 3, dtype=torch.int64)  # client, number, version of the job
        self._inserted = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def insert(self, job: Job, delta: Tensor) -> int:
        """Store an update as an anchor and return its row."""
        row = self._size if self._size < self.capacity else self._victim()
        self._rows.put(row, delta)
        self._norms[row] = torch.linalg.vector_norm(delta)
        self._scores[row] = torch.nan
        self._ages[row] = self._inserted
        self._origins[row] = torch.tensor([job.client, job.number, job.version])
        self._inserted += 1
        self._size = max(self._size, row + 1)
        return row

    def active(self) -> Anchors:
        """The anchors in use, as a view."""
        return self._rows.first(self._size)

    def row_scales(self) -> Tensor:
        """r (|A|,) with r_m = median(‖a‖)/‖a_m‖, so that Ā = r ∘ A."""
        norms = self._norms[: self._size]
        return norms.quantile(0.5) / norms if len(norms) else norms  # for an even number, the mean of the middle two

    def origins(self) -> list[Job]:
        """The job of each active anchor."""
        return [Job(*row) for row in self._origins[: self._size].tolist()]

    def score(self, coefficients: Tensor) -> None:
        """Store the mean of |ĉ| over the blocks (|A|, B) as the anchors' scores."""
        self._scores[: self._size] = coefficients.abs().mean(1)

    def _victim(self) -> int:
        oldest = int(self._ages.argmin())
        if self.eviction == "fifo" or bool(self._scores.isnan().all()):
            return oldest
        return int(self._scores.nan_to_num(nan=torch.inf).argmin())

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; only rows in use."""
        rows = prefixed("rows", self._rows.saved(self._size))
        return {**rows, **copy_rows(self._columns(), self._size), "inserted": torch.tensor(self._inserted)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._size, self._inserted = len(state["norms"]), int(state["inserted"])
        self._rows.load(self._size, without_prefix("rows", state))
        replace_rows(self._columns(), self._size, state)

    def _columns(self) -> dict[str, Tensor]:
        """Every tensor with one entry per anchor, except the rows."""
        return {"norms": self._norms, "scores": self._scores, "ages": self._ages, "origins": self._origins}


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """All models w + c·Ā, where Ā is the anchors times their scales. Ā is never built in memory.

    `scales` (m,) has one number per row. A point is computed outside autograd, and a gradient is projected on the
    anchors afterwards: one matrix-vector product each. With `blocks`, c has B numbers for each anchor, one after the
    other (m·B,), and the products are split at the borders of the blocks: w_i + Σ_m c[m, b(i)] r_m a_{m,i}.
    """

    origin: Weights
    anchors: Anchors
    scales: Tensor
    blocks: Blocks | None = None

    def point(self, coefficients: Tensor) -> Weights:
        """w + c·Ā; the running statistics do not depend on c."""
        scaled = coefficients * self.scales if self.blocks is None else self.table(coefficients) * self.scales[:, None]
        return Weights(self.anchors.combine(self.origin.vector, scaled, self.blocks), self.origin.buffers)

    def project(self, gradient: Tensor) -> Tensor:
        """∂ℓ/∂c = Ā·∂ℓ/∂w."""
        products = self.anchors.project(gradient, self.blocks)
        return self.scales * products if self.blocks is None else (self.scales[:, None] * products).flatten()

    def table(self, coefficients: Tensor) -> Tensor:
        """The coefficients (m, B), with one row per anchor; without blocks, B is 1."""
        return coefficients.view(len(self.scales), self._width)

    def in_every_block(self, coefficients: Tensor) -> Tensor:
        """One coefficient per anchor (m,), repeated for each block (m·B,)."""
        return coefficients.repeat_interleave(self._width)

    @property
    def _width(self) -> int:
        """The number of coefficients per anchor (B)."""
        return 1 if self.blocks is None else len(self.blocks)

    def lengths(self) -> Tensor:
        """The norm of each normalised anchor, ‖ā_m‖ (m,)."""
        zeros = torch.zeros_like(self.origin.vector)
        rows = torch.diag(self.scales)
        return torch.stack([torch.linalg.vector_norm(self.anchors.combine(zeros, row)) for row in rows])

    def widened(self, origin: Weights, row: Tensor) -> "SearchSpace":
        """The space with another origin and with one more row (d,), which is not scaled."""
        anchors = JoinedRows(self.anchors, FloatRows(row[None]))
        return SearchSpace(origin, anchors, torch.cat([self.scales, self.scales.new_ones(1)]), self.blocks)
