"""The search for merging coefficients: its task, and the algorithms with their options.

Each options class can be called to perform its search.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Discriminator, Field
from torch import Tensor
from torch.nn import functional as F

from feddle.core.atlas import SearchSpace
from feddle.core.batches import mini_batches
from feddle.core.errors import DivergedError
from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.seeds import torch_generator
from feddle.options import BatchSize, Count, Options, Positive, ServerEpochs, choice

# The remedy if the search cannot start
START_REMEDY = "lower training.lr, or the learning rate of method.fallback or method.server_anchor"
PASS_BATCH = 250  # examples per batch in a pass over all of them; limits the memory
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
Step = Callable[[Tensor, Tensor, float], None]  # moves c in place: c, its slope, and the share of the search done


class Objective(Protocol):
    """A loss on the server's data, with its gradient, at a flat point.

    An optional attribute `state` is kept from one search to the next and saved in checkpoints (`core/state.py`).
    """

    def begin(self, start: Weights, seed: int, among: Tensor | None = None, arrivals: Sequence[Arrival] = ()) -> None:
        """Prepare a search from `start`: choose the examples, and fit what the loss needs.

        If given, `among` has the indices of the examples that may be chosen. `arrivals` are those of the new anchors,
        in order of arrival.
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


class PaperSearch(Options):
    """Adam over mini-batches of the server's data."""

    name: Literal["paper"] = "paper"
    lr: Positive = Field(1e-3, description="learning rate of the coefficients")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(self, task: SearchTask) -> Found:
        """Start a new Adam for each search. The paper does not name the optimiser; Adam is our reading."""
        return adam_search(task, self.lr, self.epochs, self.batch_size)

    def effort(self, examples: float) -> tuple[float, float]:
        """The number of passes over the server's data, and of steps."""
        return self.epochs, self.epochs * math.ceil(examples / self.batch_size)


class AnnealedSearch(Options):
    """Adam over mini-batches; the learning rate falls to zero over the search."""

    name: Literal["annealed"] = "annealed"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients at the start")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(self, task: SearchTask) -> Found:
        """Take large steps first. The last steps are small, so they add little noise."""
        return adam_search(task, self.lr, self.epochs, self.batch_size, anneal=True)

    def effort(self, examples: float) -> tuple[float, float]:
        """The number of passes over the server's data, and of steps."""
        return self.epochs, self.epochs * math.ceil(examples / self.batch_size)


class SgdSearch(Options):
    """SGD with the step sizes of the paper's theory; L is estimated from differences of gradients."""

    name: Literal["sgd"] = "sgd"
    step: Literal["lemma-1", "theorem-2"] | None = Field(
        None,
        description="`lemma-1` is 1/(L Σ‖ā‖²), `theorem-2` is min(1/(2LT‖Δ‖²), 1/(2LT‖Δ‖)) for T steps; by default "
        "`lemma-1` with in-domain data and `theorem-2` with out-of-domain data",
    )
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(self, task: SearchTask) -> Found:
        """Estimate L at the start, along the slope, and keep the step size for the whole search."""
        steps = self.epochs * math.ceil(len(task.objective) / self.batch_size)
        rate = self._rate(task, smoothness(task.space, task.objective, task.start), steps)

        def step(coefficients: Tensor, slope: Tensor, progress: float) -> None:  # noqa: ARG001
            coefficients -= rate * slope

        return mini_batch_search(task, step, self.epochs, self.batch_size, "use method.search: paper")

    def effort(self, examples: float) -> tuple[float, float]:
        """The number of passes over the server's data, two of them for L, and of steps."""
        return self.epochs + 2, self.epochs * math.ceil(examples / self.batch_size) + 2

    def _rate(self, task: SearchTask, smooth: float, steps: int) -> float:
        squared = float(task.space.lengths().square().sum())  # ‖Δ‖² = Σ‖ā‖²
        if not squared:  # no anchor has a direction, so no step moves the model
            return 0.0
        if self.step == "theorem-2":
            return min(1 / (2 * smooth * steps * squared), 1 / (2 * smooth * steps * math.sqrt(squared)))
        return 1 / (smooth * squared)


