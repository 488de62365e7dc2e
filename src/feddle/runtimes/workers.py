"""Training ahead of time in worker processes.

The start of a job is known long before its update is due, so workers train while the server searches. The parent keeps
the order of the jobs. Each worker has two rows of shared memory, one for the weights that a job starts from and one for
its result. Workers are forked, so they share the data and the model with the parent: nothing is copied or pickled.
"""

import json
import mmap
import multiprocessing
import os
import signal
import threading
import warnings
from bisect import insort
from contextlib import suppress
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.training.machine import one_thread

_ATTEMPTS = 2
_HANDED_BACK = 10  # largest number of workers that may die before they begin the same job
_NICENESS = 5  # with one worker per core, the server must have priority: a round waits for it


@dataclass(eq=False)
class _Task:
    """A job in progress; `outcome` is set when the job is done or has failed for the last time."""

    job: Job
    start: Weights
    due: int  # the round in which its update arrives
    failures: int = 0
    handed_back: int = 0
    outcome: Update | FeddleError | None = None


@dataclass(frozen=True, eq=False)
class _Rows:
    """Memory that a worker shares with its parent: the start of a job, its result, and whether the job has begun."""

    start: Weights
    result: Weights
    begun: Tensor

    @classmethod
    def like(cls, model: Weights) -> "_Rows":
        """Rows for the weights of this model."""
        d, b = len(model.vector), len(model.buffers)
        memory = torch.frombuffer(mmap.mmap(-1, 4 * (2 * (d + b) + 1)), dtype=torch.float32)
        start, result = memory[: d + b], memory[d + b : -1]
        return cls(Weights(start[:d], start[d:]), Weights(result[:d], result[d:]), memory[-1:])


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    rows: _Rows
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
        self._pending: list[_Task] = []  # not with a worker, in the order in which they are due
        self._wanted: _Task | None = None
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
            task = self._tasks[job] = _Task(job, start, due)
            insort(self._pending, task, key=attrgetter("due"))
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

    def _repair_and_feed(self) -> None:
        """Replace dead workers; only in the main thread, so that no torch call is interrupted by the fork."""
        for i, worker in enumerate(self._workers):
            if not worker.alive:
                worker.process.join()
                worker.connection.close()
                self._workers[i] = self._fork()
                self._wake.send_bytes(b"listen again")
        self._feed()

    def _feed(self) -> None:
        """Give idle workers the next jobs."""
        for worker in self._workers:
            if worker.task is None and worker.alive and (task := self._next()) is not None:
                self._pending.remove(task)
                worker.task = task
                worker.rows.start.vector.copy_(task.start.vector)
                worker.rows.start.buffers.copy_(task.start.buffers)
                worker.rows.begun.zero_()
                with suppress(OSError):  # the worker has just died; the listener sees that too and repeats the job
                    worker.connection.send_bytes(json.dumps(astuple(task.job)).encode())

    def _next(self) -> _Task | None:
        """The job that the server waits for, else the one that is due first if there is room for its update."""
        if self._wanted in self._pending:
            return self._wanted
        waiting = sum(task.outcome is not None for task in self._tasks.values())
        if not self._pending or self._pending[0].due >= self.horizon or waiting >= self.ahead:
            return None
        return self._pending[0]

    def _listen(self) -> None:
        """Receive the workers' replies while the main thread does the server's work."""
        try:
            while True:
                with self._changed:
                    living: dict[Any, _Worker] = {w.connection: w for w in self._workers if w.alive}
                for ready in wait([*living, self._woken]):
                    if ready is self._woken:
                        if self._woken.recv_bytes() == b"close":
                            return
                        continue
                    with self._changed:
                        self._hear(living[ready])
                        self._feed()
                        self._changed.notify_all()
        except BaseException as error:  # reported to the main thread, which would otherwise wait forever
            with self._changed:
                self._broken = error
                self._changed.notify_all()

    def _hear(self, worker: _Worker) -> None:
        """Receive a worker's reply: the outcome of its job, or a failure, after which the job may be repeated."""
        task, worker.task = worker.task, None
        try:
            reply = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            worker.alive = False
            reply = {"failed": "its worker process died"}
        if task is None:
            return
        if "failed" not in reply:
            result = worker.rows.result
            task.outcome = Update(task.job, result.vector.clone(), result.buffers.clone(), **reply)
            return
        begun = bool(worker.rows.begun)
        task.failures += begun
        task.handed_back += not begun  # the worker died before it began
        if reply.get("final"):
            task.outcome = FeddleError(reply["failed"])
        elif task.failures < _ATTEMPTS and task.handed_back < _HANDED_BACK:
            insort(self._pending, task, key=attrgetter("due"))
        else:
            task.outcome = StoppedError(
                f"training client {task.job.client} (its job {task.job.number}, from version {task.job.version}) "
                f"failed {max(task.failures, task.handed_back)} times: {reply['failed']}"
            )

    def _fork(self) -> _Worker:
        rows = _Rows.like(self.model)
        ours, theirs = multiprocessing.Pipe()
        others = [w.connection for w in self._workers if w.alive]
        context = multiprocessing.get_context("fork")
        arguments = (self.work, theirs, [ours, *others], rows)
        process = context.Process(target=_serve, args=arguments, daemon=True, name="feddle-worker")
        with warnings.catch_warnings():  # about forks in a process with threads; our thread holds no lock
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return _Worker(process, ours, rows)


def _serve(work: Work, connection: Connection, others: list[Connection], rows: _Rows) -> None:
    """Train the jobs that arrive over the connection until the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler: a worker has nothing to clean up
    os.nice(_NICENESS)
    for other in others:  # with an open copy, the worker would not notice the end of the parent
        other.close()
    with one_thread(), suppress(EOFError, OSError):
        while True:
            reply = _train(work, Job(*json.loads(connection.recv_bytes())), rows)
            connection.send_bytes(json.dumps(reply).encode())


def _train(work: Work, job: Job, rows: _Rows) -> dict[str, Any]:
    rows.begun.fill_(1)
    try:
        update = work(job, rows.start)
    except FeddleError as error:
        return {"failed": str(error), "final": True}
    except Exception as error:  # anything that a user's data set or model raises is reported
        return {"failed": f"{type(error).__name__}: {error}"}
    rows.result.vector.copy_(update.delta)
    rows.result.buffers.copy_(update.buffers)
    return {"num_examples": update.num_examples, "metrics": dict(update.metrics), "digest": update.digest}
