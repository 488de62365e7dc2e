"""Guiding the merge with data of another task than the clients'.

A fresh linear head θ predicts the server's own labels from the representations of the clients' model. θ is fitted at
the point where a search starts, and stays fixed while the search moves the body of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.batches import in_order
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.search import PASS_BATCH, Objective
from feddle.core.seeds import seed_for, torch_generator
from feddle.data.examples import Examples, Relabelled, draw
from feddle.options import Count, NonNegative, Options, Positive
from feddle.training.parts import Parts
from feddle.training.train import loss_and_gradient

Represent = Callable[[Examples], Tensor]


class Targets(Protocol):
    """What the surrogate head learns to predict; an optional `state` is kept from one search to the next."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    def __call__(self, examples: Examples, represent: Represent, seed: int) -> Examples:
        """The examples of a search, with targets from 0 to `classes` − 1."""


@dataclass(frozen=True)
class OwnLabels:
    """The labels of the server's data: the paper's surrogate."""

    classes: int

    def __call__(self, examples: Examples, represent: Represent, seed: int) -> Examples:  # noqa: ARG002
        """The examples as they are."""
        return examples


@dataclass(eq=False)
class ClustersState:
    """The centres (classes, features); kept between searches, so that a cluster keeps its meaning."""

    centres: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Clusters:
    """The cluster to which the representation of an example belongs (k-means): needs no labels."""

    classes: int
    steps: int = 10
    state: ClustersState = field(default_factory=ClustersState)

    def __call__(self, examples: Examples, represent: Represent, seed: int) -> Examples:
        """Each example with its nearest centre, after a few steps of k-means."""
        points, centres = F.normalize(represent(examples)), self.state.centres
        if centres is None:
            first = torch.randperm(len(points), generator=torch_generator(seed))[: self.classes]
            centres = points[first].clone()
        for _ in range(self.steps):
            nearest = (points @ centres.T).argmax(1)
            members = F.one_hot(nearest, len(centres)).to(points.dtype)
            sums = members.T @ points
            centres = torch.where(members.sum(0)[:, None] > 0, F.normalize(sums), centres)
        self.state.centres = centres
        return Relabelled(examples, (points @ centres.T).argmax(1))


class _HeadOptions(Options):
    """How the surrogate head θ is fitted at the start of each search."""

    head_steps: Count = Field(200, description="largest number of L-BFGS steps that fit the surrogate head")
    head_tolerance: Positive = Field(1e-4, description="the fit ends when no gradient of the head is larger than this")
    head_decay: NonNegative = Field(1e-4, description="weight decay of the surrogate head (ours, not the paper's)")

    def _objective(self, parts: Parts, targets: Targets) -> Objective:
        bench, examples, sample = parts.bench, parts.server_data(labelled=False), parts.samples_per_round
        return SurrogateObjective(
            bench.model,
            bench.layout,
            examples,
            targets,
            sample,
            self.head_steps,
            self.head_tolerance,
            self.head_decay,
        )


class SurrogateOptions(_HeadOptions):
    """The labels of the server's data, through a fresh linear head: the paper's objective for other domains."""

    name: Literal["surrogate"] = "surrogate"

    def build(self, parts: Parts) -> Objective:
        """On data with labels of any task."""
        return self._objective(parts, OwnLabels(parts.classes))


class ClustersOptions(_HeadOptions):
    """Clusters of the model's own representations, through a fresh linear head; needs no labels."""

    name: Literal["clusters"] = "clusters"
    steps: Count = Field(10, description="steps of k-means before each search")

    def build(self, parts: Parts) -> Objective:
        """On any data."""
        return self._objective(parts, Clusters(parts.classes, self.steps))


@dataclass(eq=False)
class SurrogateState:
    """Kept between searches: θ (classes, features + 1), whose last column is the bias, and the state of the targets."""

    theta: Tensor | None
    targets: Any


@dataclass(eq=False)
class SurrogateObjective:
    """The loss of a fresh linear head θ on the representations of the clients' model.

    Its gradient is zero on the clients' own head, which still moves with the coefficients. Each search starts from the
    θ of the search before. The loss is convex in θ; the fit ends when its largest gradient is at most `head_tolerance`.
    """

    model: nn.Module
    layout: Layout
    examples: Examples
    targets: Targets
    samples_per_round: int | None = None
    head_steps: int = 200
    head_tolerance: float = 1e-4
    head_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.layout.head_name is None:
            raise FeddleError(
                "out-of-domain guidance needs a trainable linear layer inside the model as its head, but found none; "
                "add one, or use in-domain data"
            )
        self._head = self.model.get_submodule(self.layout.head_name)
        self._current = self.examples
        self.state = SurrogateState(None, getattr(self.targets, "state", None))

    def __len__(self) -> int:
        return len(self._current)

    def begin(self, start: Weights, seed: int, among: Tensor | None = None) -> None:
        """Choose the examples of a search, and fit θ to their representations at `start`."""
        self.layout.write(self.model, start)
        self.model.eval()
        chosen = draw(self.examples, self.samples_per_round, seed_for(seed, "examples"), among)
        self._current = self.targets(chosen, self._all_representations, seed_for(seed, "targets"))
        features = self._all_representations(self._current)
        labels = torch.cat([self._current.take(index)[1] for index in in_order(len(self._current), PASS_BATCH)])
        self._fit(_with_bias(features), labels.to(features.device))

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss on these examples, and its gradient (d,)."""
        theta = self.state.theta
        assert theta is not None, "begin comes first"
        inputs, labels = (part.to(point.vector.device) for part in self._current.take(examples))

        def loss() -> Tensor:
            return F.cross_entropy(_with_bias(self._represent(inputs)) @ theta.T, labels)

        return loss_and_gradient(self.model, self.layout, point, loss)

    def _fit(self, features: Tensor, labels: Tensor) -> None:
        before = self.state.theta
        if before is None:
            before = torch.zeros(self.targets.classes, features.shape[1], device=features.device)
        theta = before.clone().requires_grad_()
        steps, small = self.head_steps, self.head_tolerance
        optimizer = torch.optim.LBFGS(
            [theta], max_iter=steps, tolerance_grad=small, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(features @ theta.T, labels) + self.head_decay / 2 * theta.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        self.state.theta = theta.detach()

    @torch.no_grad()
    def _all_representations(self, examples: Examples) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.cat(
            [self._represent(examples.take(index)[0].to(device)) for index in in_order(len(examples), PASS_BATCH)]
        )

    def _represent(self, inputs: Tensor) -> Tensor:
        """The inputs of the model's own head (n, features)."""
        seen: list[Tensor] = []
        hook = self._head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            self.model(inputs)
        finally:
            hook.remove()
        return seen[-1].flatten(1)


def _with_bias(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)
