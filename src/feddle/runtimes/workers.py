"""Training ahead of time in worker processes.

The start of a job is known long before its update is due, so workers train while the server searches. The parent keeps
the order of the jobs. Each worker has a thread in the parent that gives it one job after another, and shared memory for
the weights that a job starts from and for its result. Workers are forked, so they share the data and the model with the
parent: nothing is copied or pickled.
"""

import json
import mmap
import multiprocessing
import os
import signal
import threading
import warnings
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Self

import torch

from feddle.clients.work import Work
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.options import Options
from feddle.runtimes.backlog import Backlog, Failed, Fault, Task, attempt
from feddle.training.machine import one_thread

NICENESS = 5  # with one worker per core, the server must have priority: a round waits for it


class LocalOptions(Options):
    """Worker processes on this machine."""

    name: Literal["local"] = "local"


@dataclass(eq=False)
class _Worker:
    """A worker process, and the memory that it shares: the start of its job, the result, and whether it has begun."""

    process: BaseProcess
    connection: Connection
    start: Weights
    result: Weights
    begun: mmap.mmap


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
        self._changed = threading.Condition()  # guards everything below
        self._workers: list[_Worker] = []  # those that are alive
        self._threads: list[threading.Thread] = []
        self._backlog = Backlog(horizon, ahead)
        self._open = False

    def __enter__(self) -> Self:
        self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            workers, self._workers, self._open = self._workers, [], False
            self._changed.notify_all()
        for worker in workers:
            worker.process.kill()
            worker.process.join()
        for thread in self._threads:
            thread.join()

    def submit(self, job: Job, start: Weights, due: int) -> None:
        """Announce a job; an idle worker begins it at once."""
        with self._changed:
            self._backlog.add(job, start, due)
            self._fork_missing()
            self._changed.notify_all()

    def result(self, job: Job) -> Update:
        """The job's update; waits until it is ready."""
        with self._changed:
            task = self._backlog.want(job)
            self._changed.notify_all()
            while task.outcome is None:
                self._fork_missing()
                self._changed.wait()
            self._backlog.wanted = None
        if isinstance(task.outcome, BaseException):
            raise task.outcome
        return task.outcome

    def _fork_missing(self) -> None:
        """Start workers until there are enough; only in the main thread, so that the fork interrupts no torch call."""
        while self._open and len(self._workers) < self.size:  # a resumed run submits jobs before it enters the context
            ours, theirs = multiprocessing.Pipe()
            memory = (_shared(self.model), _shared(self.model), mmap.mmap(-1, 1))
            parents = [ours, *(worker.connection for worker in self._workers)]
            arguments = (self.work, theirs, parents, *memory)
            context = multiprocessing.get_context("fork")
            process = context.Process(target=_serve, args=arguments, daemon=True, name="feddle-worker")
            with warnings.catch_warnings():  # about forks in a process with threads; ours hold no lock
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours, *memory))
            self._threads.append(threading.Thread(target=self._drive, args=self._workers[-1:], daemon=True))
            self._threads[-1].start()

    def _drive(self, worker: _Worker) -> None:
        """Give a worker one job after another as long as it lives, while the main thread does the server's work."""
        while (task := self._take(worker)) is not None:
            try:
                worker.connection.send_bytes(json.dumps(astuple(task.job)).encode())
                reply = json.loads(worker.connection.recv_bytes())
            except (EOFError, OSError):
                reply = None
            with self._changed:
                try:
                    self._hear(worker, task, reply)
                except BaseException as error:  # raised in the main thread, which would otherwise wait forever
                    task.outcome = error
                self._changed.notify_all()
        worker.connection.close()

    def _take(self, worker: _Worker) -> Task | None:
        """Wait for the worker's next job, and copy its start; None if the worker is dead or the pool is closed."""
        with self._changed:
            task = self._changed.wait_for(lambda: worker not in self._workers or self._backlog.next())
            if not isinstance(task, Task):
                return None
            self._backlog.pending.remove(task)
            worker.start.vector.copy_(task.start.vector)
            worker.start.buffers.copy_(task.start.buffers)
            worker.begun[0] = False
            return task

    def _hear(self, worker: _Worker, task: Task, reply: dict[str, Any] | None) -> None:
        """Note the outcome of a job, or a failure, after which it may be repeated; a dead worker gives no reply."""
        if reply is None:
            self._workers = [other for other in self._workers if other is not worker]
            reply = asdict(Failed("its worker process died"))
        if "reason" in reply:
            self._backlog.fail(task, Failed(**reply), Fault.TRAINING if worker.begun[0] else Fault.NOT_BEGUN)
        else:
            result = worker.result
            task.outcome = Update(task.job, result.vector.clone(), result.buffers.clone(), **reply)


def _shared(model: Weights) -> Weights:
    """Memory for weights of this size that forked processes share."""
    memory = torch.frombuffer(mmap.mmap(-1, model.num_bytes), dtype=torch.float32)
    return Weights(memory[: len(model.vector)], memory[len(model.vector) :])


def _serve(
    work: Work, connection: Connection, parents: list[Connection], start: Weights, result: Weights, begun: mmap.mmap
) -> None:
    """Train the jobs that arrive over the connection until the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler: a worker has nothing to clean up
    os.nice(NICENESS)
    for parent in parents:  # with an open copy, the worker would not notice the end of the parent
        parent.close()
    with one_thread(), suppress(EOFError, OSError):
        while True:
            job = Job(*json.loads(connection.recv_bytes()))
            begun[0] = True
            connection.send_bytes(json.dumps(_train(work, job, start, result)).encode())


def _train(work: Work, job: Job, start: Weights, result: Weights) -> dict[str, Any]:
    update = attempt(work, job, start)
    if isinstance(update, Failed):
        return asdict(update)
    result.vector.copy_(update.delta)
    result.buffers.copy_(update.buffers)
    return {"num_examples": update.num_examples, "metrics": dict(update.metrics), "digest": update.digest}
