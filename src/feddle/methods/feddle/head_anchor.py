"""The head anchor: the model's head, fitted again on the server's data, as one more direction of the search."""

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples, Selection, draw
from feddle.methods.cost import Setting
from feddle.methods.feddle.server_anchor import ServerAnchor
from feddle.options import Count, Options, Positive
from feddle.training.parts import Parts
from feddle.training.surrogate import representations
from feddle.training.workbench import Workbench


class HeadAnchorOptions(Options):
    """In every round, the server fits the model's head again. The change is one more anchor. In-domain data only."""

    penalty: Positive = Field(
        0.01,
        description="weight of half the squared distance from the head before the fit, which keeps the fit near it",
    )
    steps: Count = Field(20, description="largest number of L-BFGS steps of the fit")

    def build(self, parts: Parts, server_anchor: ServerAnchor | None) -> "HeadAnchor":
        """The anchor of a method that is built from these parts, and that may have a server anchor."""
        examples = parts.server_data()
        if not has_last_head(parts.bench, examples):
            raise FeddleError(
                "method.head_anchor needs a model that ends with a trainable linear layer, whose outputs are those of "
                "the model; leave the option out, or end the model with a linear layer"
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


@torch.no_grad()
def has_last_head(bench: Workbench, examples: Examples) -> bool:
    """Whether the head gets one vector per example, and its outputs are the model's, as far as one example shows."""
    if bench.layout.head_name is None:
        return False
    head: Any = bench.model.get_submodule(bench.layout.head_name)
    one = Selection(examples, torch.zeros(1, dtype=torch.long))
    outputs = bench.logits(bench.layout.read(bench.model), one)
    features, _ = representations(bench.model, head, one)
    return features.shape[1] == head.in_features and torch.allclose(head(features), outputs, atol=1e-5)
