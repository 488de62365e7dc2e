"""The search for merging coefficients over the server's data."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.seeds import torch_generator


class Objective(Protocol):
    """A loss on the server's data, with its gradient, at a flat point."""

    def __len__(self) -> int:
        """How many examples the server has."""

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss over the examples with these indices, and its gradient (d,)."""


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The affine space w + c·Ā, with Ā = scales ∘ anchors never formed.

    `anchors` (m, d), `scales` (m,). A point is computed outside of autograd (eq. poop) and a gradient is projected
    on the anchors afterwards (eq. mmnn): one matrix-vector product each way.
    """

    origin: Weights
    anchors: Tensor
    scales: Tensor

    def point(self, coefficients: Tensor) -> Weights:
        """w + c·Ā; the running statistics do not move with c."""
        vector = torch.addmv(self.origin.vector, self.anchors.T, coefficients * self.scales)
        return Weights(vector, self.origin.buffers)

    def project(self, gradient: Tensor) -> Tensor:
        """∂ℓ/∂c = Ā·∂ℓ/∂w."""
        return self.scales * (self.anchors @ gradient)


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found: ĉ (m,), and the mean loss over its last pass."""

    coefficients: Tensor
    loss: float


class Search(Protocol):
    """A way to search: from the fallback `start` c′ to ĉ, minimising loss + λ/2·‖c − c′‖²."""

    def __call__(
        self, space: SearchSpace, objective: Objective, start: Tensor, *, regularisation: float, seed: int
    ) -> Found:
        """Search; `seed` orders the mini-batches."""


@dataclass(frozen=True)
class PaperSearch:
    """Adam over mini-batches of the server's data, fresh each round: our reading of the paper."""

    lr: float
    epochs: int
    batch_size: int

    def __call__(
        self, space: SearchSpace, objective: Objective, start: Tensor, *, regularisation: float, seed: int
    ) -> Found:
        """Search for `epochs` passes over the server's data."""
        coefficients = start.clone()
        optimizer = torch.optim.Adam([coefficients], lr=self.lr)
        generator = torch_generator(seed)
        mean = float("nan")
        for _ in range(self.epochs):
            total = 0.0
            for examples in mini_batches(len(objective), self.batch_size, generator):
                loss, gradient = objective.loss_and_gradient(space.point(coefficients), examples)
                coefficients.grad = space.project(gradient) + regularisation * (coefficients - start)
                optimizer.step()
                total += loss * len(examples)
            mean = total / len(objective)
        if not (math.isfinite(mean) and bool(coefficients.isfinite().all())):
            raise FeddleError(
                f"the coefficient search diverged (loss {mean}); lower method.search.lr (now {self.lr:g})"
            )
        return Found(coefficients, mean)


def mini_batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """A random permutation of `count` examples, in batches; the last one may be smaller."""
    order = torch.randperm(count, generator=generator)
    for first in range(0, count, batch_size):
        yield order[first : first + batch_size]
