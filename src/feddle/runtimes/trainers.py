"""Training the clients' jobs in a simulation."""

from dataclasses import dataclass, field
from typing import Protocol, Self

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update


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
