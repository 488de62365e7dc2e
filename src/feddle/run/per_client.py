"""How well the server's model works for each client, and how well a model that the client trains alone does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

from feddle.clients.work import ClientWork
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Job
from feddle.core.metrics import Metric, main_metric
from feddle.core.seeds import numpy_generator, seed_for
from feddle.data.examples import Examples, Selection, draw, targets_of
from feddle.records import ClassScores, ClientScores, Details, MeasuredOn, hex_of
from feddle.run.problem import Problem
from feddle.training.metrics import class_accuracy, details, labels_of
from feddle.training.parts import ClientScore
from feddle.training.train import Recipe, Score, evaluate

_PROBE = 100  # test examples that show what is measured
_WHOLE = 2000  # largest number of test examples on which every model of a client that trains alone is measured
_NAMED = 200  # largest number of clients without test examples that are named


@dataclass(frozen=True, eq=False)
class PerClient:
    """Measures the model of a problem for its clients, by the main metric of the run.

    If the data says which client a test example belongs to, a client is measured on its own test examples. Otherwise
    the accuracy of each class on the test data is weighted by the class's share of the client's training data. Where
    there are no classes, a client is measured on its training data.
    """

    problem: Problem
    test: Examples  # of the problem
    layout: Layout
    recipe: Recipe
    seed: int
    _known: dict[int, Tensor] = field(default_factory=dict, init=False)  # the classes of clients

    @cached_property
    def _probe(self) -> Score:
        return self._evaluate(Selection(self.test, torch.arange(min(_PROBE, len(self.test)))))

    @property
    def metric(self) -> Metric:
        """What is measured."""
        return main_metric([self._probe.metrics])

    @cached_property
    def measured_on(self) -> MeasuredOn:
        """The data that is used."""
        owners = self.problem.test_owners
        if owners is not None and bool((owners >= 0).any()):
            return "test"
        return "classes" if self._probe.task == "classes" and self._probe.outputs.ndim == 2 else "train"

    def drawn(self, limit: int) -> list[int]:
        """A random sample of at most `limit` measurable clients. A smaller limit gives a subset of the same sample."""
        generator = numpy_generator(seed_for(self.seed, "measured clients"))
        order: list[int] = generator.permutation(self.problem.eligible.numpy()).tolist()
        if self.measured_on == "test":
            order = [client for client in order if client in self._owning]
        return order[:limit]

    def score(self, client: int, whole: Score | None = None) -> ClientScore:
        """The current model's score for a client. `whole` is its score on all test data, if that is known."""
        if self.measured_on == "train":
            return ClientScore(self._evaluate(self.problem.clients[client]).metrics.get(self.metric.name))
        rows = self.rows(client)
        sliced = whole is not None and whole.task == "classes"
        part = whole.of(rows) if whole and sliced else self._evaluate(Selection(self.test, rows))
        if self.measured_on == "test":
            right = part.correct
            return ClientScore(part.metrics.get(self.metric.name), "" if right is None else hex_of(right.tolist()))
        return ClientScore(weighted(class_accuracy(part.outputs, part.targets), self._counts(client)))

    def rows(self, client: int) -> Tensor:
        """The test examples that count for a client: its own, or those of its classes."""
        if self.measured_on == "test":
            return (self._owners == client).nonzero().flatten()
        return (self._counts(client)[self._test_labels] > 0).nonzero().flatten()

    def weight(self, client: int) -> int:
        """The number of its own test examples, or else of its training examples.

        So a mean over clients is comparable with the score of one model on all test examples.
        """
        return len(self.rows(client)) if self.measured_on == "test" else int(self.problem.sizes[client])

    def alone(self, client: int, start: Weights, epochs: int) -> ClientScore:
        """The score, for a client, of the model that it trains alone from `start`; also its score on all test data.

        Of large test data, the same random sample is used for all clients.
        """
        problem, recipe = self.problem, self.recipe.model_copy(update={"epochs": epochs, "proximal": None})
        seed = seed_for(self.seed, "alone")
        work = ClientWork(problem.model, self.layout, problem.clients, recipe, problem.loss, seed, problem.augment)
        update = work(Job(client, 0, 0), start)
        self.layout.write(problem.model, Weights(start.vector + update.delta, update.buffers))
        drawn = draw(self.test, _WHOLE, seed_for(self.seed, "test data for models alone"))
        whole = self._evaluate(drawn).metrics.get(self.metric.name)
        return self.score(client)._replace(whole=None if whole is None else round(whole, 6))

    def worst_tenth(self, whole: Score, limit: int) -> float | None:
        """The mean accuracy of the tenth of at most `limit` clients for which the model works worst.

        `whole` is its score on all test data. None if clients are not measured by their accuracy on test data.
        """
        drawn = self.drawn(limit) if whole.correct is not None and self.measured_on != "train" else []
        if not drawn:
            return None
        if self.measured_on == "test":
            assert whole.correct is not None
            right = [whole.correct[self._owners == client] for client in drawn]
            values = [each.float().mean().item() for each in right]
        else:
            accuracies = class_accuracy(whole.outputs, whole.targets)
            found = [weighted(accuracies, self._counts(client)) for client in drawn]
            values = [value for value in found if value is not None]
        return self.metric.worst_tenth(values) if values else None

    def record(self, scores: Mapping[int, ClientScore]) -> Details:
        """The scores of clients as a part of the result; empty without scores."""
        known = {client: score.value for client, score in sorted(scores.items()) if score.value is not None}
        if not known:
            return {}
        clients, values = list(known), list(known.values())
        names, train = self.problem.client_names, self.measured_on == "train"
        kept: ClientScores = {
            "metric": self.metric.name,
            "measured_on": self.measured_on,
            "of": len(self.problem.eligible),
            "clients": clients,
            "names": [names[client] for client in clients] if names else [],
            "examples": [int(self.problem.sizes[client]) for client in clients],
            "tested": [int(self.problem.sizes[c]) if train else len(self.rows(c)) for c in clients],
            "scores": [round(value, 6) for value in values],
            "mean": fmean(values),
            "worst_tenth": self.metric.worst_tenth(values),
        }
        if all(correct := [scores[client].correct for client in clients]):
            kept["correct"] = correct
        if whole := [value for client in clients if (value := scores[client].whole) is not None]:
            kept["whole"] = fmean(whole)
        if untested := self._untested():
            kept["untested"] = untested
        return {"clients": kept}

    def _untested(self) -> dict[str, int]:
        """The clients that have no test example, and how many training examples they have."""
        if self.measured_on != "test":
            return {}
        names = self.problem.client_names
        without = [client for client in self.problem.eligible.tolist() if client not in self._owning]
        named = {names[client] if names else f"client {client}": client for client in without[:_NAMED]}
        return {name: int(self.problem.sizes[client]) for name, client in named.items()}

    @property
    def _owners(self) -> Tensor:
        """The client of each test example, if it is measured on its own."""
        assert self.problem.test_owners is not None
        return self.problem.test_owners

    @cached_property
    def _owning(self) -> set[int]:
        """The clients that have test examples of their own."""
        return set(self._owners.tolist())

    @cached_property
    def _test_labels(self) -> Tensor:
        return labels_of(targets_of(self.test)).clamp(0, self._probe.outputs.shape[1] - 1)

    def _counts(self, client: int) -> Tensor:
        """How many training examples of each class a client has (C,)."""
        if client not in self._known:  # reading the targets may require reading the inputs
            classes, labels = self._probe.outputs.shape[1], labels_of(targets_of(self.problem.clients[client]))
            self._known[client] = torch.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes)
        return self._known[client]

    def _evaluate(self, examples: Examples) -> Score:
        return evaluate(self.problem.model, examples, self.problem.loss, task=self.problem.task)


def by_class(score: Score, names: Sequence[str]) -> Details:
    """How well each class or label is recognised, as a part of the result; empty if there are none."""
    found = details(score.task, score.outputs, score.targets)
    if not found:
        return {}
    numbers = [str(number) for number in range(len(found["accuracy"]))]
    found["names"] = list(names) if len(names) == len(numbers) else numbers
    return {"classes": cast(ClassScores, found)}


def scores_alone(history: Sequence[Mapping[str, Any]]) -> dict[int, ClientScore]:
    """The score of each client that has trained alone, from the history of `local`."""
    lines = [line["alone"] for line in history if "alone" in line]
    found = {}
    for line in lines:
        count = len(line["scores"])
        further = line.get("correct") or [""] * count, line.get("whole") or [None] * count  # not in earlier versions
        for client, *score in zip(line["clients"], line["scores"], *further, strict=True):
            found[client] = ClientScore(*score)
    return found


def weighted(accuracies: Tensor, counts: Tensor) -> float | None:
    """The accuracy of each class (C,), weighted by counts (C,). Classes without an accuracy (NaN) do not count."""
    counts = torch.where(accuracies.isnan(), 0, counts).double()
    return (accuracies.nan_to_num() @ counts / counts.sum()).item() if counts.any() else None
