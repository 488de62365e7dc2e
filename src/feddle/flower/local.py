"""A whole federation on this machine, each part a process of its own: the way to see it work before real machines."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.flower.app_folder import APP
from feddle.flower.certificates import Certificates
from feddle.flower.commands import environment, found

HOST = "127.0.0.1"
_PATIENCE = 60.0  # seconds until a process must answer
_GRACE = 10.0  # seconds to end in order
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}
_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
_KNOWN_KEY = "already in use"  # what Flower says of a key that is registered
_CONNECTION = "federation"  # what the server is called in Flower's config


class LocalFederation:
    """A SuperLink, its SuperExec and SuperNodes, kept in a folder; leaving the context ends them all.

    Every process leads a group of its own, so that what it starts ends with it. With `secure`, there is TLS and every
    node has a key that is registered; the keys and the SuperLink's database stay in the folder, so nodes keep their
    ids. `node_ids` are those ids, by the number of the node, from 1.
    """

    def __init__(self, folder: Path, nodes: int, *, app: Path = APP, secure: bool = True) -> None:
        self.folder = folder.resolve()
        self.nodes = nodes
        self.app = app
        self.secure = secure
        self.certificates = Certificates(self.folder / "certificates")
        self.logs = self.folder / "logs"
        self.node_ids: dict[int, int] = {}
        self.lock = FileLock(self.folder / "lock")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.groups: list[int] = []  # of all processes that were ever started
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except Timeout as error:  # two would share the nodes' keys and the database
            raise FeddleError(f"another process runs the federation in {self.folder}; wait until it ends") from error
        try:
            if self.secure:
                self.certificates.make([HOST, "localhost"], self.nodes)
            self.start_superlink()
            if self.secure:
                self._register()
            trust = ["--root-certificates", str(self.certificates.ca)] if self.secure else ["--insecure"]
            self._start("superexec", "flower-superexec", "--runtime-api-address", self.address, *trust, *self._secret())
            for number in range(1, self.nodes + 1):
                self.start_node(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where the SuperLink is."""
        return f"{HOST}:{self._port('superlink')}"

    def start_superlink(self) -> None:
        """Start the SuperLink, again if it was killed: its database knows the nodes and the runs."""
        certificates = self.certificates
        files = [certificates.server, certificates.server_key, certificates.ca]
        flags = ["--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile"]
        pairs = [part for flag, file in zip(flags, files, strict=True) for part in (flag, str(file))]
        secured = [*pairs, "--enable-supernode-auth", *self._secret()] if self.secure else ["--insecure"]
        place = ["--host", HOST, "--port", str(self._port("superlink")), "--isolation", "process"]
        self._start("superlink", "flower-superlink", *place, "--database", str(self.folder / "superlink.db"), *secured)
        self._wait_for("superlink")
        self._write_config()

    def start_node(self, number: int, *, root: Path | None = None, variables: Mapping[str, str] = {}) -> None:
        """Start a SuperNode, again if it was killed; it trusts `root`, by default the federation's own certificate."""
        name = f"node-{number}"
        share = f"partition-id={number - 1} num-partitions={self.nodes}"
        files = {"--ca": root or self.certificates.ca, "--key": self.certificates.node_key(number)}
        secured = [part for flag, file in files.items() for part in (flag, str(file))] if self.secure else []
        place = ["--host", HOST, "--port", str(self._port(name)), "--node-config", share]
        command = ["federation", "node", "--superlink", self.address, *secured, "--", *place]
        self._start(name, "feddle", *command, variables=variables)

    def start_run(self, settings: Mapping[str, Any]) -> int:
        """Have the SuperLink run the app; `settings` are laid over its run config. Returns the run's id."""
        chosen = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        told = self._flwr("run", str(self.app), _CONNECTION, "--run-config", chosen)
        return int(told["run-id"])

    def run_status(self, run: int) -> str:
        """How a run stands, such as running or finished:completed."""
        told = self._flwr("list", _CONNECTION, "--run-id", str(run))
        return str(told["runs"][0]["status"])

    def run_log(self, run: int) -> str:
        """What the ServerApp of a run has said so far."""
        done = self._call("log", str(run), _CONNECTION, "--show")
        return done.stdout + done.stderr

    def kill(self, name: str) -> None:
        """End a process and what it started, without warning."""
        process = self.processes.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()
        end = time.monotonic() + _GRACE
        while _has_members(process.pid) and time.monotonic() < end:
            time.sleep(0.02)

    def close(self) -> None:
        """End every process: in order if they can, else at once; nothing interrupts it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            self._end_all()
        finally:
            self.lock.release()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)

    def _end_all(self) -> None:
        """The nodes first: a SuperLink that they cannot tell goodbye takes them for connected for a while."""
        nodes = [name for name in self.processes if name.startswith("node-")]
        for names in (nodes, [name for name in self.processes if name not in nodes]):
            for name in names:
                _signal(self.processes[name], signal.SIGTERM)
            end = time.monotonic() + _GRACE
            while time.monotonic() < end and not all(_has_ended(self.processes[name]) for name in names):
                time.sleep(0.05)
            for name in names:
                self.kill(name)  # also what a process that has ended has left of its group

    def keep_up(self) -> None:
        """Start nodes again that have ended, as a service manager does."""
        for number in range(1, self.nodes + 1):
            process = self.processes.get(f"node-{number}")
            if process is not None and _has_ended(process):
                self.start_node(number)

    def log(self, name: str) -> str:
        """What a process has said so far."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, name: str, command: str, *arguments: str, variables: Mapping[str, str] = {}) -> None:
        if name in self.processes:
            self.kill(name)  # or what is left of it
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603
                [found(command), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment(), **variables},
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.groups.append(self.processes[name].pid)

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
        """What a command of Flower's answers."""
        done = self._call(*arguments, "--format", "json")
        try:
            told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError as error:
            said = " ".join((done.stderr + done.stdout).split())[-500:]
            raise FeddleError(f"`flwr {arguments[0]}` answered nothing that can be read: {said}") from error
        if not told.get("success", True):
            raise FeddleError(f"`flwr {arguments[0]}` failed: {' '.join(str(told.get('error-message')).split())}")
        return told

    def _register(self) -> None:
        """Tell the SuperLink the nodes' public keys, once."""
        known = self.folder / "nodes.json"
        with suppress(FileNotFoundError, ValueError, AttributeError):  # a damaged one: nodes are registered anew
            self.node_ids = {int(number): int(node) for number, node in json.loads(known.read_text()).items()}
        for number in range(1, self.nodes + 1):
            if number not in self.node_ids:
                self.node_ids[number] = self._register_one(number)
                write_whole(known, json.dumps(self.node_ids).encode(), sync=False)  # each: a stop may come any time

    def _register_one(self, number: int) -> int:
        """The id that the SuperLink gives to a node."""
        command = ["supernode", "register", str(self.certificates.node_public(number)), _CONNECTION]
        try:
            return int(self._flwr(*command)["node-id"])
        except FeddleError as error:
            if _KNOWN_KEY not in str(error):
                raise
        self.certificates.remake_node(number)  # a stop came before its id was kept, which Flower does not tell again
        return int(self._flwr(*command)["node-id"])

    def _write_config(self) -> None:
        trust = f'root-certificates = "{self.certificates.ca}"' if self.secure else "insecure = true"
        lines = [f"[superlink.{_CONNECTION}]", f'address = "{self.address}"', trust]
        (self.folder / "flower").mkdir(exist_ok=True)
        (self.folder / "flower" / "config.toml").write_text("\n".join(lines) + "\n")

    def _secret(self) -> Sequence[str]:
        return ["--superexec-auth-secret-file", str(self.certificates.secret)] if self.secure else []

    def _environment(self) -> dict[str, str]:
        return {**environment(), "FLWR_HOME": str(self.folder / "flower")}

    def _port(self, name: str) -> int:
        """A port that was free when it was first asked for."""
        if name not in self._ports:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                self._ports[name] = probe.getsockname()[1]
        return self._ports[name]

    def _wait_for(self, name: str) -> None:
        """Until a process listens on its port."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if self.processes[name].poll() is not None:
                raise FeddleError(f"the {name} ended as it began; see {self.logs / name}.log")
            try:
                with socket.create_connection((HOST, self._port(name)), timeout=1):
                    return
            except OSError:
                time.sleep(0.1)
        raise FeddleError(f"the {name} does not answer; see {self.logs / name}.log")


def _end_with_parent() -> None:
    """On Linux, have this process told to end when the one that started it was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To a process and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _has_members(group: int) -> bool:
    """Whether anything of a process group is left; what was killed takes a moment to go."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has; it is left as it is, so that the number of its group is not given to another."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
