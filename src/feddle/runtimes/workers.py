"""Training ahead of time in worker processes.

The start of a job is known long before its update is due, so workers train while the server searches. The parent keeps
the order of the jobs. Each worker has two rows of shared memory, one for the weights that a job starts from and one for
its result. Workers are forked, so they share the data and the model with the parent: nothing is copied or pickled.
"""

import json
import multiprocessing
import threading
import warnings
from contextlib import suppress
from dataclasses import astuple, dataclass
from heapq import heappop, heappush
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Self

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.runtimes.worker_process import Rows, serve

_ATTEMPTS = 2
_HANDED_BACK = 10  # largest number of workers that may die before they begin the same job


@dataclass(eq=False)
class _Task:
    """A job in progress; `outcome` is set when the job is done or has failed for the last time."""

    job: Job
    start: Weights
    order: tuple[int, int]  # the round in which it is due, then the order of dispatch
    pending: bool = True
    failures: int = 0
    handed_back: int = 0
    outcome: Update | FeddleError | None = None


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    rows: Rows
    task: _Task | None = None
    alive: bool = True


class WorkerPool:
    """Trains jobs in `workers` processes with one torch thread each, in the order in which the jobs are due.

    The updates are bit-identical to those of `InlineTrainer`. At most `ahead` finished updates wait in memory. Jobs
    that are due in round `horizon` or later are not trained, because the run ends earlier. A worker that dies is
    replaced and its job is repeated; a job that fails twice ends the run.
    """

    def __init__(self, work: Work, model: Weights, workers: int, *, horizon: int, ahead: int) -> None:
        self.work = work
        self.model = model
        self.size = workers
        self.horizon = horizon
        self.ahead = ahead
        self._changed = threading.Condition()  # guards everything below
        self._workers: list[_Worker] = []
        self._tasks: dict[Job, _Task] = {}
        self._pending: list[tuple[tuple[int, int], _Task]] = []
        self._counter = count()
        self._wanted: _Task | None = None
        self._closing = False
        self._broken: BaseException | None = None
        self._wake, self._woken = multiprocessing.Pipe()
        self._listener = threading.Thread(target=self._listen, name="feddle-workers", daemon=True)

    def __enter__(self) -> Self:
        try:
            for _ in range(self.size):
                self._workers.append(self._fork())
            self._listener.start()
        except BaseException:
            self._end_workers()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._wake.send_bytes(b"close")
        self._listener.join()
        self._end_workers()

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.connection.close()

    def submit(self, job: Job, start: Weights, due: int) -> None:
        """Announce a job; an idle worker begins it at once."""
        with self._changed:
            task = self._tasks[job] = _Task(job, start, (due, next(self._counter)))
            heappush(self._pending, (task.order, task))
            self._repair_and_feed()

    def result(self, job: Job) -> Update:
        """The job's update; waits until it is ready."""
        with self._changed:
            task = self._wanted = self._tasks.pop(job)
            self._repair_and_feed()
            while task.outcome is None:
                if self._broken is not None:  # checked before each wait: it may have failed before the first
                    raise RuntimeError("the thread that listens to the workers failed") from self._broken
                self._changed.wait()
                self._repair_and_feed()
            self._wanted = None
        if isinstance(task.outcome, FeddleError):
            raise task.outcome
        return task.outcome

    def _feed(self) -> None:
        """Give idle workers the next jobs."""
        for worker in self._workers:
            if worker.task is None and worker.alive and (task := self._next()) is not None:
                worker.task = task
                worker.rows.start.vector.copy_(task.start.vector)
                worker.rows.start.buffers.copy_(task.start.buffers)
                worker.rows.begun.zero_()
                with suppress(OSError):  # the worker has just died; the listener sees that too and repeats the job
                    worker.connection.send_bytes(json.dumps(astuple(task.job)).encode())

    def _next(self) -> _Task | None:
        """The job that the server waits for, else the one that is due first if there is room for its update."""
        task = self._wanted if self._wanted is not None and self._wanted.pending else self._due_first()
        if task is not None:
            task.pending = False
        return task

    def _due_first(self) -> _Task | None:
        while self._pending and not self._pending[0][1].pending:
            heappop(self._pending)  # it was trained early, because the server waited for it
        waiting = sum(t.outcome is not None for t in self._tasks.values())
        if not self._pending or self._pending[0][1].order[0] >= self.horizon or waiting >= self.ahead:
            return None
        return heappop(self._pending)[1]

    def _listen(self) -> None:
        """Receive the workers' replies while the main thread does the server's work."""
        try:
            while not self._closing:
                self._listen_once()
        except BaseException as error:  # reported to the main thread, which would otherwise wait forever
            with self._changed:
                self._broken = error
                self._changed.notify_all()

    def _listen_once(self) -> None:
        with self._changed:
            living = {w.connection: w for w in self._workers if w.alive}
        for ready in wait([*living, self._woken]):
            if ready is self._woken:
                self._woken.recv_bytes()
                continue
            assert isinstance(ready, Connection)
            with self._changed:
                self._hear(living[ready])
                self._feed()
                self._changed.notify_all()

    def _hear(self, worker: _Worker) -> None:
        try:
            reply = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            worker.alive = False
            reply = {"failed": "its worker process died"}
        task, worker.task = worker.task, None
        if task is None:
            return
        if "failed" not in reply:
            result = worker.rows.result
            task.outcome = Update(task.job, result.vector.clone(), result.buffers.clone(), **reply)
        elif reply.get("final"):
            task.outcome = FeddleError(reply["failed"])
        else:
            begun = bool(worker.rows.begun)
            task.failures += begun
            task.handed_back += not begun  # the worker died before it began
            self._again(task, reply["failed"])

    def _again(self, task: _Task, reason: str) -> None:
        if task.failures < _ATTEMPTS and task.handed_back < _HANDED_BACK:
            task.pending = True
            heappush(self._pending, (task.order, task))
        else:
            task.outcome = StoppedError(
                f"training client {task.job.client} (its job {task.job.number}, from version {task.job.version}) "
                f"failed {max(task.failures, task.handed_back)} times: {reason}"
            )

    def _repair_and_feed(self) -> None:
        """Replace dead workers; only in the main thread, so that no torch call is interrupted by the fork."""
        dead = [i for i, w in enumerate(self._workers) if not w.alive]
        for i in dead:
            self._workers[i].process.join()
            self._workers[i].connection.close()
            self._workers[i] = self._fork()
        if dead:
            self._wake.send_bytes(b"listen again")
        self._feed()

    def _fork(self) -> _Worker:
        rows = Rows.like(self.model)
        ours, theirs = multiprocessing.Pipe()
        others = [w.connection for w in self._workers if w.alive]
        context = multiprocessing.get_context("fork")
        arguments = (self.work, theirs, [ours, *others], rows)
        process = context.Process(target=serve, args=arguments, daemon=True, name="feddle-worker")
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # about forks in a process with threads; our thread holds no lock
            process.start()
        theirs.close()
        return _Worker(process, ours, rows)
