"""Guiding the merge without labels: the clients' models teach their joint prediction for the server's data."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples, Relabelled, Selection, draw
from feddle.options import Count, Options
from feddle.training.metrics import innermost, may_be_of_classes
from feddle.training.parts import Parts
from feddle.training.search import Objective
from feddle.training.train import loss_and_gradient
from feddle.training.workbench import Workbench

Average = Literal["logits", "losses"]
NEGLIGIBLE = 1e-6  # a divergence below this is rounding error, which Adam would amplify to whole steps


class DistilOptions(Options):
    """Match the joint prediction of the last clients' models; needs no labels, and takes data of any domain."""

    name: Literal["distil"] = "distil"
    teachers: Count = Field(5, description="number of teachers: the client models that arrived last")

    def build(self, parts: Parts) -> Objective:
        """On any data; its labels are not used."""
        examples, limit = classified_data(parts, "method.objective=distil"), parts.samples_per_round
        return DistilObjective(parts.bench, examples, self.teachers, limit)


@dataclass(eq=False)
class DistilState:
    """The teachers, oldest first."""

    teachers: deque[Weights]


@dataclass(eq=False)
class DistilObjective:
    """KL(teachers ‖ model) on the server's data; the teachers' prediction is the softmax of their mean logits.

    The teachers are the models of the last clients, start + Δ with their running statistics. Before the first one, the
    model at the start of the search teaches itself, so the search stays there.
    """

    bench: Workbench
    examples: Examples
    teachers: int = 5
    samples_per_round: int | None = None

    def __post_init__(self) -> None:
        self._current = self.examples
        self.state = DistilState(deque(maxlen=self.teachers))

    def __len__(self) -> int:
        return len(self._current)

    def begin(self, start: Weights, seed: int, among: Tensor | None = None, arrivals: Sequence[Arrival] = ()) -> None:
        """Choose the examples of a search, and compute the teachers' prediction for them."""
        self.state.teachers.extend(arrival.model for arrival in arrivals[-self.teachers :])
        chosen = draw(self.examples, self.samples_per_round, seed_for(seed, "examples"), among)
        self._current = Relabelled(chosen, joint_prediction(self.bench, self.state.teachers or [start], chosen))

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss on these examples, and its gradient (d,)."""
        inputs, targets = (part.to(point.vector.device) for part in self._current.take(examples))
        model = self.bench.model
        loss, gradient = loss_and_gradient(model, self.bench.layout, point, lambda: divergence(model(inputs), targets))
        return loss, torch.zeros_like(gradient) if loss <= NEGLIGIBLE else gradient


def classified_data(parts: Parts, user: str) -> Examples:
    """The server's examples, with or without labels, for a `user` that teaches the probabilities of classes."""
    bench, examples, loss = parts.bench, parts.server_data(labelled=False), innermost(parts.bench.loss)
    outputs = bench.logits(bench.layout.read(bench.model), Selection(examples, torch.zeros(1, dtype=torch.long)))
    if outputs.ndim < 2 or outputs.shape[1] < 2 or not may_be_of_classes(loss):
        found = f"{getattr(loss, '__name__', type(loss).__name__)} and outputs of shape {tuple(outputs.shape)}"
        raise FeddleError(
            f"{user} needs a model that predicts one of several classes, but found the loss {found} for one example; "
            "use a method that reads labels"
        )
    return examples


def joint_prediction(
    bench: Workbench,
    teachers: Iterable[Weights],
    examples: Examples,
    temperature: float = 1.0,
    average: Average = "logits",
) -> Tensor:
    """The teachers' joint prediction as probabilities (n, classes); one teacher's weights are used at a time.

    It is the softmax of their mean logits. For `losses` it is the mean of their softmaxes, since the gradient of the
    loss to that is the mean gradient of the losses to each teacher.
    """
    total: Tensor | None = None
    count = 0
    for teacher in teachers:
        logits = bench.logits(teacher, examples) / temperature
        output = logits if average == "logits" else logits.softmax(1)
        total, count = output if total is None else total + output, count + 1
    assert total is not None
    mean = total / count
    return mean.softmax(1) if average == "logits" else mean


def divergence(outputs: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(targets ‖ softmax of the outputs), averaged over the examples.

    The factor T² makes the size of the gradient independent of the temperature.
    """
    student = (outputs / temperature).log_softmax(1)
    return temperature**2 * F.kl_div(student, targets, reduction="batchmean")