class LbfgsSearch(Options):
    """L-BFGS with a line search over all of the server's data at once."""

    name: Literal["lbfgs"] = "lbfgs"
    iterations: Count = Field(5, description="steps per round; each takes about one pass over the server's data")

    def __call__(self, task: SearchTask) -> Found:
        """Few steps are enough: there are few coefficients, and the loss is smooth in them."""
        coefficients = task.start.clone()
        tried: list[tuple[Tensor, float]] = []
        limit = self.iterations * 5 // 4 + 1
        optimizer = torch.optim.LBFGS(
            [coefficients], max_iter=self.iterations, max_eval=limit, line_search_fn="strong_wolfe"
        )

        def closure() -> float:
            loss, gradient = full_pass(task.objective, task.space.point(coefficients))
            away = coefficients - task.start
            coefficients.grad = task.slope(coefficients, gradient)
            tried.append((coefficients.clone(), loss))
            return loss + task.regularisation / 2 * float(away @ away)

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        loss = next((loss for at, loss in reversed(tried) if torch.equal(at, coefficients)), math.nan)
        return checked(coefficients, loss, "lower method.fallback.lr or training.lr")

    def effort(self, examples: float) -> tuple[float, float]:  # noqa: ARG002
        """The number of passes over the server's data, and of steps; the line search takes a few more than planned."""
        return 1.2 * self.iterations, 1.2 * self.iterations


AnySearch = PaperSearch | AnnealedSearch | LbfgsSearch | SgdSearch
SearchOptions = Annotated[
    AnySearch, Discriminator("name"), choice("paper"), Field(description="how the coefficients are searched")
]


class SmallAdam:
    """Adam (Kingma & Ba) on one vector, with the same order of operations as `torch.optim.Adam`."""

    def __init__(self, like: Tensor) -> None:
        self._mean = torch.zeros_like(like)
        self._square = torch.zeros_like(like)
        self._steps = 0

    def step(self, at: Tensor, gradient: Tensor, lr: float) -> None:
        """Take a step from `at`, in place."""
        self._steps += 1
        self._mean.lerp_(gradient, 1 - _BETA1)
        self._square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        size = lr / (1 - _BETA1**self._steps)
        spread = (self._square.sqrt() / (1 - _BETA2**self._steps) ** 0.5).add_(_EPSILON)
        at.addcdiv_(self._mean, spread, value=-size)


def adam_search(
    task: SearchTask,
    lr: float,
    epochs: int,
    batch_size: int,
    *,
    anneal: bool = False,
    constraint: Callable[[Tensor], Tensor] | None = None,
    remedy: str = "lower method.search.lr",
) -> Found:
    """Search with Adam; `anneal` lets the learning rate fall to zero, and `constraint` projects c after each step."""
    adam = SmallAdam(task.start)

    def step(coefficients: Tensor, slope: Tensor, progress: float) -> None:
        adam.step(coefficients, slope, lr * (1 - progress) if anneal else lr)
        if constraint is not None:
            coefficients.copy_(constraint(coefficients))

    return mini_batch_search(task, step, epochs, batch_size, f"{remedy} (now {lr:g})")


def mini_batch_search(task: SearchTask, step: Step, epochs: int, batch_size: int, remedy: str) -> Found:
    """Search over mini-batches of the server's data, with one `step` per batch."""
    coefficients, generator, count = task.start.clone(), torch_generator(task.seed), len(task.objective)
    steps, done, total = epochs * math.ceil(count / batch_size), 0, 0.0
    for _ in range(epochs):
        total = 0.0
        for examples in mini_batches(count, batch_size, generator):
            loss, gradient = task.objective.loss_and_gradient(task.space.point(coefficients), examples)
            if not (done or math.isfinite(loss)):
                raise DivergedError(f"the loss at the start of the search is {loss}; {START_REMEDY}")
            step(coefficients, task.slope(coefficients, gradient), done / steps)
            total, done = total + len(examples) * loss, done + 1
    return checked(coefficients, total / count, remedy)
