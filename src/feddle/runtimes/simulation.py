"""A federation on a virtual clock that ticks once a round."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from feddle.core.messages import Arrival, Job
from feddle.core.seeds import numpy_generator, seed_for
from feddle.methods.strategy import above, below
from feddle.runtimes.trainers import Trainer
from feddle.server import Server


@dataclass(frozen=True)
class Delays:
    """Half-normal delays in whole rounds, ⌊|Normal(0, σ)|⌋, drawn once for each client or for each job."""

    sigma: float
    per: Literal["client", "job"]
    seed: int

    def __call__(self, job: Job) -> int:
        """How many rounds after its dispatch the job's update arrives."""
        ids = (job.client,) if self.per == "client" else (job.client, job.number)
        return int(abs(numpy_generator(seed_for(self.seed, "delay", *ids)).normal(0.0, self.sigma)))


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round."""

    dispatched: int
    returned: int
    arrivals: Sequence[Arrival]
    notes: Mapping[str, Any] = field(default_factory=dict)  # what else goes on the record, as JSON values


class Simulation:
    """Each round: sample idle clients, take in what is due, merge.

    A client is not sampled again before its update has arrived, and never without data.
    """

    def __init__(
        self,
        server: Server,
        trainer: Trainer,
        delays: Callable[[Job], int],
        *,
        eligible: np.ndarray,
        per_round: int,
        seed: int,
    ) -> None:
        self.server = server
        self.trainer = trainer
        self.delays = delays
        self.eligible = eligible
        self.per_round = per_round
        self.seed = seed
        self._queue: list[tuple[int, int, Job, bool]] = []
        self._dispatched = 0  # breaks ties: what was dispatched first arrives first
        self._busy: set[int] = set()

    def step(self) -> Round:
        """One round."""
        now = self.server.version
        dispatched = [self._dispatch(client, now) for client in self.sample(now)]
        returned = 0
        for job, wasted in self._due(now):
            self._busy.remove(job.client)
            returned += 1
            if wasted or not self.server.receive(self.trainer.result(job)):
                self.server.forget(job)  # the client is back, and has nothing else to send
        return Round(len(dispatched), returned, self.server.advance())

    def sample(self, now: int) -> list[int]:
        """The clients that are asked in the round after version `now`, given who is busy."""
        limit = self.server.strategy.max_staleness
        if limit is not None and limit < 0:  # a method that uses no update at all
            return []
        order = numpy_generator(seed_for(self.seed, "sample", now)).permutation(self.eligible)
        enough = order[: self.per_round + len(self._busy)].tolist()  # that many hold per_round idle ones
        return [client for client in enough if client not in self._busy][: self.per_round]

    def _dispatch(self, client: int, now: int) -> Job:
        job = self.server.dispatch(client)
        self._busy.add(client)
        delay = self.delays(job)
        limit = self.server.strategy.max_staleness
        wasted = limit is not None and delay > limit  # it would not be used, so it is not trained
        heappush(self._queue, (now + delay, self._dispatched, job, wasted))
        self._dispatched += 1
        if not wasted:
            self.trainer.submit(job, self.server.start_of(job), now + delay)
        return job

    def _due(self, now: int) -> Iterator[tuple[Job, bool]]:
        while self._queue and self._queue[0][0] <= now:
            _, _, job, wasted = heappop(self._queue)
            yield job, wasted

    def state_dict(self) -> dict[str, Tensor]:
        """The server and the updates that are under way, as tensors; a row of the queue is due, count, job, wasted."""
        rows = [(due, count, *astuple(job), wasted) for due, count, job, wasted in sorted(self._queue, key=_order)]
        return {
            **above("server.", self.server.state_dict()),
            "queue": torch.tensor(rows, dtype=torch.int64).view(-1, 6),
            "dispatched": torch.tensor(self._dispatched),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state; what was under way is submitted anew."""
        self.server.load_state_dict(below("server.", state))
        self._dispatched = int(state["dispatched"])
        # sorted, so a heap
        self._queue = [(due, count, Job(*job), bool(w)) for due, count, *job, w in state["queue"].tolist()]
        self._busy = {job.client for _, _, job, _ in self._queue}
        for due, _, job, wasted in self._queue:
            if not wasted:
                self.trainer.submit(job, self.server.start_of(job), due)


def _order(event: tuple[int, int, Job, bool]) -> tuple[int, int]:
    """By the round that it is due in, then by dispatch."""
    return event[:2]
