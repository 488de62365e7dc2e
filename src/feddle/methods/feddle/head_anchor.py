"""The head anchor: the model's head, fitted again on the server's data, as one more direction of the search."""

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from feddle.core.errors import DivergedError, FeddleError
from feddle.core.layout import Weights
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples, Inputs, draw
from feddle.methods.cost import Setting
from feddle.methods.feddle.server_anchor import ServerAnchor
from feddle.options import Count, Options, Positive
from feddle.training.parts import Parts
from feddle.training.surrogate import HeadNotCalledError, represent, representations
from feddle.training.train import outputs_of
from feddle.training.workbench import Workbench

_TESTED = 8  # examples on which the model is tested


class HeadAnchorOptions(Options):
    """In every round, the server fits the model's head again. The change is one more anchor. In-domain data only."""

    penalty: Positive = Field(
        0.01,
        description="weight of half the squared distance from the head before the fit, which keeps the fit near it",
    )
    steps: Count = Field(20, description="largest number of L-BFGS steps of the fit")

    def build(self, parts: Parts, server_anchor: ServerAnchor | None) -> "HeadAnchor":
        """The anchor of a method that is built from these parts, and that may have a server anchor."""
        examples = parts.server_data(user="method.head_anchor")
        if not has_last_head(parts.bench, examples):
            raise FeddleError(
                "method.head_anchor needs a model whose last module is a trainable linear layer that is used nowhere "
                "else; leave the option out, or change the model"
            )
        return HeadAnchor(self, parts.bench, examples, server_anchor, parts.samples_per_round, parts.seed)

    def evaluated(self, setting: Setting, holdout: float) -> int:
        """The number of examples whose representations are computed in a round."""
        return min(setting.server - round(holdout * setting.server), setting.samples_per_round)


@dataclass(frozen=True, eq=False)
class HeadAnchor:
    """Fits the head from the point w″ to w‴; the body stays. The anchor is w‴ − w″, with scale 1 and start 1.

    w″ is the end of the server anchor, or the fallback's point if there is none. The fit minimises
    ℓ(head) + `penalty`/2·‖head − head of w″‖² on the examples that the server anchor trains on.
    """

    options: HeadAnchorOptions
    bench: Workbench
    examples: Examples
    server_anchor: ServerAnchor | None = None
    samples_per_round: int | None = None
    seed: int = 0

    def train(self, start: Weights, round: int) -> Weights:
        """w‴, from w″ = `start`."""
        model, layout = self.bench.model, self.bench.layout
        layout.write(model, start)
        model.eval()
        head: Any = model.get_submodule(str(layout.head_name))
        self._fit(head, *representations(model, head, self._drawn(round)))
        return layout.read(model)

    def _drawn(self, round: int) -> Examples:
        """The examples that the server anchor trains on, or all; at most `samples_per_round`."""
        kept = None if self.server_anchor is None else self.server_anchor.split(round)[0]
        return draw(self.examples, self.samples_per_round, seed_for(self.seed, "train on", round), kept)

    def _fit(self, head: Any, features: Tensor, targets: Tensor) -> None:
        parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
        before = [parameter.detach().clone() for parameter in parameters]
        optimizer = torch.optim.LBFGS(parameters, max_iter=self.options.steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            away = torch.stack([(new - old).square().sum() for new, old in zip(parameters, before, strict=True)]).sum()
            value = self.bench.loss(head(features), targets) + self.options.penalty / 2 * away
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        if not all(bool(parameter.isfinite().all()) for parameter in parameters):
            raise DivergedError(
                f"the fit of method.head_anchor diverged; lower its penalty (now {self.options.penalty:g}), "
                "method.server_anchor.lr or training.lr"
            )


@torch.no_grad()
def has_last_head(bench: Workbench, examples: Examples) -> bool:
    """Whether the head gets one vector per example, its outputs are the model's, and nothing else uses its weights.

    This is tested on a few examples, with the head as it is and ten times as large. The second test detects bounded
    outputs, and a body that uses the weights of the head.
    """
    model, layout = bench.model, bench.layout
    if layout.head_name is None:
        return False
    head: Any = model.get_submodule(layout.head_name)
    inputs, _ = examples.take(torch.arange(min(len(examples), _TESTED)))
    weights = layout.read(model)
    model.eval()
    try:
        features = represent(model, head, inputs)
        if features.shape[1] != head.in_features:
            return False
        return all(_ends_with(model, head, inputs, features, factor) for factor in (1, 10))
    except HeadNotCalledError:
        return False
    finally:
        layout.write(model, weights)


def _ends_with(model: nn.Module, head: nn.Module, inputs: Inputs, features: Tensor, factor: int) -> bool:
    """Whether a head that is larger by a factor still gives the outputs of the model from the same features."""
    for parameter in head.parameters():
        if parameter.requires_grad:
            parameter.mul_(factor)
    own, outputs = head(features), outputs_of(model, inputs)
    return own.shape == outputs.shape and torch.allclose(own, outputs, atol=1e-5 * factor, equal_nan=True)
