"""The search for merging coefficients over the server's data."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from feddle.core.adam import SmallAdam
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.rows import Anchors
from feddle.core.seeds import torch_generator

_PASS = 250  # examples at once when a pass covers all of them: bounds the memory, not the sum


class Objective(Protocol):
    """A loss on the server's data, with its gradient, at a flat point."""

    def begin(self, start: Weights, seed: int) -> None:
        """A search from `start` follows: choose its examples, and fit whatever the loss needs."""

    def __len__(self) -> int:
        """How many examples the search has."""

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss over the examples with these indices, and its gradient (d,)."""

    def state_dict(self) -> dict[str, Tensor]:
        """What goes on from one search to the next."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The affine space w + c·Ā, with Ā = scales ∘ anchors never formed.

    `scales` (m,), one a row. A point is computed outside of autograd (eq. poop) and a gradient is projected
    on the anchors afterwards (eq. mmnn): one matrix-vector product each way.
    """

    origin: Weights
    anchors: Anchors
    scales: Tensor

    def point(self, coefficients: Tensor) -> Weights:
        """w + c·Ā; the running statistics do not move with c."""
        return Weights(self.anchors.combine(self.origin.vector, coefficients * self.scales), self.origin.buffers)

    def lengths(self) -> Tensor:
        """‖ā_m‖ (m,)."""
        zeros = torch.zeros_like(self.origin.vector)
        rows = torch.diag(self.scales)
        return torch.stack([torch.linalg.vector_norm(self.anchors.combine(zeros, row)) for row in rows])

    def project(self, gradient: Tensor) -> Tensor:
        """∂ℓ/∂c = Ā·∂ℓ/∂w."""
        return self.scales * self.anchors.project(gradient)


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
    """Adam over mini-batches of the server's data, fresh each round: our reading of the paper.

    With `anneal`, the learning rate falls to zero over the search: large steps first, little noise at the end.
    `constraint` brings the coefficients back to where they may be, after each step.
    """

    lr: float
    epochs: int
    batch_size: int
    anneal: bool = False
    constraint: Callable[[Tensor], Tensor] | None = None

    def __call__(
        self, space: SearchSpace, objective: Objective, start: Tensor, *, regularisation: float, seed: int
    ) -> Found:
        """Search for `epochs` passes over the server's data."""
        coefficients = start.clone()
        adam = SmallAdam(coefficients)
        generator = torch_generator(seed)
        steps = self.epochs * len(mini_batch_sizes(len(objective), self.batch_size))
        losses: list[float] = []
        for _ in range(self.epochs):
            for examples in mini_batches(len(objective), self.batch_size, generator):
                lr = self.lr * (1 - len(losses) / steps) if self.anneal else self.lr
                loss, gradient = objective.loss_and_gradient(space.point(coefficients), examples)
                slope = space.project(gradient) + regularisation * (coefficients - start)
                adam.step(coefficients, slope, lr)
                if self.constraint is not None:
                    coefficients.copy_(self.constraint(coefficients))
                losses.append(loss)
        sizes = mini_batch_sizes(len(objective), self.batch_size)
        mean = sum(n * loss for n, loss in zip(sizes, losses[-len(sizes) :], strict=True)) / len(objective)
        return _checked(coefficients, mean, f"lower method.search.lr (now {self.lr:g}; method.lr of convex)")


