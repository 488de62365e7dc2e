"""Merging within the convex hull of the reported models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.atlas import FloatRows, SearchSpace
from feddle.core.blocks import Blocks, Coefficients, make_blocks
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import MethodOptions, average_buffers
from feddle.options import BatchSize, Positive, ServerEpochs
from feddle.training.objectives import TaskObjective
from feddle.training.parts import Parts
from feddle.training.search import Objective, SearchTask, adam_search, rounded


class ConvexOptions(MethodOptions):
    """Search the convex hull of the current model and the clients' models on the server's data."""

    name: Literal["convex"] = "convex"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32
    coefficients: Coefficients = "shared"

    def build(self, parts: Parts) -> "ConvexMerging":
        """The method."""
        bench = parts.bench
        objective = TaskObjective(bench.model, bench.layout, parts.server_data(), bench.loss)
        blocks = make_blocks(self.coefficients, bench.layout)
        return ConvexMerging(self, objective, parts.seed, blocks)

    def cost(self, setting: Setting) -> Cost:
        """The reported models are stacked, and so are their differences to the model."""
        steps = self.epochs * math.ceil(setting.server / self.batch_size) * setting.active
        trained = self.epochs * setting.server * setting.active
        return Cost(trained=trained, products=setting.used * steps, working=3 * setting.most + 2)


@dataclass(eq=False)
class ConvexMerging:
    """Search the convex hull of the current and the reported models for the lowest loss on the server's data.

    w ← w + Σ c_j (w_j − w) with w_j = start_j + Δ_j, c ≥ 0 and Σ c ≤ 1 in each block. The current model has the
    remaining weight. Nothing is normalised, and nothing is kept from one round to the next. The search starts at equal
    weights.
    """

    options: ConvexOptions
    objective: Objective
    seed: int
    blocks: Blocks | None = None

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        if not arrivals:
            return Merged(model)
        reported = torch.stack([a.start.vector + a.update.delta for a in arrivals])
        ones = torch.ones(len(arrivals), device=model.vector.device)
        origin = Weights(model.vector, average_buffers(model, arrivals))
        space = SearchSpace(origin, FloatRows(reported - model.vector), ones, self.blocks)
        start = space.in_every_block(ones / (len(arrivals) + 1))
        task = SearchTask(space, self.objective, start, seed=seed_for(self.seed, "convex", round))
        self.objective.begin(space.point(start), task.seed)

        def into_hull(coefficients: Tensor) -> Tensor:
            return torch.stack([into_simplex(block) for block in space.table(coefficients).T], 1).flatten()

        o = self.options
        found = adam_search(task, o.lr, o.epochs, o.batch_size, constraint=into_hull, remedy="lower method.lr")
        notes = {"coefficients": rounded(space.table(found.coefficients).mean(1)), "negative_share": 0.0}
        return Merged(space.point(found.coefficients), notes)


def into_simplex(coefficients: Tensor) -> Tensor:
    """The nearest point (Euclidean) with c ≥ 0 and Σ c ≤ 1: clipped if that is enough, else projected on Σ c = 1."""
    clipped = coefficients.clamp(min=0)
    if not float(clipped.sum()) > 1:  # also for NaN, which the search reports afterwards
        return clipped
    ordered = coefficients.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    counts = torch.arange(1, len(ordered) + 1, device=ordered.device)
    inside = (ordered > excess / counts).nonzero()
    last = int(inside.max()) if len(inside) else 0
    return (coefficients - excess[last] / counts[last]).clamp(min=0)
