"""Training ahead of time on a Ray cluster.

Each worker is an actor with one torch thread. The data is one object in the store of each node, and so is each version
of the model that a job starts from. A thread of the driver hands out the jobs and copies their results out of the
store at once, so that a node that is lost takes no finished update with it.
"""

import logging
import os
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError, one_line
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.options import NonNegative, Options, Positive
from feddle.runtimes.actor import RayWorker, versions
from feddle.runtimes.backlog import Backlog, Failed, Fault, Task
from feddle.runtimes.cluster import (
    Head,
    Node,
    StoreNeed,
    count_workers,
    counted,
    join,
    load_ray,
    nodes_of,
    require_reachable,
    require_store,
    started,
    store_size,
)
from feddle.runtimes.packing import pack

_STARTS = 10  # workers in a row that may die before they are ready
_PATIENCE = 120.0  # seconds in which a cluster must start a worker
_SENT = ("FEDDLE_KERNELS", "ONEDNN_MAX_CPU_ISA")  # environment variables; no others are sent to the workers
_log = logging.getLogger(__name__)


class RayOptions(Options):
    """Workers on a Ray cluster; requires `feddle[ray]`."""

    name: Literal["ray"] = "ray"
    address: str | None = Field(
        None,
        description="`host:port` of a running cluster (`ray start --head`); by default Ray is started on this machine, "
        "reachable from this machine only",
    )
    cpus: Positive = Field(1.0, le=1024, description="CPUs that a worker reserves; it computes with one thread")
    gpus: NonNegative = Field(
        0.0,
        le=64,
        description="GPUs that a worker reserves; with 0.25, four workers share one; 0: workers train on the CPU",
    )

    @field_validator("gpus")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(f"expected a share of one GPU or a whole number, got {value}")
        return value

    @field_validator("address")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is None:
            return None
        host, _, port = value.rpartition(":")
        if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"expected host:port, such as 10.0.0.1:6379, got {value!r}")
        return value


@dataclass(eq=False)
class _Actor:
    """An actor: starting if it is not ready, busy if it has a task, else idle."""

    handle: Any
    is_ready: bool = False
    task: Task | None = None


@dataclass(eq=False)
class _Version:
    """A version of the model in the object store, and the number of jobs that need it."""

    jobs: int = 0
    refs: tuple[Any, ...] = ()


