"""A federation on a virtual clock that ticks once per round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Literal, Protocol, Self

import numpy as np
from pydantic import Field
from torch import Tensor

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Round, Update
from feddle.core.seeds import numpy_generator, seed_for
from feddle.core.state import load, prefixed, save, without_prefix
from feddle.methods.strategy import max_staleness
from feddle.options import NonNegative, Options
from feddle.server import Server


class Trainer(Protocol):
    """Trains the clients' jobs, at any time between the start of a job and its end."""

    def submit(self, job: Job, start: Weights, due: int) -> None:
        """Announce a job whose result is required in round `due`."""

    def result(self, job: Job) -> Update:
        """The job's update; waits until it is ready."""


@dataclass(frozen=True, eq=False)
class InlineTrainer:
    """Trains a job in this process when its result is required."""

    work: Work
    _starts: dict[Job, Weights] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._starts.clear()

    def submit(self, job: Job, start: Weights, due: int) -> None:  # noqa: ARG002
        """Keep the start of the job until its result is required."""
        self._starts[job] = start

    def result(self, job: Job) -> Update:
        """Train the job."""
        try:
            return self.work(job, self._starts.pop(job))
        except FeddleError:
            raise
        except Exception as error:  # reported in the same way as by the workers
            raise StoppedError(f"training client {job.client} failed: {type(error).__name__}: {error}") from error


class Delays(Options):
    """Half-normal delays, in rounds."""

    sigma: NonNegative = Field(
        5.0, description="scale (σ) of the delay ⌊|Normal(0, σ)|⌋ in rounds; 0: every update arrives in its own round"
    )
    per: Literal["client", "job"] = Field(
        "client", description="`client`: slow clients stay slow; `job`: drawn again for each job"
    )

    def draw(self, job: Job, seed: int) -> int:
        """How many rounds after its dispatch the job's update arrives."""
        ids = (job.client,) if self.per == "client" else (job.client, job.number)
        return int(abs(numpy_generator(seed_for(seed, "delay", *ids)).normal(0.0, self.sigma)))


@dataclass(frozen=True, order=True)
class _Event:
    """An update under way: the round in which it is due, and the order of dispatch, which breaks ties."""

    due: int
    order: int
    client: int
    number: int
    version: int
    wasted: bool  # the method would not use it, so it is not trained

    @property
    def job(self) -> Job:
        return Job(self.client, self.number, self.version)


@dataclass(eq=False)
class SimulationState:
    """The state of a simulation, except the state of its server."""

    queue: list[_Event] = field(default_factory=list)  # a heap
    dispatched: int = 0


@dataclass(eq=False)
class Simulation:
    """Each round: sample idle clients, receive the updates that are due, merge.

    A client is sampled again only after its update has arrived. Only `eligible` clients, those with data, are sampled.
    """

    server: Server
    trainer: Trainer
    delays: Delays
    eligible: np.ndarray
    per_round: int
    seed: int
    state: SimulationState = field(default_factory=SimulationState, init=False)

    def step(self) -> Round:
        """One round."""
        now, queue = self.server.version, self.state.queue
        dispatched = [self._dispatch(client, now) for client in self.sample(now)]
        returned = discarded = 0
        while queue and queue[0].due <= now:
            event = heappop(queue)
            returned += 1
            discarded += event.wasted
            if event.wasted or not self.server.receive(self.trainer.result(event.job)):
                self.server.forget(event.job)  # the client has nothing else to send
        arrivals, notes = self.server.advance()
        return Round(len(dispatched), returned, arrivals, {**notes, "discarded": discarded} if discarded else notes)

    def sample(self, now: int) -> list[int]:
        """The clients that are sampled in the round after version `now`; busy clients are left out."""
        if max_staleness(self.server.strategy) == -1:  # the method uses no updates at all
            return []
        order = numpy_generator(seed_for(self.seed, "sample", now)).permutation(self.eligible)
        busy = {event.client for event in self.state.queue}
        enough = order[: self.per_round + len(busy)].tolist()  # that many contain per_round idle ones
        return [client for client in enough if client not in busy][: self.per_round]

    def _dispatch(self, client: int, now: int) -> Job:
        job = self.server.dispatch(client)
        delay, limit = self.delays.draw(job, self.seed), max_staleness(self.server.strategy)
        wasted = limit is not None and delay > limit
        event = _Event(now + delay, self.state.dispatched, job.client, job.number, job.version, wasted)
        heappush(self.state.queue, event)
        self.state.dispatched += 1
        if not wasted:
            self.trainer.submit(job, self.server.start_of(job), event.due)
        return job

    def facts(self) -> dict[str, Any]:
        """A simulation adds no entries."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """The server and the updates under way, as tensors."""
        return {**prefixed("server", self.server.state_dict()), **save(self.state)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state; the jobs under way are submitted again."""
        self.server.load_state_dict(without_prefix("server", state))
        load(self.state, state)
        for event in sorted(self.state.queue):
            if not event.wasted:
                self.trainer.submit(event.job, self.server.start_of(event.job), event.due)
