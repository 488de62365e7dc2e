"""Training ahead of time in worker processes.

A job's start is known long before its update is due, so workers train while the server searches. The parent keeps the
order of the jobs; a worker has two rows of shared memory, one for the model that it starts from and one for its
result. Data and model come with the fork: nothing is copied or pickled.
"""

import json
import mmap
import multiprocessing
import signal
import threading
import warnings
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.learning.machine import one_thread
from feddle.runtimes.trainers import Work

_ATTEMPTS = 2
_HANDED_BACK = 10  # deaths before a job even began: it is not the job's fault, but something is very wrong


@dataclass(eq=False)
class _Task:
    """A job on its way; `outcome` is set when it is done, or has failed for good."""

    job: Job
    start: Weights
    order: tuple[int, int]  # the round it is due in, then the order of dispatch
    pending: bool = True
    failures: int = 0
    handed_back: int = 0
    outcome: Update | FeddleError | None = None


@dataclass(frozen=True, eq=False)
class _Rows:
    """Memory that a worker shares with the parent: where it starts, what came of it, and whether it began."""

    start: Weights
    result: Weights
    begun: Tensor

    @classmethod
    def like(cls, model: Weights) -> "_Rows":
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
    """Trains jobs in `workers` processes of one torch thread each, in order of arrival time.

    The updates are the same bits as those of `InlineTrainer`. At most `ahead` finished updates wait in memory. Jobs
    due in round `horizon` or later are not trained: the run ends before. A worker that dies is replaced and its job
    done again; a job that fails twice ends the run.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """See `Trainer`."""
        with self._changed:
            task = self._tasks[job] = _Task(job, start, (due, next(self._counter)))
            heappush(self._pending, (task.order, task))
            self._mend()
            self._feed()

    def result(self, job: Job) -> Update:
        """See `Trainer`."""
        with self._changed:
            task = self._wanted = self._tasks.pop(job)
            self._mend()
            self._feed()
            while task.outcome is None:
                if self._broken is not None:  # looked at before each wait: it may have failed before the first
                    raise RuntimeError("the thread that listens to the workers failed") from self._broken
                self._changed.wait()
                self._mend()
                self._feed()
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
                self._send(worker, task.job)

    def _next(self) -> _Task | None:
        """What is wanted now, else what is due first, if there is room for its update."""
        task = self._wanted if self._wanted is not None and self._wanted.pending else self._due_first()
        if task is not None:
            task.pending = False
        return task

    def _due_first(self) -> _Task | None:
        while self._pending and not self._pending[0][1].pending:
            heappop(self._pending)  # it was wanted before its turn
        waiting = sum(t.outcome is not None for t in self._tasks.values())
        if not self._pending or self._pending[0][1].order[0] >= self.horizon or waiting >= self.ahead:
            return None
        return heappop(self._pending)[1]

    @staticmethod
    def _send(worker: _Worker, job: Job) -> None:
        try:
            worker.connection.send_bytes(json.dumps([job.client, job.number, job.version]).encode())
        except OSError:  # it has just died; the listener sees that too, and its job is done again
            return

    def _listen(self) -> None:
        """Take in what workers report, while the main thread does the server's work."""
        try:
            while not self._closing:
                self._listen_once()
        except BaseException as error:  # told to the main thread, which would else wait for ever
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
            delta, buffers = result.vector.clone(), result.buffers.clone()
            task.outcome = Update(task.job, delta, buffers, reply["examples"], reply["metrics"], reply["digest"])
        elif reply.get("final"):
            task.outcome = FeddleError(reply["failed"])
        else:
            begun = bool(worker.rows.begun)
            task.failures += begun
            task.handed_back += not begun  # the worker was dead already
            self._again(task, reply["failed"])

    def _again(self, task: _Task, reason: str) -> None:
        if task.failures < _ATTEMPTS and task.handed_back < _HANDED_BACK:
            task.pending = True
            heappush(self._pending, (task.order, task))
        else:
            task.outcome = FeddleError(
                f"training client {task.job.client} (its job {task.job.number}, from version {task.job.version}) "
                f"failed {max(task.failures, task.handed_back)} times: {reason}"
            )

    def _mend(self) -> None:
        """Replace dead workers; in the main thread, which is then in no torch call that a fork could tear."""
        dead = [i for i, w in enumerate(self._workers) if not w.alive]
        for i in dead:
            self._workers[i].process.join()
            self._workers[i].connection.close()
            self._workers[i] = self._fork()
        if dead:
            self._wake.send_bytes(b"listen anew")

    def _fork(self) -> _Worker:
        rows = _Rows.like(self.model)
        ours, theirs = multiprocessing.Pipe()
        others = [w.connection for w in self._workers if w.alive]
        context = multiprocessing.get_context("fork")
        arguments = (self.work, theirs, [ours, *others], rows)
        process = context.Process(target=_serve, args=arguments, daemon=True, name="feddle-worker")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread: ours holds no lock
            process.start()
        theirs.close()
        return _Worker(process, ours, rows)


def _serve(work: Work, connection: Connection, others: list[Connection], rows: _Rows) -> None:
    """A worker's life: train what comes until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    for other in others:  # else a dead parent would not be noticed
        other.close()
    with one_thread():
        while True:
            try:
                job = Job(*json.loads(connection.recv_bytes()))
                connection.send_bytes(json.dumps(_train(work, job, rows)).encode())
            except (EOFError, OSError):
                return


def _train(work: Work, job: Job, rows: _Rows) -> dict[str, Any]:
    rows.begun.fill_(1)
    try:
        update = work(job, rows.start)
    except FeddleError as error:
        return {"failed": str(error), "final": True}
    except Exception as error:  # whatever a user's data set or model may raise is reported, not lost
        return {"failed": f"{type(error).__name__}: {error}"}
    rows.result.vector.copy_(update.delta)
    rows.result.buffers.copy_(update.buffers)
    return {"examples": update.num_examples, "metrics": dict(update.metrics), "digest": update.digest}
