"""The model atlas: a bounded set of anchors, which spans the search space."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddle.core.blocks import Blocks
from feddle.core.layout import Weights
from feddle.core.messages import Job
from feddle.core.rows import Anchors, FloatRows, JoinedRows, Rows
from feddle.core.state import prefixed

Eviction = Literal["importance", "fifo"]


class Atlas:
    """At most M anchors in preallocated `rows`, by default float32, with the score and origin of each row.

    A full atlas replaces the anchor with the smallest score (`importance`) or the oldest one (`fifo`). An anchor has no
    score until its first search and is not replaced before that. If every anchor is new, the oldest is replaced.
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
        kept = {name: tensor[: self._size].clone() for name, tensor in self._columns().items()}
        return {**kept, "inserted": torch.tensor(self._inserted)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._size, self._inserted = len(state["norms"]), int(state["inserted"])
        for name, tensor in self._columns().items():
            tensor[: self._size] = state[name]

    def _columns(self) -> dict[str, Tensor]:
        """Every tensor with one entry per anchor."""
        own = {"norms": self._norms, "scores": self._scores, "ages": self._ages, "origins": self._origins}
        return {**prefixed("rows", vars(self._rows)), **own}


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
