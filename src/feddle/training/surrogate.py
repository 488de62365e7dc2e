"""Guiding the merge with data of another task than the clients'.

A new linear head θ predicts the server's own labels from the representations of the clients' model. θ is fitted at
the point where a search starts, and stays fixed while the search moves the body of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.batches import in_order
from feddle.core.errors import DivergedError, FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Arrival
from feddle.core.seeds import seed_for, torch_generator
from feddle.data.examples import Examples, Inputs, Relabelled, draw
from feddle.options import Count, NonNegative, Options, Positive
from feddle.training.metrics import may_be_of_classes
from feddle.training.parts import Parts
from feddle.training.search import PASS_BATCH, START_REMEDY, Objective
from feddle.training.train import loss_and_gradient, outputs_of


class HeadOptions(Options):
    """How the surrogate head θ is fitted at the start of each search."""

    head_steps: Count = Field(200, description="largest number of L-BFGS steps that fit the surrogate head")
    head_tolerance: Positive = Field(1e-4, description="the fit ends when no gradient of the head is larger than this")
    head_decay: NonNegative = Field(1e-4, description="weight decay of the surrogate head (ours, not the paper's)")

    def objective(self, parts: Parts, cluster_steps: int = 0) -> Objective:
        """The objective with these options; see `SurrogateObjective`."""
        bench, examples, limit = parts.bench, parts.server_data(labelled=False), parts.samples_per_round
        name = "method.objective=" + ("clusters" if cluster_steps else "surrogate")
        if bench.layout.head_name is not None and parts.classes < 2:
            raise FeddleError(f"{name} needs a model with two or more outputs, but this one has one; use `task`")
        if not cluster_steps:
            _, label = examples.take(torch.zeros(1, dtype=torch.long))
            if label.is_floating_point() and (label.ndim < 2 or not may_be_of_classes(bench.loss)):
                raise FeddleError(
                    f"{name} needs the classes of the server's data as labels, but found numbers; use `task`"
                )
        return SurrogateObjective(bench.model, bench.layout, examples, parts.classes, limit, self, cluster_steps)


class SurrogateOptions(HeadOptions):
    """Predict the labels of the server's data through a new linear head: the paper's objective for other domains."""

    name: Literal["surrogate"] = "surrogate"

    def build(self, parts: Parts) -> Objective:
        """On data with labels of any task."""
        return self.objective(parts)


class ClustersOptions(HeadOptions):
    """Predict clusters of the model's own representations through a new linear head; needs no labels."""

    name: Literal["clusters"] = "clusters"
    steps: Count = Field(10, description="steps of k-means before each search")

    def build(self, parts: Parts) -> Objective:
        """On any data."""
        return self.objective(parts, self.steps)


@dataclass(eq=False)
class SurrogateState:
    """Kept between searches: θ (classes, features + 1), whose last column is the bias, and the clusters' centres.

    The centres (classes, features) are kept so that a cluster keeps its meaning.
    """

    theta: Tensor | None = None
    centres: Tensor | None = None


