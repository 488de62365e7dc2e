"""The command line in this process, and commands in a process of their own."""

import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from feddle.cli.main import main
from waiting import wait_until

FEDDLE = (sys.executable, "-m", "feddle")
PYTHON = (sys.executable, "-c")


@dataclass(frozen=True)
class Completed:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All output."""
        return self.out + self.err


def run_feddle(*words: str | Path) -> Completed:
    """Run `feddle WORDS` in this process."""
    code = 0
    with (
        patch.object(sys, "argv", ["feddle", *map(str, words)]),
        _captured("stdout", 1) as out,
        _captured("stderr", 2) as err,
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Completed(code, out(), err())


@contextmanager
def _captured(name: str, descriptor: int) -> Iterator[Callable[[], str]]:
    """Capture what this process and its children write to a standard stream."""
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)

        def read() -> str:
            stream.flush()
            file.seek(0)
            return file.read().decode()

        try:
            with patch.object(sys, name, stream):
                yield read
        finally:
            stream.close()
            os.dup2(kept, descriptor)
            os.close(kept)


def fork_feddle(*words: str, cwd: Path, prepare: Callable[[], object] = int, fresh: bool = False) -> int:
    """Start `feddle WORDS` as a fork of this process, which imports nothing again unless it is `fresh`; return its id.

    It leads a process group, and writes to the files `stdout` and `stderr` in `cwd`. It first calls `prepare`. Signals
    reach it when it begins, not before.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with (cwd / "stdout").open("wb") as out, (cwd / "stderr").open("wb") as err:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        child = os.fork()
        if child:
            with suppress(OSError):  # the child does the same; one of the two is first
                os.setpgid(child, child)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return child
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(cwd)
        torch.set_num_threads(1)  # the parent's OpenMP threads did not come with the fork: waiting for them hangs
        prepare()
        code = _main(words, fresh=fresh)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main(words: Sequence[str], *, fresh: bool) -> int:
    """The command line in a forked process; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL if fresh else signal.default_int_handler)  # it may have been ignored
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    except KeyboardInterrupt:  # it came while the process was prepared
        return 130
    if fresh:
        os.execv(FEDDLE[0], [*FEDDLE, *words])  # noqa: S606
    sys.argv = ["feddle", *words]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def run_process(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Completed:
    """Run a command, such as `*FEDDLE, "run"` or `*PYTHON, code`, in a process of its own; `env` is added to ours."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=cwd, env={**os.environ, **(env or {})}, stdout=stdout, stderr=stderr
            )
        wait_for_end(process, out, err)
        return Completed(process.returncode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def wait_for_end(process: "subprocess.Popen[Any]", *outputs: Path) -> None:
    """Wait until a process has ended; one that is stuck is killed."""
    try:
        wait_until(lambda: process.poll() is not None, f"the end of {process.args!r}", *outputs)
    finally:
        process.kill()
        process.wait()
