"""The searches for merging coefficients. Each options class can be called to perform its search."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Discriminator, Field
from torch import Tensor

from feddle.core.batches import mini_batches
from feddle.core.search import Found, SearchTask, checked, full_pass, smoothness
from feddle.core.seeds import torch_generator
from feddle.methods.strategy import BatchSize, ServerEpochs
from feddle.options import Count, Options, Positive, choice

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
Step = Callable[[Tensor, Tensor, float], None]  # moves c in place: c, its slope, and the share of the search done


class PaperSearch(Options):
    """Adam over mini-batches of the server's data."""

    name: Literal["paper"] = "paper"
    lr: Positive = Field(1e-3, description="learning rate of the coefficients")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(self, task: SearchTask) -> Found:
        """Start a new Adam for each search. The paper does not name the optimiser; Adam is our reading."""
        return adam_search(task, self.lr, self.epochs, self.batch_size)


class AnnealedSearch(Options):
    """Adam over mini-batches; the learning rate falls to zero over the search."""

    name: Literal["annealed"] = "annealed"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients at the start")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(self, task: SearchTask) -> Found:
        """Take large steps first. The last steps are small, so they add little noise."""
        return adam_search(task, self.lr, self.epochs, self.batch_size, anneal=True)


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
            step(coefficients, task.slope(coefficients, gradient), done / steps)
            total, done = total + len(examples) * loss, done + 1
    return checked(coefficients, total / count, remedy)