@dataclass(frozen=True)
class SgdSearch:
    """SGD over mini-batches with the step sizes that the paper's theory asks for.

    `step` is Lemma 1's 1/(L Σ‖ā‖²) or Theorem 2's min(1/(2LT‖Δ‖²), 1/(2LT‖Δ‖)) with T steps in the search and
    ‖Δ‖² = Σ‖ā‖². L is estimated at the start of each search, along the slope.
    """

    step: Literal["lemma-1", "theorem-2"]
    epochs: int
    batch_size: int

    def __call__(
        self, space: SearchSpace, objective: Objective, start: Tensor, *, regularisation: float, seed: int
    ) -> Found:
        """Search for `epochs` passes over the server's data."""
        coefficients = start.clone()
        generator = torch_generator(seed)
        sizes = mini_batch_sizes(len(objective), self.batch_size)
        rate = self._rate(space, smoothness(space, objective, start), self.epochs * len(sizes))
        total = 0.0
        for _ in range(self.epochs):
            total = 0.0
            for examples in mini_batches(len(objective), self.batch_size, generator):
                loss, gradient = objective.loss_and_gradient(space.point(coefficients), examples)
                slope = space.project(gradient) + regularisation * (coefficients - start)
                coefficients = coefficients - rate * slope
                total += len(examples) * loss
        return _checked(coefficients, total / len(objective), "use method.search: paper")

    def _rate(self, space: SearchSpace, smooth: float, steps: int) -> float:
        squared = float(space.lengths().square().sum())
        if self.step == "lemma-1":
            return 1 / (smooth * squared)
        return min(1 / (2 * smooth * steps * squared), 1 / (2 * smooth * steps * math.sqrt(squared)))


def smoothness(space: SearchSpace, objective: Objective, at: Tensor, distance: float = 1e-2) -> float:
    """An estimate of L: how fast the gradient over all examples turns along the slope, ‖∇ℓ(w′) − ∇ℓ(w)‖/‖w′ − w‖.

    The step to w′ is `distance` in terms of the coefficients.
    """
    here = space.point(at)
    gradient = full_pass(objective, here)[1]
    slope = space.project(gradient)
    direction = slope / torch.linalg.vector_norm(slope).clamp(min=1e-30)
    there = space.point(at - distance * direction)
    turned = full_pass(objective, there)[1] - gradient
    moved = torch.linalg.vector_norm(there.vector - here.vector).clamp(min=1e-30)
    return max(float(torch.linalg.vector_norm(turned) / moved), 1e-12)


@dataclass(frozen=True)
class LbfgsSearch:
    """L-BFGS with a line search over all of the server's data at once: the space is small and the loss smooth in it."""

    iterations: int
    batch_size: int = _PASS

    def __call__(
        self,
        space: SearchSpace,
        objective: Objective,
        start: Tensor,
        *,
        regularisation: float,
        seed: int,  # noqa: ARG002
    ) -> Found:
        """Search for `iterations` steps; each takes about one pass over the server's data."""
        coefficients = start.clone()
        tried: list[tuple[Tensor, float]] = []
        optimizer = torch.optim.LBFGS(
            [coefficients],
            max_iter=self.iterations,
            max_eval=self.iterations * 5 // 4 + 1,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            loss, gradient = full_pass(objective, space.point(coefficients), self.batch_size)
            away = coefficients - start
            coefficients.grad = space.project(gradient) + regularisation * away
            tried.append((coefficients.clone(), loss))
            return loss + regularisation / 2 * float(away @ away)

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        loss = next((loss for at, loss in reversed(tried) if torch.equal(at, coefficients)), math.nan)
        return _checked(coefficients, loss, "lower method.fallback.lr or training.lr")


def mini_batch_sizes(count: int, batch_size: int) -> list[int]:
    """The sizes of the batches of one pass."""
    return [min(batch_size, count - first) for first in range(0, count, batch_size)]


def full_pass(objective: Objective, point: Weights, batch_size: int = _PASS) -> tuple[float, Tensor]:
    """The mean loss over all of the server's data and its gradient (d,), summed in a fixed order."""
    total, gradient = 0.0, torch.zeros_like(point.vector)
    for examples in torch.split(torch.arange(len(objective)), batch_size):
        loss, part = objective.loss_and_gradient(point, examples)
        share = len(examples) / len(objective)
        total += share * loss
        gradient.add_(part, alpha=share)
    return total, gradient


def _checked(coefficients: Tensor, loss: float, remedy: str) -> Found:
    if not (math.isfinite(loss) and bool(coefficients.isfinite().all())):
        raise FeddleError(f"the coefficient search diverged (loss {loss}); {remedy}")
    return Found(coefficients, loss)


def mini_batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """A random permutation of `count` examples, in batches; the last one may be smaller."""
    order = torch.randperm(count, generator=generator)
    for first in range(0, count, batch_size):
        yield order[first : first + batch_size]