@dataclass(eq=False)
class SurrogateObjective:
    """The loss of a new linear head θ on the representations of the clients' model.

    θ predicts the labels of the server's data: the paper's surrogate. With `cluster_steps` of k-means, it predicts the
    cluster of an example's representation instead, which needs no labels. The gradient is zero on the clients' own
    head, which still moves with the coefficients. Each search starts from the θ of the search before. The loss is
    convex in θ; the fit ends when its largest gradient is at most `head_tolerance`.
    """

    model: nn.Module
    layout: Layout
    examples: Examples
    classes: int
    samples_per_round: int | None = None
    options: HeadOptions = field(default_factory=HeadOptions)
    cluster_steps: int = 0

    def __post_init__(self) -> None:
        if self.layout.head_name is None:
            raise FeddleError(
                "out-of-domain guidance needs a trainable linear layer inside the model as its head, but found none; "
                "add one, or use in-domain data"
            )
        if not self.layout.head_start:
            raise FeddleError(
                "a surrogate head guides the layers before the model's head, but none of them is trainable; "
                "train one, or use method.objective=task with in-domain data"
            )
        self._head = self.model.get_submodule(self.layout.head_name)
        self._current = self.examples
        self.state = SurrogateState()

    def __len__(self) -> int:
        return len(self._current)

    def begin(
        self,
        start: Weights,
        seed: int,
        among: Tensor | None = None,
        arrivals: Sequence[Arrival] = (),  # noqa: ARG002
    ) -> None:
        """Choose the examples of a search, and fit θ to their representations at `start`."""
        self.layout.write(self.model, start)
        self.model.eval()
        self._current = draw(self.examples, self.samples_per_round, seed_for(seed, "examples"), among)
        features, labels = representations(self.model, self._head, self._current)
        if not features.isfinite().all():
            raise DivergedError(f"the model's representations of the server's data are not finite; {START_REMEDY}")
        if self.cluster_steps:
            first, steps = seed_for(seed, "targets"), self.cluster_steps
            labels, self.state.centres = cluster(features, self.state.centres, self.classes, steps, first)
            self._current = Relabelled(self._current, labels)
        self._fit(_with_bias(features), labels)

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss on these examples, and its gradient (d,)."""
        theta = self.state.theta
        assert theta is not None, "begin comes first"
        inputs, labels = self._current.take(examples)
        labels = labels.to(point.vector.device)

        def loss() -> Tensor:
            return F.cross_entropy(_with_bias(represent(self.model, self._head, inputs)) @ theta.T, labels)

        return loss_and_gradient(self.model, self.layout, point, loss)

    def _fit(self, features: Tensor, labels: Tensor) -> None:
        before, decay = self.state.theta, self.options.head_decay
        if before is None:
            before = torch.zeros(self.classes, features.shape[1], device=features.device)
        theta = before.clone().requires_grad_()
        steps, small = self.options.head_steps, self.options.head_tolerance
        optimizer = torch.optim.LBFGS(
            [theta], max_iter=steps, tolerance_grad=small, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(features @ theta.T, labels) + decay / 2 * theta.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        self.state.theta = theta.detach()


@torch.no_grad()
def representations(model: nn.Module, head: nn.Module, examples: Examples) -> tuple[Tensor, Tensor]:
    """The inputs of the model's head (n, features) for all examples, and their targets."""
    device = next(model.parameters()).device
    features, targets = [], []
    for index in in_order(len(examples), PASS_BATCH):
        inputs, found = examples.take(index)
        features.append(represent(model, head, inputs))
        targets.append(found)
    return torch.cat(features), torch.cat(targets).to(device)


class HeadNotCalledError(FeddleError):
    """The last linear layer of a model is not part of its forward pass."""


def represent(model: nn.Module, head: nn.Module, inputs: Inputs) -> Tensor:
    """The inputs of the head (n, features) for one batch."""
    seen: list[Tensor] = []

    def see(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        seen.extend([*args, *named.values()][:1])

    hook = head.register_forward_pre_hook(see, with_kwargs=True)
    try:
        outputs_of(model, inputs)
    finally:
        hook.remove()
    if not seen:
        raise HeadNotCalledError(
            f"the last linear layer of the model, {head}, is not called in its forward pass, so it cannot be the head; "
            "call it as a module, or remove it"
        )
    return seen[-1].flatten(1)


def cluster(features: Tensor, centres: Tensor | None, classes: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """The nearest centre of each representation (n,) and the centres (classes, features), after steps of k-means."""
    points = F.normalize(features)
    if centres is None:
        first = torch.randperm(len(points), generator=torch_generator(seed))[:classes]
        centres = points[first].clone()
    for _ in range(steps):
        nearest = (points @ centres.T).argmax(1)
        members = F.one_hot(nearest, len(centres)).to(points.dtype)
        sums = members.T @ points
        centres = torch.where(members.sum(0)[:, None] > 0, F.normalize(sums), centres)
    return (points @ centres.T).argmax(1), centres


def _with_bias(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)
