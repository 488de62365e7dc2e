"""The Ray cluster of a run: connecting to it, and whether the run fits into it."""

import math
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from feddle.core.errors import FeddleError, StoppedError, one_line
from feddle.runtimes.workers import NICENESS

_MEMORY = Path("/dev/shm")  # noqa: S108  # where Ray keeps its objects
_SMALLEST_STORE = 128 << 20
_REACH = 10.0  # seconds in which a cluster must answer
_LOOK = 5.0  # seconds between two checks of the head of a cluster
_GONE = 25.0  # seconds without an answer of the head; after 60, Ray would end this process
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # preface, empty settings


@dataclass(frozen=True)
class Node:
    """The resources of a node of the cluster."""

    name: str
    cpus: float
    gpus: float
    store: int  # bytes of its object store

    def room(self, cpus: float, gpus: float) -> int:
        """The number of workers that fit, if each needs these CPUs and GPUs."""
        of_cpus = math.floor(self.cpus / cpus + 1e-9)
        return min(of_cpus, math.floor(self.gpus / gpus + 1e-9)) if gpus else of_cpus


@dataclass(frozen=True)
class StoreNeed:
    """The bytes that a run keeps in the object store of a node."""

    data: int  # with the model
    versions: int
    results: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.data + self.versions + self.results

    def __str__(self) -> str:
        parts = {"data": self.data, "versions": self.versions, "results": self.results}
        return f"{_mb(self.total)} ({', '.join(f'{name} {_mb(size)}' for name, size in parts.items())})"


def load_ray() -> ModuleType:
    """The module `ray`, which is optional."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no usage statistics; read when Ray is started
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise FeddleError(
            f"executor: ray needs the package ray ({one_line(str(error))}); pip install 'feddle[ray]'"
        ) from error
    return ray


def require_reachable(address: str) -> None:
    """Refuse an address at which no cluster answers."""
    if fault := _fault_of(address):
        raise FeddleError(
            f"executor.address: expected a Ray cluster at {address}, but {fault}; correct it, or start one: "
            "ray start --head"
        )


class Head:
    """The head of the cluster that this process is connected to. Without it, Ray waits, and then ends this process."""

    def __init__(self) -> None:
        self.address: str = load_ray().get_runtime_context().gcs_address
        self._looked = self._answered = time.monotonic()

    def answers(self) -> bool:
        """Whether the head answers now. It stops the run if the head has not answered for long."""
        fault = _fault_of(self.address)
        self._looked = time.monotonic()
        if not fault:
            self._answered = self._looked
        elif self._looked - self._answered > _GONE:
            raise StoppedError(
                f"executor: the head of the Ray cluster at {self.address} is lost ({fault}); start the cluster again"
            )
        return not fault

    def require(self) -> None:
        """Stop if the head has not answered for long; it is asked every few seconds, however often this is called."""
        if time.monotonic() - self._looked > _LOOK:
            self.answers()


def join(address: str) -> None:
    """Connect to a running cluster. Ray itself would wait for minutes and then end the process."""
    ray = load_ray()
    if ray.is_initialized():
        if ray.get_runtime_context().gcs_address != address:
            found = ray.get_runtime_context().gcs_address
            raise FeddleError(
                f"executor.address is {address}, but this process is connected to {found}; call ray.shutdown() first"
            )
        return
    require_reachable(address)
    with _own_signals(), _loopback(ray, address.startswith(("127.0.0.1:", "localhost:"))):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except Exception as error:  # another version of Ray or Python, or no node of the cluster on this machine
            reason = one_line(" ".join(str(error).split()).rstrip("."))
            raise FeddleError(
                f"executor.address: cannot join the cluster at {address} ({reason}); run feddle on one of its nodes, "
                "with the same versions of Python and Ray"
            ) from error


@contextmanager
def started(cpus: float, store: int) -> Iterator[None]:
    """A Ray cluster on this machine only, with an object store of this size in bytes."""
    ray = load_ray()
    free = shutil.disk_usage(_MEMORY).free if _MEMORY.exists() else store
    if free < store:
        raise FeddleError(
            f"executor: ray needs {_mb(store)} of shared memory, but {_MEMORY} has {_mb(free)} free; "
            f"enlarge it (docker run --shm-size={store}), or use executor: local"
        )
    # a short path: the names of Ray's sockets may have 107 bytes
    with tempfile.TemporaryDirectory(prefix="feddle-ray-", ignore_cleanup_errors=True) as folder:
        with _own_signals(), _loopback(ray, True):
            try:
                ray.init(
                    address="local",
                    num_cpus=math.ceil(cpus),
                    object_store_memory=store,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="error",
                    _temp_dir=folder,
                    _system_config={"worker_niceness": NICENESS},
                )
            except Exception as error:
                raise FeddleError(f"executor: ray does not start ({one_line(' '.join(str(error).split()))})") from error
        try:
            if (address := ray.util.get_node_ip_address()) != "127.0.0.1":
                raise FeddleError(
                    f"executor: this version of Ray ({ray.__version__}) listens on {address}; use another"
                )
            yield
        finally:
            ray.shutdown()


def store_size(need: StoreNeed) -> int:
    """The size of an object store for a run, with room for Ray's own objects and for gaps between them."""
    return max(_SMALLEST_STORE, math.ceil(1.25 * need.total) + (32 << 20))


