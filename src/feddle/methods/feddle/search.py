"""The searches for merging coefficients: each is its own options, and can be called."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Discriminator, Field
from torch import Tensor

from feddle.core.adam import SmallAdam
from feddle.core.batches import mini_batches
from feddle.core.search import Found, Objective, SearchSpace, checked, full_pass, smoothness
from feddle.core.seeds import torch_generator
from feddle.methods.strategy import BatchSize, ServerEpochs
from feddle.options import Count, Options, Positive, choice


class PaperSearch(Options):
    """Adam over mini-batches of the server's data."""

    name: Literal["paper"] = "paper"
    lr: Positive = Field(1e-3, description="learning rate of the coefficients")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(
        self, space: SearchSpace, objective: Objective, start: Tensor, *, regularisation: float, seed: int
    ) -> Found:
        """Our reading of the paper: a fresh Adam each round."""
        return adam_search(
            space,
            objective,
            start,
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            regularisation=regularisation,
            seed=seed,
        )


class AnnealedSearch(Options):
    """Adam over mini-batches; the learning rate falls to zero over the search."""

    name: Literal["annealed"] = "annealed"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients at the start")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(
        self, space: SearchSpace, objective: Objective, start: Tensor, *, regularisation: float, seed: int
    ) -> Found:
        """Large steps first, little noise at the end."""
        return adam_search(
            space,
            objective,
            start,
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            regularisation=regularisation,
            seed=seed,
            anneal=True,
        )


class SgdSearch(Options):
    """SGD with the step sizes of the paper's theory; L is estimated from differences of gradients."""

    name: Literal["sgd"] = "sgd"
    step: Literal["lemma-1", "theorem-2"] | None = Field(
        None,
        description="`lemma-1` is 1/(L Σ‖ā‖²), `theorem-2` is min(1/(2LT‖Δ‖²), 1/(2LT‖Δ‖)) for T steps; by default "
        "the first with in-domain data, the second with out-of-domain data",
    )
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32

    def __call__(
        self, space: SearchSpace, objective: Objective, start: Tensor, *, regularisation: float, seed: int
    ) -> Found:
        """Search for `epochs` passes over the server's data; L is estimated at the start, along the slope."""
        coefficients = start.clone()
        generator = torch_generator(seed)
        steps = self.epochs * math.ceil(len(objective) / self.batch_size)
        rate = self._rate(space, smoothness(space, objective, start), steps)
        total = 0.0
        for _ in range(self.epochs):
            total = 0.0
            for examples in mini_batches(len(objective), self.batch_size, generator):
                loss, gradient = objective.loss_and_gradient(space.point(coefficients), examples)
                slope = space.project(gradient) + regularisation * (coefficients - start)
                coefficients = coefficients - rate * slope
                total += len(examples) * loss
        return checked(coefficients, total / len(objective), "use method.search: paper")

    def _rate(self, space: SearchSpace, smooth: float, steps: int) -> float:
        squared = float(space.lengths().square().sum())  # ‖Δ‖² = Σ‖ā‖²
        if self.step == "theorem-2":
            return min(1 / (2 * smooth * steps * squared), 1 / (2 * smooth * steps * math.sqrt(squared)))
        return 1 / (smooth * squared)


class LbfgsSearch(Options):
    """L-BFGS with a line search over all of the server's data at once."""

    name: Literal["lbfgs"] = "lbfgs"
    iterations: Count = Field(5, description="steps per round, about one pass over the server's data each")

    def __call__(
        self,
        space: SearchSpace,
        objective: Objective,
        start: Tensor,
        *,
        regularisation: float,
        seed: int,  # noqa: ARG002
    ) -> Found:
        """The space is small and the loss smooth in it, so that few steps are enough."""
        coefficients = start.clone()
        tried: list[tuple[Tensor, float]] = []
        optimizer = torch.optim.LBFGS(
            [coefficients],
            max_iter=self.iterations,
            max_eval=self.iterations * 5 // 4 + 1,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            loss, gradient = full_pass(objective, space.point(coefficients))
            away = coefficients - start
            coefficients.grad = space.project(gradient) + regularisation * away
            tried.append((coefficients.clone(), loss))
            return loss + regularisation / 2 * float(away @ away)

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        loss = next((loss for at, loss in reversed(tried) if torch.equal(at, coefficients)), math.nan)
        return checked(coefficients, loss, "lower method.fallback.lr or training.lr")


AnySearch = PaperSearch | AnnealedSearch | LbfgsSearch | SgdSearch
SearchOptions = Annotated[AnySearch, Discriminator("name"), choice("paper")]


def adam_search(
    space: SearchSpace,
    objective: Objective,
    start: Tensor,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    seed: int,
    regularisation: float = 0.0,
    anneal: bool = False,
    constraint: Callable[[Tensor], Tensor] | None = None,
    remedy: str | None = None,
) -> Found:
    """Adam over mini-batches, minimising loss + λ/2·‖c − c′‖²; `constraint` projects c after each step."""
    coefficients = start.clone()
    adam = SmallAdam(coefficients)
    generator = torch_generator(seed)
    steps, step, total = epochs * math.ceil(len(objective) / batch_size), 0, 0.0
    for _ in range(epochs):
        total = 0.0
        for examples in mini_batches(len(objective), batch_size, generator):
            rate = lr * (1 - step / steps) if anneal else lr
            loss, gradient = objective.loss_and_gradient(space.point(coefficients), examples)
            slope = space.project(gradient) + regularisation * (coefficients - start)
            adam.step(coefficients, slope, rate)
            if constraint is not None:
                coefficients.copy_(constraint(coefficients))
            total, step = total + len(examples) * loss, step + 1
    return checked(coefficients, total / len(objective), remedy or f"lower method.search.lr (now {lr:g})")
