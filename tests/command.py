"""The command line in this process, and commands in a process of their own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from feddle.cli.main import main

FEDDLE = (sys.executable, "-m", "feddle")
PYTHON = (sys.executable, "-c")


@dataclass(frozen=True)
class Said:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All output."""
        return self.out + self.err


def run_feddle(*words: str | Path) -> Said:
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
        return Said(code, out(), err())


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


def run_process(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Said:
    """Run a command, such as `*FEDDLE, "run"` or `*PYTHON, code`, in a process of its own; `env` is added to ours."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False, timeout=300
    )
    return Said(done.returncode, done.stdout, done.stderr)
