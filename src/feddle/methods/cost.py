"""The cost of a method at the server: examples to compute, and vectors to keep."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """The numbers of a run that the cost of a method depends on. `per_round` and `used` are of a round, on average."""

    size: int  # number of trainable parameters (d)
    clients: int  # number of clients (J)
    rounds: int
    per_round: int  # number of clients sampled (N)
    used: float  # updates that are merged
    most: float  # updates that are merged in one round, at most
    reported: float  # clients that have reported at the end
    epochs: int  # passes over a client's data in a job
    client_examples: float  # of a client
    server: int  # examples at the server
    samples_per_round: int  # largest number of them that a method with a limit uses in a round
    test: int  # examples for the test
    outside: bool = False  # whether the server's data is of another task

    @property
    def drawn(self) -> int:
        """The number of the server's examples in a round, for a method with a limit."""
        return min(self.server, self.samples_per_round)

    @property
    def active(self) -> float:
        """The share of the rounds with an arrival, if arrivals are spread evenly."""
        return min(1.0, self.used)


@dataclass(frozen=True)
class Cost:
    """The cost of a round at the server. A vector has one float32 for each trainable parameter."""

    trained: float = 0.0  # examples that go through the model forwards and backwards
    evaluated: float = 0.0  # examples that go through it only forwards
    products: float = 0.0  # anchors in the search's steps, each of which reads every anchor twice
    kept: float = 0.0  # vectors that are kept from round to round
    working: float = 0.0  # further vectors during a merge
    cached: float = 0.0  # vectors of single clients, in memory
    in_file: float = 0.0  # vectors of single clients, or anchors, in files in the run folder
    max_staleness: int | None = None  # as of a `Strategy`
    known: bool = True  # False for custom methods
