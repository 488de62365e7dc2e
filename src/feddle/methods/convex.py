"""Merging within the convex hull of the reported models."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.rows import FloatRows
from feddle.core.search import Objective, Search, SearchSpace
from feddle.core.seeds import seed_for
from feddle.methods.strategy import average_buffers


class ConvexMerging:
    """Search the server's data for the best point of the convex hull of the current and the reported models.

    w ← w + Σ c_j (w_j − w) with w_j = start_j + Δ_j, c ≥ 0 and Σ c ≤ 1: the current model is the vertex that takes
    what is left. Nothing is normalised or kept from round to round. `search` must be constrained by `into_simplex`; it
    starts in the middle of the hull.
    """

    max_staleness: int | None = None

    def __init__(self, objective: Objective, search: Search, *, seed: int) -> None:
        self.objective = objective
        self.search = search
        self.seed = seed
        self.notes: Mapping[str, Any] = {}
        self._merges = 0

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        self._merges += 1
        self.notes = {}
        if not arrivals:
            return model
        reported = torch.stack([a.start.vector + a.update.delta for a in arrivals])
        ones = torch.ones(len(arrivals), device=model.vector.device)
        origin = Weights(model.vector, average_buffers(model, arrivals))
        space = SearchSpace(origin, FloatRows(reported - model.vector), ones)
        seed = seed_for(self.seed, "convex", self._merges)
        middle = ones / (len(arrivals) + 1)
        self.objective.begin(space.point(middle), seed)
        found = self.search(space, self.objective, middle, regularisation=0.0, seed=seed)
        self.notes = {"coefficients": [round(c, 6) for c in found.coefficients.tolist()], "negative_share": 0.0}
        return space.point(found.coefficients)

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {"merges": torch.tensor(self._merges)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self._merges = int(state["merges"])


def into_simplex(coefficients: Tensor) -> Tensor:
    """The nearest point with c ≥ 0 and Σ c ≤ 1 (Euclidean): clipping if that is enough, else onto the face Σ c = 1."""
    clipped = coefficients.clamp(min=0)
    if not float(clipped.sum()) > 1:  # also what is not a number, which the search then refuses
        return clipped
    ordered = coefficients.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    counts = torch.arange(1, len(ordered) + 1, device=ordered.device)
    inside = (ordered > excess / counts).nonzero()
    last = int(inside.max()) if len(inside) else 0
    return (coefficients - excess[last] / counts[last]).clamp(min=0)
