"""The search for merging coefficients: its space, its objective, its task and its result."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from feddle.core.atlas import SearchSpace
from feddle.core.errors import DivergedError
from feddle.core.layout import Weights
from feddle.core.messages import Arrival

PASS_BATCH = 250  # examples per batch in a pass over all of them; limits the memory


class Objective(Protocol):
    """A loss on the server's data, with its gradient, at a flat point.

    An optional attribute `state` is kept from one search to the next and saved in checkpoints (`core/state.py`).
    """

    def begin(self, start: Weights, seed: int, among: Tensor | None = None, arrivals: Sequence[Arrival] = ()) -> None:
        """Prepare a search from `start`: choose examples, only those with indices `among`; fit what the loss needs.

        `arrivals` are those of the new anchors, in order of arrival.
        """

    def __len__(self) -> int:
        """Number of examples in the current search."""

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss over the examples with these indices, and its gradient (d,)."""


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search: ĉ, the mean loss over its last pass, and notes for the history."""

    coefficients: Tensor
    loss: float
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SearchTask:
    """A search to perform: minimise loss + λ/2·‖c − c′‖² over the coefficients c, starting from the fallback's c′.

    `start` is c′, one number per anchor and block. `regularisation` is λ, and `seed` determines the order of the
    mini-batches.
    """

    space: SearchSpace
    objective: Objective
    start: Tensor
    regularisation: float = 0.0
    seed: int = 0

    def slope(self, coefficients: Tensor, gradient: Tensor) -> Tensor:
        """∂ℓ/∂c + λ(c − c′), from the gradient (d,) of the loss."""
        return self.space.project(gradient) + self.regularisation * (coefficients - self.start)


Search = Callable[[SearchTask], Found]
# Called after each search with the round, the task, the search and its result. The history records what it returns.
Observer = Callable[[int, SearchTask, Search, Found], Mapping[str, Any]]


def full_pass(
    objective: Objective, point: Weights, batch_size: int = PASS_BATCH, among: Tensor | None = None
) -> tuple[float, Tensor]:
    """The mean loss over all of the server's data and its gradient (d,), summed in a fixed order.

    With `among`, only the examples with these indices are used.
    """
    chosen = torch.arange(len(objective)) if among is None else among
    total, gradient = 0.0, torch.zeros_like(point.vector)
    for examples in torch.split(chosen, batch_size):
        loss, part = objective.loss_and_gradient(point, examples)
        share = len(examples) / len(chosen)
        total += share * loss
        gradient.add_(part, alpha=share)
    return total, gradient


def smoothness(space: SearchSpace, objective: Objective, at: Tensor, distance: float = 1e-2) -> float:
    """An estimate of L along the slope: ‖∇ℓ(w′) − ∇ℓ(w)‖/‖w′ − w‖ over all examples.

    The step to w′ has length `distance` in the coefficients.
    """
    here = space.point(at)
    gradient = full_pass(objective, here)[1]
    slope = space.project(gradient)
    direction = slope / torch.linalg.vector_norm(slope).clamp(min=1e-30)
    there = space.point(at - distance * direction)
    change = full_pass(objective, there)[1] - gradient
    moved = torch.linalg.vector_norm(there.vector - here.vector).clamp(min=1e-30)
    return max(float(torch.linalg.vector_norm(change) / moved), 1e-12)


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two vectors, from −1 to 1; 0 if one of them is zero."""
    return float(F.cosine_similarity(a, b, dim=0).clamp(-1, 1))  # rounding may exceed 1


def checked(coefficients: Tensor, loss: float, remedy: str) -> Found:
    """Return the result of a search, or raise an error that ends with `remedy` if the search diverged."""
    if not (math.isfinite(loss) and bool(coefficients.isfinite().all())):
        raise DivergedError(f"the coefficient search diverged (loss {loss}); {remedy}")
    return Found(coefficients, loss)


def rounded(coefficients: Tensor) -> list[float]:
    """Coefficients for the history."""
    return [round(c, 6) for c in coefficients.tolist()]