class RayPool:
    """Trains jobs on a Ray cluster, in the order in which the jobs are due.

    The updates are bit-identical to those of `WorkerPool` if the nodes are machines of the same kind. A worker that is
    lost is replaced as soon as the cluster has room for it, and its job is repeated. `versions` is the largest number
    of versions of the model that jobs may need at a time.
    """

    def __init__(
        self,
        work: Work,
        model: nn.Module,
        weights: Weights,
        options: RayOptions,
        workers: int | None,
        *,
        cores: int,
        horizon: int,
        ahead: int,
        versions: int,
    ) -> None:
        self.parts = (work, model)
        self.options, self.workers, self.cores = options, workers, cores
        self._offered = (workers or 0) * options.cpus or cores  # CPUs of a cluster that is started here
        self.size, self.version_count = weights.num_bytes, versions
        self._ray: Any = load_ray()
        self._check()
        self._changed = threading.Condition()  # guards everything below
        self._backlog = Backlog(horizon, ahead)
        self._versions: dict[int, _Version] = {}
        self._actors: list[_Actor] = []
        self._calls: dict[Any, _Actor] = {}  # by the reference to their result
        self._failed_starts = 0
        self._none_ready_since = 0.0
        self._broken: BaseException | None = None
        self._open = False
        self._packed: Any = None  # reference to the work, the model and the data
        self._head: Head
        self._kind: Any  # the actor class
        self._stack = ExitStack()

    def _check(self) -> None:
        """Report errors that can be detected before the run begins and writes files."""
        if self.options.address is not None:
            require_reachable(self.options.address)
        elif not self._ray.is_initialized():
            here = Node("this machine", self._offered, torch.cuda.device_count(), 0)
            count_workers([here], self.workers, self.options.cpus, self.options.gpus)

    def __enter__(self) -> Self:
        packed = pack(self.parts)
        with ExitStack() as stack:
            count = self._connect(stack, packed.num_bytes)
            self._packed = self._ray.put((packed.content, list(packed.arrays)))
            self.workers, self._open = count, True
            self._backlog.ahead = max(2 * count, self._backlog.ahead)
            self._none_ready_since = time.monotonic()
            self._thread = threading.Thread(target=self._drive, name="feddle-ray", daemon=True)
            self._thread.start()
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _connect(self, stack: ExitStack, data: int) -> int:
        """Join the cluster or start one; returns the number of workers."""
        cpus, gpus, address = self.options.cpus, self.options.gpus, self.options.address
        asked = self.workers or int(self.cores / cpus)
        if address is not None:
            was = self._ray.is_initialized()
            join(address)
            if not was:
                stack.callback(self._ray.shutdown)
        elif not self._ray.is_initialized():  # else the caller's own cluster is used
            stack.enter_context(started(self._offered, store_size(self._need(data, asked))))
        self._head, self._kind = Head(), self._ray.remote(RayWorker)  # a class is sent once
        nodes = nodes_of(self._ray.nodes())
        count = count_workers(nodes, self.workers, cpus, gpus)
        need = self._need(data, count)
        require_store(nodes, need, cpus, gpus)
        # a warning, because Python does not show lower levels by default
        where = f"{counted(count, 'worker')} on {counted(len(nodes), 'node')}"
        _log.warning("ray: %s; the object store of a node needs up to %s", where, need)
        return count

    def _need(self, data: int, workers: int) -> StoreNeed:
        # a worker may finish its next job before the driver has copied the last result
        return StoreNeed(data, self.version_count * self.size, 2 * workers * self.size)

    def _close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._thread.join()
        for actor in self._actors:
            self._ray.kill(actor.handle)
        self._actors, self._calls, self._versions, self._packed = [], {}, {}, None

    def submit(self, job: Job, start: Weights, due: int) -> None:
        """Announce a job; an idle worker begins it at once."""
        with self._changed:
            self._backlog.add(job, start, due)
            self._versions.setdefault(job.version, _Version()).jobs += 1
            self._changed.notify_all()

    def result(self, job: Job) -> Update:
        """The job's update; waits until it is ready."""
        with self._changed:
            task = self._backlog.want(job)
            self._changed.notify_all()
            self._changed.wait_for(lambda: task.outcome or self._broken)
            self._backlog.wanted = None
            outcome = task.outcome or self._broken
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        return outcome

    def _drive(self) -> None:
        """Hand out jobs and collect results, while the main thread does the server's work."""
        try:
            while self._open:
                self._collect(self._hand_out())
                self._head.require()
        except BaseException as error:  # raised in the main thread, which would otherwise wait forever
            with self._changed:
                self._broken = error
                self._changed.notify_all()

    def _hand_out(self) -> float:
        """Start missing workers and give jobs to idle ones; returns how long to wait for the next result."""
        with self._changed:
            missing = (self.workers or 0) - len(self._actors)
            if missing and self._head.answers():  # Ray would wait for a head that is lost
                self._actors += [self._start() for _ in range(missing)]
            idle = [actor for actor in self._actors if actor.is_ready and actor.task is None]
            while idle and (task := self._backlog.next()):
                self._backlog.pending.remove(task)
                self._give(idle.pop(), task)
            if not self._calls:
                self._changed.wait(0.5)
            return 0.02 if idle else 0.5  # an idle one begins a job soon after it is announced

    def _start(self) -> _Actor:
        env = {name: os.environ[name] for name in _SENT if name in os.environ}
        options: dict[str, Any] = {
            "num_cpus": self.options.cpus,
            "num_gpus": self.options.gpus,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
            **({"runtime_env": {"env_vars": env}} if env else {}),
        }
        kind = self._kind.options(**options)
        actor = _Actor(kind.remote("cuda" if self.options.gpus else "cpu", (str(Path.cwd()), sys.path), self._packed))
        self._calls[actor.handle.versions.remote()] = actor
        return actor

    def _give(self, actor: _Actor, task: Task) -> None:
        held = self._versions[task.job.version]
        if not held.refs:
            held.refs = tuple(self._ray.put(part.cpu().numpy()) for part in (task.start.vector, task.start.buffers))
        actor.task = task
        self._calls[actor.handle.train.remote(astuple(task.job), *held.refs)] = actor

    def _collect(self, wait: float) -> None:
        """Wait for a result, and note it."""
        ready, _ = self._ray.wait(list(self._calls), timeout=wait) if self._calls else ([], None)
        for ref in ready:
            reply: Any
            try:
                reply = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                reply = error
            with self._changed:
                actor = self._calls.pop(ref)
                self._hear(actor, reply)
                self._changed.notify_all()
        with self._changed:
            self._require_workers()

    def _hear(self, actor: _Actor, reply: Any) -> None:
        """Note the reply of an actor: its versions, an update, why there is none, or how it was lost."""
        task, actor.task = actor.task, None
        lost = isinstance(reply, self._ray.exceptions.RayError)
        if lost:
            self._actors.remove(actor)
            with suppress(Exception):  # it may be alive if only its result was lost
                self._ray.kill(actor.handle)
        if task is None:
            self._hear_start(actor, reply)
            return
        if lost:
            self._backlog.fail(task, Failed(f"its worker was lost ({_reason(reply)})"), Fault.LOST)
        elif isinstance(reply, Failed):
            self._backlog.fail(task, reply, Fault.TRAINING)
        else:
            facts, delta, buffers = reply
            device = task.start.vector.device
            task.outcome = Update(task.job, _owned(delta, device), _owned(buffers, device), **facts)
        if task.outcome is not None:
            self._release(task.job.version)

    def _hear_start(self, actor: _Actor, reply: Any) -> None:
        if isinstance(reply, dict):
            for name, value in versions().items():
                if reply[name] != value:
                    raise FeddleError(
                        f"executor: a node has {name} {reply[name]}, this machine has {value}; install the same on both"
                    )
            actor.is_ready, self._failed_starts = True, 0
            return
        self._failed_starts += 1
        if "ModuleNotFoundError" in str(reply) or "ImportError" in str(reply):
            raise FeddleError(
                f"executor: a node cannot import what the run needs ({_reason(reply)}); install it on every node"
            )
        if self._failed_starts == _STARTS:
            raise StoppedError(f"executor: {_STARTS} Ray workers in a row could not start ({_reason(reply)})")

    def _release(self, version: int) -> None:
        """Free a version that no job needs any more; Ray does so when its last reference is gone."""
        held = self._versions[version]
        held.jobs -= 1
        if not held.jobs:
            del self._versions[version]

    def _require_workers(self) -> None:
        """Stop waiting for a cluster that does not start a single worker."""
        if any(actor.is_ready for actor in self._actors):
            self._none_ready_since = time.monotonic()
        if time.monotonic() - self._none_ready_since > _PATIENCE:
            has, free = self._ray.cluster_resources(), self._ray.available_resources()
            each = [f"{free.get(kind, 0):g} of {has.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU")]
            found = f"{' and '.join(each)} are free"
            raise StoppedError(
                f"executor: the cluster has started no worker for {_PATIENCE:g} seconds ({found}, a worker needs "
                f"{self.options.cpus:g} and {self.options.gpus:g}); wait for other jobs on it, or add nodes"
            )


def _owned(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy outside of the object store."""
    return torch.from_numpy(array.copy()).to(device)


def _reason(error: Exception) -> str:
    """The last line of Ray's error that is informative."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__, 200)