def nodes_of(listed: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The nodes that are alive, from `ray.nodes()`."""
    found = [(each["NodeManagerAddress"], each["Resources"]) for each in listed if each["Alive"]]
    return [
        Node(name, has.get("CPU", 0), has.get("GPU", 0), int(has.get("object_store_memory", 0))) for name, has in found
    ]


def count_workers(nodes: Sequence[Node], workers: int | None, cpus: float, gpus: float) -> int:
    """The number of workers on the cluster: as many as fit, or as many as the user asks for."""
    room = sum(node.room(cpus, gpus) for node in nodes)
    if room and (workers or 0) <= room:
        return workers or room
    cpu_count, gpu_count = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    has = f"{cpu_count:g} CPUs and {gpu_count:g} GPUs on {counted(len(nodes), 'node')}"
    need = f"{counted(workers or 1, 'worker')} with {cpus:g} CPUs and {gpus:g} GPUs each"
    remedy = f"set workers to {room}" if room else "lower executor.cpus or executor.gpus"
    raise FeddleError(
        f"executor: the run needs {need}, but the cluster has {has}, room for {room}; {remedy}, or add nodes"
    )


def require_store(nodes: Sequence[Node], need: StoreNeed, cpus: float, gpus: float) -> None:
    """Refuse a cluster whose nodes cannot hold the objects of the run."""
    for node in nodes:
        if node.room(cpus, gpus) and node.store < need.total:
            raise FeddleError(
                f"executor: the object store of node {node.name} has {_mb(node.store)}, but the run needs {need}; "
                f"start the node with `ray start --object-store-memory={store_size(need)}`"
            )


def _fault_of(address: str) -> str:
    """Why no Ray server is at an address; empty if one may be there. Such a server speaks gRPC, which is HTTP/2."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=_REACH) as connection:
            if os.environ.get("RAY_USE_TLS") == "1":
                return ""
            connection.sendall(_HTTP2)
            reply = connection.recv(9)
    except OSError as error:
        return f"it does not answer ({error.strerror or error})"
    return "" if reply[3:4] == b"\x04" else "another program listens there"


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our handler of SIGTERM, which Ray replaces when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with suppress(TypeError):  # a handler that was not set from Python is None
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback(ray: ModuleType, only: bool) -> Iterator[None]:
    """Make Ray listen on 127.0.0.1 only, as on macOS and Windows. On Linux it would use an address of the network."""
    constants, name = ray._private.ray_constants, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, value = constants.ENABLE_RAY_CLUSTER, os.environ.get(name)
    if not only:
        yield
        return
    constants.ENABLE_RAY_CLUSTER = False
    os.environ[name] = "0"  # for the processes that Ray starts
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def _mb(size: int) -> str:
    return f"{size / 2**20:.0f} MB" if size >= 100 << 20 else f"{size / 2**20:.1f} MB"


def counted(number: int, thing: str) -> str:
    """A number of things, in words: 1 node, 2 nodes."""
    return f"{number} {thing}{'s' * (number != 1)}"
