"""Ray clusters of several nodes, all on 127.0.0.1 of this machine."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from waiting import wait_until

# `ray start`; on Linux it would replace 127.0.0.1 by an address of the network
START = """
from ray._private import services
services.get_node_ip_address = lambda *_: "127.0.0.1"
from ray.scripts.scripts import main
main()
"""
RAY = (sys.executable, "-c", START, "start", "--block", "--node-ip-address=127.0.0.1", "--num-gpus=0")
STORE = 128 << 20
NICENESS = '--system-config={"worker_niceness": 5}'  # as that of local workers; Ray's default is 15
# Ray asks every process of a cluster for its token; ours is made for this process, and no stored one is read
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True, eq=False)
class RunningNode:
    """A node of a cluster: `ray start --block`, and all that it has started."""

    process: "subprocess.Popen[bytes]"

    def processes(self) -> list[int]:
        """Every process of the node."""
        return family([self.process.pid])

    def kill_head(self) -> None:
        """End the server of the head (GCS) only, and not the node, which may be that of the driver on this machine."""
        (server,) = (pid for pid in self.processes() if "gcs_server" in Path(f"/proc/{pid}/exe").readlink().name)
        os.kill(self.process.pid, signal.SIGSTOP)  # it would end the rest of the node
        os.kill(server, signal.SIGKILL)

    def kill(self) -> None:
        """End the node as a power cut would: no process of it can say goodbye."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True, eq=False)
class RunningCluster:
    """A cluster: its address, and its nodes, of which the first is the head."""

    address: str
    nodes: list[RunningNode]


@contextmanager
def cluster(*cpus: int, store: int = STORE, hidden: Path | None = None) -> Iterator[RunningCluster]:
    """A cluster with one node for each number of CPUs. Only the head sees what is in the folder `hidden`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)))
        nodes: list[RunningNode] = []
        for number, each in enumerate(cpus):
            where = [f"--address=127.0.0.1:{port}"]
            if not number:
                where = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}", NICENESS]
            before = () if hidden is None or not number else hide(hidden)
            words = (*where, f"--num-cpus={each}", f"--object-store-memory={store}")
            nodes.append(_start(stack, folder / f"node{number}", *before, *RAY, *words))
        yield RunningCluster(f"127.0.0.1:{port}", nodes)


def hide(folder: Path) -> tuple[str, ...]:
    """The beginning of a command whose processes see an empty folder instead, as on another machine."""
    folder.mkdir(parents=True)
    mount = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    return "unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh", str(folder)


def _start(stack: ExitStack, log: Path, *command: str) -> RunningNode:
    with log.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, **ENVIRONMENT}, stdout=file, stderr=file)
    node = RunningNode(process)
    stack.callback(node.kill)
    started = b"Ray runtime started"
    wait_until(lambda: started in log.read_bytes() or process.poll() is not None, "a node", log, details=log.read_text)
    assert process.poll() is None, log.read_text()
    return node


def family(roots: Sequence[int]) -> list[int]:
    """Processes and all that they have started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found = list(roots)
    for pid in found:  # it grows
        found += children.get(pid, [])
    return found
