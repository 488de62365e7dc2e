"""The inputs from which the options of a method build its objects."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.metrics import Metric
from feddle.core.ranks import Ranks
from feddle.data.examples import Examples
from feddle.training.search import Observer
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


class ClientScore(NamedTuple):
    """How well a model works for a client."""

    value: float | None
    correct: str = ""  # which of its own test examples are predicted correctly (`hex_of`); empty if unknown
    whole: float | None = None  # on the test data of all clients; known only for a model that a client trained alone


class Alone(Protocol):
    """Trains clients alone, and measures how well their models work for them."""

    @property
    def metric(self) -> Metric:
        """What is measured."""

    def drawn(self, limit: int) -> list[int]:
        """At most `limit` clients."""

    def weight(self, client: int) -> int:
        """How much a client counts in a mean over clients."""

    def alone(self, client: int, start: Weights, epochs: int) -> ClientScore:
        """The score, for a client, of the model that it trains alone from `start`."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The numbers of a plan, the server's model and the server's data."""

    method: str  # its name, for error messages
    bench: Workbench
    recipe: Recipe  # how clients train
    seed: int
    rounds: int
    clients: int  # number of clients (J)
    per_round: int  # number of clients sampled per round (N)
    server: Examples | None = None
    out_of_domain: str | None = None  # name of the server's data set, if it differs from the clients'
    server_classes: int | None = None  # number of classes of the server's labels, if it differs from the clients'
    samples_per_round: int | None = None  # largest number of the server's examples used per round
    device: str = "cpu"
    scratch: Path | None = None  # a folder for what does not fit in memory
    observe: Observer | None = None  # called with every search, for diagnostics
    ranks: Ranks | None = None  # processes that share the search, if there are several
    alone: Alone | None = None  # without it, the clients are not simulated, or there is no test data

    def server_data(self, *, labelled: bool = True, user: str = "") -> Examples:
        """The server's examples; with `labelled`, their labels must be those of the clients' task.

        Errors name the `user` of the data: the option that needs it, or by default the method.
        """
        if self.server is None:
            raise FeddleError(
                f"{self.method} uses the server's data, but there is none; "
                "pass server= to simulate, or set data.server.samples above 0 in a config"
            )
        if labelled and self.out_of_domain:
            remedy = f" or {user}" if user else ", or use feddf"
            raise FeddleError(
                f"{user or self.method} needs server data of the clients' own task, but the server's is "
                f"{self.out_of_domain}; leave out data.server.name (in Python: server_classes=){remedy}"
            )
        return self.server

    @property
    def classes(self) -> int:
        """Number of classes of the server's labels: by default the number of classes of the model."""
        head = self.bench.layout.head_name
        if self.server_classes is not None or head is None:
            return self.server_classes or 0
        return int(self.bench.model.get_submodule(head).out_features)  # type: ignore[arg-type]
