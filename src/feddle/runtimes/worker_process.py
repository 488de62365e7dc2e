"""A worker process: trains jobs and computes shards of a search until its parent is gone."""

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
from feddle.core.search import Objective
from feddle.training.machine import one_thread

_BEHIND = 5  # in niceness: with a worker a core the server makes one too many, and a round waits for the server


@dataclass(frozen=True, eq=False)
class Rows:
    """Memory that a worker shares with the parent: where it starts, what came of it, and whether it began."""

    start: Weights
    result: Weights
    begun: Tensor

    @classmethod
    def like(cls, model: Weights) -> "Rows":
        """Rows for such a model."""
        d, b = len(model.vector), len(model.buffers)
        memory = torch.frombuffer(mmap.mmap(-1, 4 * (2 * (d + b) + 1)), dtype=torch.float32)
        start, result = memory[: d + b], memory[d + b : -1]
        return cls(Weights(start[:d], start[d:]), Weights(result[:d], result[d:]), memory[-1:])


def serve(
    work: Work, objective: Objective | None, connection: Connection, others: list[Connection], rows: Rows
) -> None:
    """A worker's life: do what comes until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent made of it: a worker has nothing to tidy
    os.nice(_BEHIND)
    for other in others:  # else a dead parent would not be noticed
        other.close()
    with one_thread():
        while True:
            try:
                asked = json.loads(connection.recv_bytes())
                if "job" in asked:
                    reply = _train(work, Job(*asked["job"]), rows)
                else:
                    assert objective is not None
                    reply = _differentiate(objective, torch.tensor(asked["examples"]), rows)
                connection.send_bytes(json.dumps(reply).encode())
            except (EOFError, OSError):
                return


def _differentiate(objective: Objective, examples: Tensor, rows: Rows) -> dict[str, Any]:
    try:
        loss, gradient = objective.loss_and_gradient(rows.start, examples)
    except Exception as error:  # the parent tries it too, and tells
        return {"failed": f"{type(error).__name__}: {error}"}
    rows.result.vector.copy_(gradient)
    return {"loss": loss}


def _train(work: Work, job: Job, rows: Rows) -> dict[str, Any]:
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
