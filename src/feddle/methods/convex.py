"""Merging within the convex hull of the reported models."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.rows import FloatRows
from feddle.core.search import Objective, SearchSpace, rounded
from feddle.core.seeds import seed_for
from feddle.methods.feddle.search import adam_search
from feddle.methods.strategy import BatchSize, MethodOptions, ServerEpochs, average_buffers
from feddle.options import Positive
from feddle.training.objectives import TaskObjective
from feddle.training.parts import Parts


class ConvexOptions(MethodOptions):
    """Search the convex hull of the current and the reported models on the server's data."""

    name: Literal["convex"] = "convex"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def build(self, parts: Parts) -> "ConvexMerging":
        """The method."""
        bench = parts.bench
        objective = TaskObjective(bench.model, bench.layout, parts.server_data(), bench.loss)
        return ConvexMerging(objective, self.lr, self.epochs, self.batch_size, seed=parts.seed)


class ConvexMerging:
    """Search the server's data for the best point of the convex hull of the current and the reported models.

    w ← w + Σ c_j (w_j − w) with w_j = start_j + Δ_j, c ≥ 0 and Σ c ≤ 1: the current model is the vertex with the
    remaining weight. Nothing is normalised or kept from round to round. The search starts in the middle of the hull.
    """

    def __init__(self, objective: Objective, lr: float, epochs: int, batch_size: int, *, seed: int) -> None:
        self.objective = objective
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.seed = seed

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """See `Strategy`."""
        if not arrivals:
            return Merged(model)
        reported = torch.stack([a.start.vector + a.update.delta for a in arrivals])
        ones = torch.ones(len(arrivals), device=model.vector.device)
        origin = Weights(model.vector, average_buffers(model, arrivals))
        space = SearchSpace(origin, FloatRows(reported - model.vector), ones)
        seed = seed_for(self.seed, "convex", round)
        middle = ones / (len(arrivals) + 1)
        self.objective.begin(space.point(middle), seed)
        found = adam_search(
            space,
            self.objective,
            middle,
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=seed,
            constraint=into_simplex,
            remedy=f"lower method.lr (now {self.lr:g})",
        )
        notes = {"coefficients": rounded(found.coefficients), "negative_share": 0.0}
        return Merged(space.point(found.coefficients), notes)


def into_simplex(coefficients: Tensor) -> Tensor:
    """The nearest point with c ≥ 0 and Σ c ≤ 1 (Euclidean): clipping if that is enough, else onto the face Σ c = 1."""
    clipped = coefficients.clamp(min=0)
    if not float(clipped.sum()) > 1:  # also NaN, which the search then refuses
        return clipped
    ordered = coefficients.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    counts = torch.arange(1, len(ordered) + 1, device=ordered.device)
    inside = (ordered > excess / counts).nonzero()
    last = int(inside.max()) if len(inside) else 0
    return (coefficients - excess[last] / counts[last]).clamp(min=0)
