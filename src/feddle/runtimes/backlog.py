"""The jobs of a pool of workers: which is next, and what happens to one that fails."""

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update


class Fault(Enum):
    """How an attempt at a job failed. The value is how often that may happen to one job before it ends the run."""

    TRAINING = 2  # the training raised an error, or its process died
    LOST = 5  # the job was lost with its node or actor, which may not be its own fault
    NOT_BEGUN = 10  # its worker died before it began


@dataclass(frozen=True)
class Failed:
    """Why a job has no update. A mistake of the user is final: a second attempt would fail in the same way."""

    reason: str
    final: bool = False


def attempt(work: Work, job: Job, start: Weights) -> Update | Failed:
    """Train a job in a worker. Anything that a user's data set or model raises is reported."""
    try:
        return work(job, start)
    except FeddleError as error:
        return Failed(str(error), final=True)
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")


@dataclass(eq=False)
class Task:
    """A job in progress; `outcome` is set when the job is done or has failed for the last time."""

    job: Job
    start: Weights
    due: int  # the round in which its update arrives
    faults: Counter[Fault] = field(default_factory=Counter)
    outcome: Update | BaseException | None = None


@dataclass(eq=False)
class Backlog:
    """The jobs that are not finished, in the order in which they are due.

    At most `ahead` finished updates wait for their arrival. Jobs that are due in round `horizon` or later are not
    trained, because the run ends earlier. The pool that owns the backlog guards it with a lock.
    """

    horizon: int
    ahead: int
    tasks: dict[Job, Task] = field(default_factory=dict)
    pending: list[Task] = field(default_factory=list)  # not with a worker, in the order in which they are due
    wanted: Task | None = None

    def add(self, job: Job, start: Weights, due: int) -> None:
        """Announce a job."""
        task = self.tasks[job] = Task(job, start, due)
        self.put_back(task)

    def want(self, job: Job) -> Task:
        """The task of a job that the server now waits for, which makes it the next one."""
        self.wanted = self.tasks.pop(job)
        return self.wanted

    def next(self) -> Task | None:
        """The job that the server waits for, else the one that is due first if there is room for its update."""
        if self.wanted in self.pending:
            return self.wanted
        waiting = sum(task.outcome is not None for task in self.tasks.values())
        if not self.pending or self.pending[0].due >= self.horizon or waiting >= self.ahead:
            return None
        return self.pending[0]

    def put_back(self, task: Task) -> None:
        """Make a task pending, after those that are due in the same round."""
        insort(self.pending, task, key=attrgetter("due"))

    def fail(self, task: Task, failed: Failed, fault: Fault) -> None:
        """Repeat a task that failed, or end it if that has happened too often."""
        task.faults[fault] += 1
        if failed.final:
            task.outcome = FeddleError(failed.reason)
        elif task.faults[fault] < fault.value:
            self.put_back(task)
        else:
            task.outcome = StoppedError(
                f"training client {task.job.client} (its job {task.job.number}, from version {task.job.version}) "
                f"failed {task.faults[fault]} times: {failed.reason}"
            )
