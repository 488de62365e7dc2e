"""Guiding the merge with data that is not of the clients' task.

The body of the clients' model is judged by a fresh linear head θ for labels of the server's own. θ is fitted on the
representations of the point where a search starts, and then held fixed while the search moves the body.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.search import mini_batch_sizes
from feddle.core.seeds import seed_for, torch_generator
from feddle.data.examples import Examples, Relabelled, Rotated, draw

Represent = Callable[[Examples], Tensor]
_BATCH = 250


class Targets(Protocol):
    """What the surrogate head is to tell apart."""

    @property
    def classes(self) -> int:
        """How many there are."""

    def __call__(self, examples: Examples, represent: Represent, seed: int) -> Examples:
        """The examples of a search, with targets from 0 to `classes` − 1."""

    def state_dict(self) -> dict[str, Tensor]:
        """What goes on from one search to the next."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""


@dataclass(frozen=True)
class OwnLabels:
    """The labels that the server's data has: the paper's surrogate."""

    classes: int

    def __call__(self, examples: Examples, represent: Represent, seed: int) -> Examples:  # noqa: ARG002
        """See `Targets`."""
        return examples

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing goes on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Targets`."""


@dataclass(frozen=True)
class Rotations:
    """By how many quarter turns an image was rotated: needs no labels."""

    classes: int = 4

    def __call__(self, examples: Examples, represent: Represent, seed: int) -> Examples:  # noqa: ARG002
        """See `Targets`."""
        turns = torch.randint(self.classes, (len(examples),), generator=torch_generator(seed))
        return Rotated(examples, turns)

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing goes on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Targets`."""


class Clusters:
    """Which cluster of the representations an example is in (k-means): needs no labels.

    The centres go on from one search to the next, so that a cluster keeps its meaning.
    """

    def __init__(self, classes: int, steps: int = 10) -> None:
        self.classes = classes
        self.steps = steps
        self._centres: Tensor | None = None

    def __call__(self, examples: Examples, represent: Represent, seed: int) -> Examples:
        """See `Targets`."""
        points = F.normalize(represent(examples))
        if self._centres is None:
            first = torch.randperm(len(points), generator=torch_generator(seed))[: self.classes]
            self._centres = points[first].clone()
        for _ in range(self.steps):
            nearest = (points @ self._centres.T).argmax(1)
            members = F.one_hot(nearest, len(self._centres)).to(points.dtype)
            sums = members.T @ points
            self._centres = torch.where(members.sum(0)[:, None] > 0, F.normalize(sums), self._centres)
        return Relabelled(examples, (points @ self._centres.T).argmax(1))

    def state_dict(self) -> dict[str, Tensor]:
        """The centres."""
        return {} if self._centres is None else {"centres": self._centres.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Targets`."""
        self._centres = state.get("centres")


class SurrogateObjective:
    """The loss of a fresh linear head θ on the representations of the clients' model.

    Its gradient is zero on the clients' own head, which moves with the coefficients all the same. θ goes on from one
    search to the next, so a few steps of L-BFGS are enough: the loss is convex in it.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        examples: Examples,
        targets: Targets,
        *,
        samples_per_round: int | None = None,
        head_steps: int = 20,
        head_decay: float = 1e-4,
    ) -> None:
        if layout.head_name is None:
            raise FeddleError("out-of-domain guidance replaces the model's last linear layer, but the model has none")
        self.model = model
        self.layout = layout
        self.examples = examples
        self.targets = targets
        self.samples_per_round = samples_per_round
        self.head_steps = head_steps
        self.head_decay = head_decay
        self._head = model.get_submodule(layout.head_name)
        self._current = examples
        self._theta: Tensor | None = None  # (classes, features + 1), the last column a bias

    def __len__(self) -> int:
        return len(self._current)

    def begin(self, start: Weights, seed: int) -> None:
        """Choose the examples of a search, and fit θ to how `start` represents them."""
        self.layout.write(self.model, start)
        self.model.eval()
        chosen = draw(self.examples, self.samples_per_round, seed_for(seed, "examples"))
        self._current = self.targets(chosen, self._all_representations, seed_for(seed, "targets"))
        features = self._all_representations(self._current)
        labels = torch.cat([self._current.take(index)[1] for index in _in_order(len(self._current))])
        self._fit(_with_bias(features), labels.to(features.device))

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """See `core.search.Objective`."""
        assert self._theta is not None, "begin comes first"
        self.layout.write(self.model, point)
        self.model.eval()
        self.model.zero_grad(set_to_none=True)
        inputs, labels = self._current.take(examples)
        features = self._represent(inputs.to(point.vector.device))
        value = F.cross_entropy(_with_bias(features) @ self._theta.T, labels.to(features.device))
        value.backward()  # type: ignore[no-untyped-call]
        return value.item(), self.layout.read_grad(self.model)

    def _fit(self, features: Tensor, labels: Tensor) -> None:
        if self._theta is None:
            self._theta = torch.zeros(self.targets.classes, features.shape[1], device=features.device)
        theta = self._theta.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([theta], max_iter=self.head_steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(features @ theta.T, labels) + self.head_decay / 2 * theta.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        self._theta = theta.detach()

    @torch.no_grad()
    def _all_representations(self, examples: Examples) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.cat([self._represent(examples.take(index)[0].to(device)) for index in _in_order(len(examples))])

    def _represent(self, inputs: Tensor) -> Tensor:
        """What the model's own head is given, (n, features)."""
        seen: list[Tensor] = []
        hook = self._head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            self.model(inputs)
        finally:
            hook.remove()
        return seen[-1].flatten(1)

    def state_dict(self) -> dict[str, Tensor]:
        """θ, and what the targets keep."""
        theta = {} if self._theta is None else {"theta": self._theta.clone()}
        return theta | self.targets.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""
        self._theta = state.get("theta")
        self.targets.load_state_dict(state)


def _with_bias(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def _in_order(count: int) -> list[Tensor]:
    firsts = range(0, count, _BATCH)
    return [
        torch.arange(first, first + size) for first, size in zip(firsts, mini_batch_sizes(count, _BATCH), strict=True)
    ]
