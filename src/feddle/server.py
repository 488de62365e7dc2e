"""The server core. Every runtime uses it; it is independent of time and transport."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from feddle.core.checks import fault_of_form, fault_of_merge, fault_of_values, is_job, norm
from feddle.core.errors import FeddleError
from feddle.core.importing import error_place, error_text
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Update
from feddle.core.state import load, prefixed, save, without_prefix
from feddle.methods.strategy import Strategy, average_buffers, state_of
from feddle.options import Options, no_bool

RECENT, ENOUGH = 100, 20  # largest and smallest number of norms used for the median
_SMALL = 0.01  # share of the initial model's norm below which no update counts as long
_WARM_UP = 10  # after n versions, the decay of the average is at most n/(n + 10)
_LISTED = 1000  # largest number of refusals in one line of the history


class Checks(Options):
    """Checks of an update's values."""

    max_norm_ratio: Annotated[float, BeforeValidator(no_bool), Field(gt=1, le=1e6)] | None = Field(
        100.0,
        description="largest norm of an update, relative to the usual norm; longer updates are refused; null: no "
        "limit. The usual norm is the highest value so far of the median over the last 100 accepted updates, and at "
        "least a hundredth of the initial model's norm; until 20 updates are accepted, it is the initial model's norm",
    )


@dataclass(eq=False)
class ServerState:
    """The server's state. The strategy's state is separate."""

    model: Weights
    average: Weights | None = None  # of the versions so far
    version: int = 0
    zero_updates: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    in_flight: set[Job] = field(default_factory=set)
    pinned: dict[int, Weights] = field(default_factory=dict)  # versions that jobs in flight started from
    jobs_of: Counter[int] = field(default_factory=Counter)  # by client
    last_received: dict[int, Job] = field(default_factory=dict)  # by client
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # of accepted updates, oldest first
    usual_norm: float = 0.0  # the highest median of `norms` so far


