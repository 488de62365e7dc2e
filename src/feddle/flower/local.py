"""A whole federation on this machine, each part in its own process: a trial before real machines."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.flower.certificates import Certificates
from feddle.flower.node import environment, found
from feddle.flower.plan import APP

HOST = "127.0.0.1"
_PATIENCE = 60.0  # seconds that a process may take to answer
_GRACE = 10.0  # seconds that a process may take to end before it is killed
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}
_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
_SECRET = "--superexec-auth-secret-file"  # noqa: S105
_CONNECTION = "federation"  # the name of the server in Flower's config


@dataclass(eq=False)
class LocalFederation:
    """A SuperLink, its SuperExec and SuperNodes with a folder for their files; leaving the context ends all of them.

    Every process leads its own process group, so that everything it starts ends with it. There is TLS, and every node
    has a registered key. The keys and the SuperLink's database stay in the folder, so that nodes keep their ids.
    """

    folder: Path
    nodes: int
    app: Path = APP

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.certificates = Certificates(self.folder / "certificates")
        self.logs = self.folder / "logs"
        self.lock = FileLock(self.folder / "lock")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = _free_port()
        self.address = f"{HOST}:{self.port}"  # of the SuperLink

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except Timeout as error:  # two would share the nodes' keys and the database
            raise FeddleError(f"another process runs the federation in {self.folder}; wait until it ends") from error
        try:
            keys = self.certificates
            keys.make([HOST, "localhost"], 0)
            self.start_superlink()
            trust = ("--root-certificates", keys.ca, _SECRET, keys.secret)
            self._start("superexec", "flower-superexec", "--runtime-api-address", self.address, *trust)
            for number in range(1, self.nodes + 1):
                self.register(number)
            for number in range(1, self.nodes + 1):
                self.start_node(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again if it was killed: its database has the nodes and the runs."""
        keys = self.certificates
        files = ("--ssl-certfile", keys.server, "--ssl-keyfile", keys.server_key, "--ssl-ca-certfile", keys.ca)
        secured = (*files, _SECRET, keys.secret, "--enable-supernode-auth")
        place = ["--host", HOST, "--port", str(self.port), "--isolation", "process"]
        self._start("superlink", "flower-superlink", *place, "--database", self.folder / "superlink.db", *secured)
        self._wait_for_superlink()
        (self.folder / "flower").mkdir(exist_ok=True)
        lines = [f"[superlink.{_CONNECTION}]", f'address = "{self.address}"', f'root-certificates = "{keys.ca}"']
        write_whole(self.folder / "flower" / "config.toml", ("\n".join(lines) + "\n").encode())

    def register(self, number: int) -> None:
        """Register a node with a new key, once; its id is kept beside its key."""
        known = self.certificates.node(number, "id")
        if not known.exists():
            self.certificates.remake_node(number)  # Flower would refuse a key whose id was lost in an interruption
            public = str(self.certificates.node(number, "pub"))
            answer = self._flwr("supernode", "register", public, _CONNECTION)
            write_whole(known, str(answer["node-id"]).encode(), sync=False)

    def start_node(self, number: int) -> None:
        """Start a SuperNode, or start it again."""
        name, share = f"node-{number}", f"partition-id={number - 1} num-partitions={self.nodes}"
        files = ("--ca", self.certificates.ca, "--key", self.certificates.node(number, "key"))
        place = ["--host", HOST, "--port", str(_free_port()), "--node-config", share]
        self._start(name, "feddle", "federation", "node", "--superlink", self.address, *files, "--", *place)

    def start_run(self, settings: Mapping[str, Any]) -> int:
        """Start a run of the app, with `settings` instead of those in its run config; return the id of the run."""
        chosen = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        return int(self._flwr("run", str(self.app), _CONNECTION, "--run-config", chosen)["run-id"])

    def run_status(self, run: int) -> str:
        """The status of a run, such as running or finished:completed."""
        return str(self._flwr("list", _CONNECTION, "--run-id", str(run))["runs"][0]["status"])

    def run_log(self, run: int) -> str:
        """The log of the ServerApp of a run so far."""
        done = self._call("log", str(run), _CONNECTION, "--show")
        return done.stdout + done.stderr

    def kill(self, name: str) -> None:
        """Kill a process and everything it started."""
        process = self.processes.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()
        end = time.monotonic() + _GRACE
        while _signal(process, 0) and time.monotonic() < end:  # killed processes take a moment to disappear
            time.sleep(0.02)

    def close(self) -> None:
        """End every process; those that do not end in time are killed. Ctrl-C does not interrupt this."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            self._end_all()
        finally:
            self.lock.release()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)

    def _end_all(self) -> None:
        """Nodes end first, so that they can sign off; otherwise the SuperLink counts them as connected for a while."""
        for prefix in ("node-", ""):
            names = [name for name in self.processes if name.startswith(prefix)]
            for name in names:
                _signal(self.processes[name], signal.SIGTERM)
            end = time.monotonic() + _GRACE
            while time.monotonic() < end and not all(_has_ended(self.processes[name]) for name in names):
                time.sleep(0.05)
            for name in names:
                self.kill(name)  # also what remains of the group of a process that has ended

    def keep_up(self) -> None:
        """Restart nodes that have ended, as a service manager does."""
        for number in range(1, self.nodes + 1):
            if _has_ended(self.processes[f"node-{number}"]):
                self.start_node(number)

    def _start(self, name: str, command: str, *arguments: str | Path) -> None:
        if name in self.processes:
            self.kill(name)  # or what remains of its group
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603
                [found(command), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(  # noqa: S603
                [found("flwr"), *arguments],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=2 * _PATIENCE,
            )
        except subprocess.TimeoutExpired as error:
            raise FeddleError(f"`flwr {arguments[0]}` did not answer within {error.timeout:g} s") from error

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """The answer of one of Flower's commands."""
        done = self._call(*arguments, "--format", "json")
        answer: dict[str, Any] = {}
        with suppress(ValueError):  # a command that fails early prints no JSON
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        if not answer.get("success"):
            why = str(answer.get("error-message") or done.stderr + done.stdout)
            raise FeddleError(f"`flwr {arguments[0]}` failed: {' '.join(why.split())[-500:]}")
        return answer

    def _environment(self) -> dict[str, str]:
        return {**environment(), "FLWR_HOME": str(self.folder / "flower")}

    def _wait_for_superlink(self) -> None:
        """Wait until the SuperLink listens on its port."""
        process, end = self.processes["superlink"], time.monotonic() + _PATIENCE
        while time.monotonic() < end and not _has_ended(process):
            with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
                return
            time.sleep(0.1)
        fault = "ended during its start" if _has_ended(process) else "does not answer"
        raise FeddleError(f"the superlink {fault}; see {self.logs / 'superlink.log'}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """On Linux, send this process SIGTERM when its parent is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a process and everything it started; False if none of them is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        return True
    return False


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended; it is not reaped, so that the id of its group is not reused."""
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return process.returncode is not None or os.waitid(os.P_PID, process.pid, look) is not None
