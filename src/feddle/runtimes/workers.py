"""Training ahead of time in worker processes.

A job's start is known long before its update is due, so workers train while the server searches; one that has no job
helps with the search. The parent keeps the order of the jobs; a worker has two rows of shared memory, one for the
model that it starts from and one for its result. Data and model come with the fork: nothing is copied or pickled.
"""

import json
import multiprocessing
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from heapq import heappop, heappush
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.core.search import Objective
from feddle.runtimes.worker_process import Rows, serve
from feddle.training.objectives import TaskObjective

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


@dataclass(eq=False)
class _Shard:
    """A part of a pass over the server's data that a worker was given; `failed` ones are done by the parent."""

    examples: Tensor
    outcome: tuple[float, Tensor] | None = None
    failed: bool = False


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    rows: Rows
    task: _Task | _Shard | None = None
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
        self.objective: Objective | None = None  # whose shards idle workers compute; set before the workers are forked
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

    def share(self, point: Weights, batches: Sequence[Tensor]) -> list[tuple[float, Tensor]]:
        """The objective's loss and gradient for each batch, in order: from this process and from idle workers.

        This process begins with the first batch, workers with the last; who computes what does not change the bits.
        """
        assert self.objective is not None
        shards = [_Shard(examples) for examples in batches]
        waiting = deque(shards)
        while waiting:
            self._give_shards(waiting, point)
            if waiting:
                shard = waiting.popleft()
                shard.outcome = self.objective.loss_and_gradient(point, shard.examples)
        with self._changed:
            while any(s.outcome is None and not s.failed for s in shards) and self._broken is None:
                self._changed.wait()
        return [s.outcome or self.objective.loss_and_gradient(point, s.examples) for s in shards]

    def _give_shards(self, waiting: deque[_Shard], point: Weights) -> None:
        with self._changed:
            for worker in self._workers:
                if waiting and worker.alive and worker.task is None:
                    worker.task = shard = waiting.pop()
                    self._start(worker, point, {"examples": shard.examples.tolist()})

    def _start(self, worker: _Worker, at: Weights, message: dict[str, Any]) -> None:
        worker.rows.start.vector.copy_(at.vector)
        worker.rows.start.buffers.copy_(at.buffers)
        worker.rows.begun.zero_()
        try:
            worker.connection.send_bytes(json.dumps(message).encode())
        except OSError:  # it has just died; the listener sees that too, and its work is done again
            return

    def _feed(self) -> None:
        """Give idle workers the next jobs."""
        for worker in self._workers:
            if worker.task is None and worker.alive and (task := self._next()) is not None:
                worker.task = task
                self._start(worker, task.start, {"job": astuple(task.job)})

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
        if isinstance(task, _Shard):
            task.failed = "failed" in reply
            task.outcome = None if task.failed else (reply["loss"], worker.rows.result.vector.clone())
        elif "failed" not in reply:
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
            task.outcome = StoppedError(
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
        rows = Rows.like(self.model)
        ours, theirs = multiprocessing.Pipe()
        others = [w.connection for w in self._workers if w.alive]
        context = multiprocessing.get_context("fork")
        arguments = (self.work, self.objective, theirs, [ours, *others], rows)
        process = context.Process(target=serve, args=arguments, daemon=True, name="feddle-worker")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside a thread: ours holds no lock
            process.start()
        theirs.close()
        return _Worker(process, ours, rows)


class SharedObjective:
    """An objective whose passes over all of the server's data are shared with workers that have nothing else to do.

    A worker has the objective as it was when the worker was forked: so one that keeps nothing from search to search.
    """

    def __init__(self, objective: TaskObjective, pool: WorkerPool) -> None:
        self.objective = objective
        pool.objective = objective
        self.begin = objective.begin
        self.loss_and_gradient = objective.loss_and_gradient
        self.state_dict = objective.state_dict
        self.load_state_dict = objective.load_state_dict
        self.each = pool.share

    def __len__(self) -> int:
        return len(self.objective)
