"""The model atlas: a bounded set of anchors, which spans the search space."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Job
from feddle.core.rows import Anchors, FloatRows, Rows
from feddle.core.state import prefixed, save

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
        return norms.quantile(0.5) / norms  # for an even number, the mean of the two middle ones

    def origins(self) -> list[Job]:
        """The job of each active anchor."""
        return [Job(*row) for row in self._origins[: self._size].tolist()]

    def score(self, coefficients: Tensor) -> None:
        """Store |ĉ| of a search as the anchors' scores."""
        self._scores[: self._size] = coefficients.abs()

    def _victim(self) -> int:
        oldest = int(self._ages.argmin())
        if self.eviction == "fifo" or bool(self._scores.isnan().all()):
            return oldest
        return int(self._scores.nan_to_num(nan=torch.inf).argmin())

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; only rows in use."""
        rows = slice(0, self._size)
        kept = {name: tensor[rows] for name, tensor in self._columns().items()}
        return {**{name: tensor.clone() for name, tensor in kept.items()}, "inserted": torch.tensor(self._inserted)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._size, self._inserted = len(state["norms"]), int(state["inserted"])
        for name, tensor in self._columns().items():
            tensor[: self._size] = state[name]

    def _columns(self) -> dict[str, Tensor]:
        """Every tensor with one entry per anchor."""
        own = {"norms": self._norms, "scores": self._scores, "ages": self._ages, "origins": self._origins}
        return {**prefixed("rows", save(self._rows)), **own}


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """All models w + c·Ā, where Ā is the anchors times their scales. Ā is never built in memory.

    `scales` (m,) has one number per row. A point is computed outside autograd, and a gradient is projected
    on the anchors afterwards: one matrix-vector product each.
    """

    origin: Weights
    anchors: Anchors
    scales: Tensor

    def point(self, coefficients: Tensor) -> Weights:
        """w + c·Ā; the running statistics do not depend on c."""
        return Weights(self.anchors.combine(self.origin.vector, coefficients * self.scales), self.origin.buffers)

    def lengths(self) -> Tensor:
        """The norm of each normalised anchor, ‖ā_m‖ (m,)."""
        zeros = torch.zeros_like(self.origin.vector)
        rows = torch.diag(self.scales)
        return torch.stack([torch.linalg.vector_norm(self.anchors.combine(zeros, row)) for row in rows])

    def project(self, gradient: Tensor) -> Tensor:
        """∂ℓ/∂c = Ā·∂ℓ/∂w."""
        return self.scales * self.anchors.project(gradient)
