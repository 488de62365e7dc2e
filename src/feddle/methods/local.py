"""Local: every client trains alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import MethodOptions
from feddle.options import Count
from feddle.training.parts import Alone, Parts


class LocalOptions(MethodOptions):
    """Train every client alone on its own data, without a federation; a baseline that shows who benefits."""

    name: Literal["local"] = "local"
    clients: Count = Field(
        50, description="largest number of clients that are trained; if there are more, a random sample is drawn"
    )
    epochs: Count | None = Field(
        None,
        description="passes over a client's data; by default as many as a client makes on average in a federated run",
    )

    def build(self, parts: Parts) -> "Local":
        """The method."""
        if parts.alone is None:
            raise FeddleError(
                "local needs simulated clients and test data; use `feddle run`, or add test data (in Python: test=)"
            )
        jobs = parts.rounds * parts.per_round / parts.clients  # of a client, on average
        epochs = self.epochs or max(1, round(jobs * parts.recipe.epochs))
        return Local(parts.alone, self.clients, epochs, parts.rounds)

    def cost(self, setting: Setting) -> Cost:
        """A client is measured on the test examples of its classes, assumed to be half of all test examples."""
        clients = min(self.clients, setting.clients)
        epochs = self.epochs or max(1, round(setting.rounds * setting.per_round / setting.clients * setting.epochs))
        trained, measured = clients * epochs * setting.client_examples, clients * setting.test / 2
        return Cost(trained=trained / setting.rounds, evaluated=measured / setting.rounds, max_staleness=-1)


@dataclass(eq=False)
class LocalState:
    """The scores of the clients so far."""

    scores: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


@dataclass(eq=False)
class Local:
    """Each round trains some of the clients from the initial model, and measures each model for its client.

    The server's model never changes. The weighted mean over the clients is known in the last round.
    """

    alone: Alone
    limit: int
    epochs: int
    rounds: int
    max_staleness = -1
    personal = True

    def __post_init__(self) -> None:
        self.state = LocalState()

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        clients = self.alone.drawn(self.limit)
        due = clients[len(clients) * (round - 1) // self.rounds : len(clients) * round // self.rounds]
        scores = [self.alone.alone(client, model, self.epochs) for client in due]
        for client, score in zip(due, scores, strict=True):
            if score.value is not None:
                self.state.scores.append(score.value)
                self.state.weights.append(float(self.alone.weight(client)))
        values, correct = [score.value for score in scores], [score.correct for score in scores]
        whole = [score.whole for score in scores]
        notes: dict[str, Any] = {"alone": {"clients": due, "scores": values, "correct": correct, "whole": whole}}
        if round == self.rounds and self.state.scores:
            notes[self.alone.metric.name] = fmean(self.state.scores, self.state.weights)
        return Merged(model, notes)