class Server:
    """The versions of the model, the jobs in flight, and the arrivals for the next merge.

    Each round makes a version, even if the model does not change. Updates are not trusted: a bad one is refused and
    counted by reason in `refused`, and changes nothing else. Its job stays in flight, so no client can end the job of
    another.

    Every update must have the `digest` of the model's layout. `max_norm_ratio` limits an update's norm (see `Checks`).
    The limit does not shrink when the clients have learnt their data and most updates become tiny.

    With `averaging`, `deployed` is a moving average of the versions, and clients still start from the last version.
    """

    def __init__(
        self,
        model: Weights,
        strategy: Strategy,
        *,
        digest: str = "",
        max_norm_ratio: float | None = None,
        averaging: float = 0.0,
    ) -> None:
        self.strategy = strategy
        self.digest = digest
        self.max_norm_ratio = max_norm_ratio
        self.averaging = averaging
        self.state = ServerState(model)
        self._initial_norm = torch.linalg.vector_norm(model.vector).item()  # no update can change it
        self._arrivals: list[Arrival] = []
        self._refusals: list[dict[str, Any]] = []  # since the last merge
        self._jobs_from: Counter[int] = Counter()  # jobs in flight, by version

    @property
    def model(self) -> Weights:
        """The current version."""
        return self.state.model

    @property
    def deployed(self) -> Weights:
        """The model to evaluate and to save: the average of the versions if there is one, else the current version."""
        return self.state.average or self.state.model

    @property
    def version(self) -> int:
        """The number of the current version, from 0."""
        return self.state.version

    @property
    def refused(self) -> Counter[str]:
        """The number of refused updates, by reason."""
        return self.state.refused

    @property
    def zero_updates(self) -> int:
        """The number of updates with norm zero."""
        return self.state.zero_updates

    def dispatch(self, client: int) -> Job:
        """Start a job for a client from the current version."""
        state = self.state
        job = Job(client, state.jobs_of[client], state.version)
        state.jobs_of[client] += 1
        state.in_flight.add(job)
        state.pinned.setdefault(state.version, state.model)
        self._jobs_from[state.version] += 1
        return job

    @property
    def in_flight(self) -> frozenset[Job]:
        """The jobs whose updates have not arrived yet."""
        return frozenset(self.state.in_flight)

    def start_of(self, job: Job) -> Weights:
        """The model that a job in flight started from."""
        return self.state.pinned[job.version]

    def receive(self, update: Update) -> bool:
        """Accept or refuse a client's update; False if it was refused.

        The values are copied before they are checked, because the sender may still hold them.
        """
        reason = self._fault_of_message(update)
        if reason is None:
            delta, buffers, metrics = update.delta.clone(), update.buffers.clone(), dict(update.metrics)
            update = replace(update, delta=delta, buffers=buffers, metrics=metrics)
            reason = fault_of_values(update) or self._fault_of_norm(update)
        if reason is not None:
            job: Any = getattr(update, "job", None)
            self.refuse(job.client if is_job(job) else None, reason)
            return False
        self._arrivals.append(Arrival(update, self.version - update.job.version, self.start_of(update.job)))
        self.forget(update.job)
        self.state.last_received[update.job.client] = update.job
        self._count(norm(update).item())
        return True

    def refuse(self, client: int | None, reason: str) -> None:
        """Count an update that cannot be used, and list it in the next line of the history."""
        self.state.refused[reason] += 1
        if len(self._refusals) < _LISTED:
            self._refusals.append({"client": client, "reason": reason})

    def _count(self, length: float) -> None:
        state = self.state
        if not length:
            state.zero_updates += 1
            return
        state.norms.append(length)
        if len(state.norms) >= ENOUGH:
            state.usual_norm = max(state.usual_norm, median(state.norms))

    def forget(self, job: Job) -> None:
        """End a job. A version is freed when the last job that started from it ends."""
        self.state.in_flight.remove(job)
        self._jobs_from[job.version] -= 1
        if not self._jobs_from[job.version]:
            del self._jobs_from[job.version], self.state.pinned[job.version]

    def advance(self) -> tuple[Sequence[Arrival], Mapping[str, Any]]:
        """Merge the arrivals into the next version; returns the arrivals and notes for the history.

        If the strategy moves the model but returns the running statistics unchanged, they become the average of the
        arrivals' statistics. A strategy that computes its own returns another tensor.
        """
        arrivals, self._arrivals = self._arrivals, []
        refused, self._refusals = self._refusals, []
        merged = self._merge(arrivals)
        if fault := fault_of_merge(merged, self.model):
            raise FeddleError(f"{type(self.strategy).__name__}.merge, round {self.version + 1}: {fault}")
        weights: Weights = merged.weights
        if weights.buffers is self.model.buffers and weights.vector is not self.model.vector:
            weights = Weights(weights.vector, average_buffers(self.model, arrivals))
        self.state.model, self.state.version = weights, self.version + 1
        if self.averaging:
            self.state.average = moving_average(self.state.average or weights, weights, self.averaging, self.version)
        return arrivals, {**merged.notes, "refused": refused} if refused else merged.notes

    def _merge(self, arrivals: Sequence[Arrival]) -> Any:
        """The strategy's merge. A custom one may return anything, and its own errors become one line."""
        kind, number = type(self.strategy), self.version + 1
        try:
            return self.strategy.merge(self.model, arrivals, number)
        except Exception as error:
            if isinstance(error, FeddleError) or kind.__module__.startswith("feddle."):
                raise
            what = f"{error_text(error)}{error_place(error)}"
            remedy = "correct it; --debug shows the traceback"
            raise FeddleError(f"{kind.__name__}.merge, round {number}: {what}; {remedy}") from error

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; called between rounds, when no arrival waits for a merge."""
        assert not self._arrivals
        return {**save(self.state), **prefixed("strategy", save(state_of(self.strategy)))}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        device = self.model.vector.device
        load(self.state, state, device)
        load(state_of(self.strategy), without_prefix("strategy", state), device)
        self._jobs_from = Counter(job.version for job in self.state.in_flight)

    def _fault_of_message(self, update: Update) -> str | None:
        """Why an update is refused regardless of its values, or None."""
        if type(update) is not Update:
            return "wrong type"
        return self._fault_of_job(update.job) or fault_of_form(update, self.model, self.digest)

    def _fault_of_job(self, job: Job) -> str | None:
        if not is_job(job) or job.number not in range(self.state.jobs_of.get(job.client, 0)):
            return "never sent"
        if job in self.state.in_flight:
            return None
        if job == self.state.last_received.get(job.client):
            return "duplicate"
        if any((job.client, job.number) == (other.client, other.number) for other in self.state.in_flight):
            return "wrong version"
        return "not in flight"

    def _fault_of_norm(self, update: Update) -> str | None:
        if self.max_norm_ratio is None:
            return None
        own, known = self._initial_norm, self.state.usual_norm
        usual = max(known, _SMALL * own) if known else own  # a model of zeros sets no limit at first
        return "too long" if usual and norm(update).item() > self.max_norm_ratio * usual else None


def moving_average(average: Weights, latest: Weights, decay: float, version: int) -> Weights:
    """The average after a version: it keeps the share `decay` of the old average.

    At first it keeps a smaller share, so that early versions fade soon.
    """
    share = 1 - min(decay, version / (version + _WARM_UP))
    return Weights(average.vector.lerp(latest.vector, share), average.buffers.lerp(latest.buffers, share))
