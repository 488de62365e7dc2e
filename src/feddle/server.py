"""The server core, shared by every runtime: it knows neither time nor transport."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median

import torch
from torch import Tensor

from feddle.core.checks import fault_of_form, fault_of_values, is_job, norm
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Update
from feddle.methods.strategy import Strategy, above, below

RECENT, ENOUGH = 100, 20  # accepted updates whose norms make the median: at most, and at least


@dataclass
class _Pinned:
    """A version of the model that jobs in flight began from."""

    weights: Weights
    jobs: int = 0


class Server:
    """Versions of the model, jobs in flight, and what has arrived for the next merge.

    A version is made each round, whether the model changed or not. Updates are hostile until checked: a bad one is
    refused, counted by reason in `refused`, and changes nothing else; its job stays in flight, so that nobody can end a
    job in another's name. An update of norm zero says nothing: it is counted, and no strategy sees it.

    `digest` is that of the model's layout, which every update must name. `max_norm_ratio` bounds an update's norm by
    the median of those last accepted; until there are enough of them, by the norm of the model.
    """

    def __init__(
        self, model: Weights, strategy: Strategy, *, digest: str = "", max_norm_ratio: float | None = None
    ) -> None:
        self.model = model
        self.strategy = strategy
        self.digest = digest
        self.max_norm_ratio = max_norm_ratio
        self.version = 0
        self.refused: Counter[str] = Counter()
        self.zero_updates = 0
        self._in_flight: set[Job] = set()
        self._pinned: dict[int, _Pinned] = {}
        self._jobs_of: Counter[int] = Counter()
        self._arrivals: list[Arrival] = []
        self._last_received: dict[int, Job] = {}  # by client
        self._norms: deque[float] = deque(maxlen=RECENT)  # of the updates last accepted, oldest first

    def dispatch(self, client: int) -> Job:
        """Start a job for a client from the current version."""
        job = Job(client, self._jobs_of[client], self.version)
        self._jobs_of[client] += 1
        self._in_flight.add(job)
        pinned = self._pinned.setdefault(self.version, _Pinned(self.model))
        pinned.jobs += 1
        return job

    @property
    def most_jobs(self) -> int:
        """The number of jobs of the client that has had the most."""
        return max(self._jobs_of.values(), default=0)

    @property
    def in_flight(self) -> frozenset[Job]:
        """The jobs whose updates are awaited."""
        return frozenset(self._in_flight)

    def start_of(self, job: Job) -> Weights:
        """The model that a job in flight began from."""
        return self._pinned[job.version].weights

    def receive(self, update: Update) -> bool:
        """Take in a client's update; False if it was refused.

        The values are copied before they are checked: whoever sent them may still hold the tensors.
        """
        reason = self._fault_of_message(update)
        if reason is None:
            update = replace(update, delta=update.delta.clone(), buffers=update.buffers.clone())
            reason = fault_of_values(update) or self._fault_of_norm(update)
        if reason is not None:
            self.refused[reason] += 1
            return False
        job, length = update.job, norm(update).item()
        start = self.start_of(job)
        self.forget(job)
        self._last_received[job.client] = job
        if not length:
            self.zero_updates += 1
            return True
        self._norms.append(length)
        self._arrivals.append(Arrival(update, self.version - job.version, start))
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
            "in_flight": _as_rows(self._in_flight),
            "last_received": _as_rows(self._last_received.values()),
            "jobs_of": torch.tensor(list(self._jobs_of.items()), dtype=torch.int64).view(-1, 2),
            "norms": torch.tensor(self._norms, dtype=torch.float64),
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
        self._last_received = {row[0]: Job(*row) for row in state["last_received"].tolist()}
        self._norms = deque(state["norms"].tolist(), RECENT)
        needed = Counter(job.version for job in self._in_flight)
        self._pinned = {version: _Pinned(weights(f"pinned.{version}"), jobs) for version, jobs in needed.items()}
        self.strategy.load_state_dict(below("strategy.", state))

    def _fault_of_message(self, update: Update) -> str | None:
        """Why an update is refused, whatever its values are, or None."""
        if type(update) is not Update:
            return "wrong type"
        return self._fault_of_job(update.job) or fault_of_form(update, self.model, self.digest)

    def _fault_of_job(self, job: Job) -> str | None:
        if not is_job(job) or job.number not in range(self._jobs_of.get(job.client, 0)):
            return "never sent"
        if job in self._in_flight:
            return None
        if job == self._last_received.get(job.client):
            return "duplicate"
        if any((job.client, job.number) == (other.client, other.number) for other in self._in_flight):
            return "wrong version"
        return "not in flight"

    def _fault_of_norm(self, update: Update) -> str | None:
        if self.max_norm_ratio is None:
            return None
        known = len(self._norms) >= ENOUGH
        usual = median(self._norms) if known else torch.linalg.vector_norm(self.model.vector).item()
        return "too long" if usual and norm(update).item() > self.max_norm_ratio * usual else None


def _as_rows(jobs: Iterable[Job]) -> Tensor:
    """Jobs (n, 3), in order."""
    return torch.tensor(sorted(astuple(job) for job in jobs), dtype=torch.int64).view(-1, 3)
