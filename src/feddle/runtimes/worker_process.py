"""A worker process: trains jobs until its parent has ended."""

import json
import mmap
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from feddle.clients.work import Work
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job
from feddle.training.machine import one_thread

_NICENESS = 5  # with one worker per core, the server must have priority: a round waits for it


@dataclass(frozen=True, eq=False)
class Rows:
    """Memory that a worker shares with its parent: the start of a job, its result, and whether the job has begun."""

    start: Weights
    result: Weights
    begun: Tensor

    @classmethod
    def like(cls, model: Weights) -> "Rows":
        """Rows for the weights of this model."""
        d, b = len(model.vector), len(model.buffers)
        memory = torch.frombuffer(mmap.mmap(-1, 4 * (2 * (d + b) + 1)), dtype=torch.float32)
        start, result = memory[: d + b], memory[d + b : -1]
        return cls(Weights(start[:d], start[d:]), Weights(result[:d], result[d:]), memory[-1:])


def serve(work: Work, connection: Connection, others: list[Connection], rows: Rows) -> None:
    """Train the jobs that arrive over the connection until the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler: a worker has nothing to clean up
    os.nice(_NICENESS)
    for other in others:  # with an open copy, the worker would not notice the end of the parent
        other.close()
    with one_thread():
        while True:
            try:
                reply = _train(work, Job(*json.loads(connection.recv_bytes())), rows)
                connection.send_bytes(json.dumps(reply).encode())
            except (EOFError, OSError):
                return


def _train(work: Work, job: Job, rows: Rows) -> dict[str, Any]:
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
