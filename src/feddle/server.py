"""The server core, shared by every runtime: it knows neither time nor transport."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Update
from feddle.strategies.strategy import Strategy, above, below


@dataclass
class _Pinned:
    """A version of the model that jobs in flight began from."""

    weights: Weights
    jobs: int = 0


class Server:
    """Versions of the model, jobs in flight, and what has arrived for the next merge.

    A version is made each round, whether the model changed or not. Updates are checked here: a bad one is refused,
    counted by reason in `refused`, and changes nothing. An update of norm zero says
    nothing: it is counted, and no strategy sees it.
    """

    def __init__(self, model: Weights, strategy: Strategy) -> None:
        self.model = model
        self.strategy = strategy
        self.version = 0
        self.refused: Counter[str] = Counter()
        self.zero_updates = 0
        self._in_flight: set[Job] = set()
        self._pinned: dict[int, _Pinned] = {}
        self._jobs_of: Counter[int] = Counter()
        self._arrivals: list[Arrival] = []

    def dispatch(self, client: int) -> Job:
        """Start a job for a client from the current version."""
        job = Job(client, self._jobs_of[client], self.version)
        self._jobs_of[client] += 1
        self._in_flight.add(job)
        pinned = self._pinned.setdefault(self.version, _Pinned(self.model))
        pinned.jobs += 1
        return job

    def start_of(self, job: Job) -> Weights:
        """The model that a job in flight began from."""
        return self._pinned[job.version].weights

    def receive(self, update: Update) -> bool:
        """Take in a client's update; False if it was refused."""
        if update.job not in self._in_flight:
            self.refused["not in flight"] += 1
            return False
        start = self.start_of(update.job)
        self.forget(update.job)
        if reason := self._fault(update):
            self.refused[reason] += 1
            return False
        if not torch.linalg.vector_norm(update.delta):
            self.zero_updates += 1
            return True
        self._arrivals.append(Arrival(update, self.version - update.job.version, start))
        return True

    def forget(self, job: Job) -> None:
        """End a job; its version is freed with the last job that needs it."""
        self._in_flight.remove(job)
        pinned = self._pinned[job.version]
        pinned.jobs -= 1
        if not pinned.jobs:
            del self._pinned[job.version]

    def advance(self) -> Sequence[Arrival]:
        """Merge what arrived into the next version; returns it."""
        arrivals, self._arrivals = self._arrivals, []
        self.model = self.strategy.merge(self.model, arrivals)
        self.version += 1
        return arrivals

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on after a stop, as tensors; taken between rounds, when nothing waits for a merge."""
        assert not self._arrivals
        pinned = {f"pinned.{version}": kept.weights for version, kept in self._pinned.items()}
        weights = {"model": self.model, **pinned}
        return {
            **{f"{name}.vector": kept.vector for name, kept in weights.items()},
            **{f"{name}.buffers": kept.buffers for name, kept in weights.items()},
            **above("strategy.", self.strategy.state_dict()),
            **above("refused.", {reason: torch.tensor(count) for reason, count in self.refused.items()}),
            "zero_updates": torch.tensor(self.zero_updates),
            "version": torch.tensor(self.version),
            "in_flight": torch.tensor(sorted(astuple(j) for j in self._in_flight), dtype=torch.int64).view(-1, 3),
            "jobs_of": torch.tensor(list(self._jobs_of.items()), dtype=torch.int64).view(-1, 2),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""
        device = self.model.vector.device

        def weights(name: str) -> Weights:
            vector, buffers = (state[f"{name}.{part}"].to(device, copy=True) for part in ("vector", "buffers"))
            return Weights(vector, buffers)

        self.model = weights("model")
        self.version, self.zero_updates = int(state["version"]), int(state["zero_updates"])
        self.refused = Counter({reason: int(count) for reason, count in below("refused.", state).items()})
        self._jobs_of = Counter(dict(state["jobs_of"].tolist()))
        self._in_flight = {Job(*row) for row in state["in_flight"].tolist()}
        needed = Counter(job.version for job in self._in_flight)
        self._pinned = {version: _Pinned(weights(f"pinned.{version}"), jobs) for version, jobs in needed.items()}
        self.strategy.load_state_dict(below("strategy.", state))

    def _fault(self, update: Update) -> str | None:
        if update.delta.shape != self.model.vector.shape or update.buffers.shape != self.model.buffers.shape:
            return "wrong length"
        if not (bool(torch.linalg.vector_norm(update.delta).isfinite()) and bool(update.buffers.isfinite().all())):
            return "not finite"  # its norm must be finite too
        if update.num_examples <= 0:
            return "no examples"
        return None
