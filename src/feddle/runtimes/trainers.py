"""Who does the clients' work in a simulation."""

from typing import Protocol, Self

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update


class Trainer(Protocol):
    """Does the clients' work, at any time between a job's start and its end."""

    def submit(self, job: Job, start: Weights, due: int) -> None:
        """Announce a job whose result is required in round `due`."""

    def result(self, job: Job) -> Update:
        """The job's update; waits until it is ready."""


class InlineTrainer:
    """Trains a job in this process when its result is required."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._starts: dict[Job, Weights] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._starts.clear()

    def submit(self, job: Job, start: Weights, due: int) -> None:  # noqa: ARG002
        """See `Trainer`."""
        self._starts[job] = start

    def result(self, job: Job) -> Update:
        """See `Trainer`."""
        try:
            return self.work(job, self._starts.pop(job))
        except FeddleError:
            raise
        except Exception as error:  # reported as by the workers
            raise StoppedError(f"training client {job.client} failed: {type(error).__name__}: {error}") from error
