"""Waiting: as long as there is progress, and not much longer."""

import subprocess
import time
from pathlib import Path

import pytest

import needs
from command import PYTHON, run_process
from waiting import StuckError, wait_until

pytestmark = needs.linux


def seconds_of(code: str, *outputs: Path, still: float = 2.0, limit: float = 300.0) -> float:
    """How long a process was waited for, which runs code and then does nothing for ever."""
    with subprocess.Popen([*PYTHON, f"import time\n{code}\nwhile True: time.sleep(1000)"]) as process:
        began = time.monotonic()
        try:
            with pytest.raises(StuckError, match="an end") as caught:
                wait_until(lambda: process.poll() is not None, "an end", *outputs, still=still, limit=limit)
        finally:
            process.kill()
    assert ("nothing has happened" in str(caught.value)) == (limit == 300.0)
    return time.monotonic() - began


def test_a_process_that_does_nothing_is_given_up() -> None:
    assert seconds_of("") < 60


def test_a_process_that_computes_is_waited_for() -> None:
    assert seconds_of("while time.process_time() < 4: pass") >= 2 + 3


def test_a_process_that_writes_is_waited_for(tmp_path: Path) -> None:
    code = "for i in range(6):\n  time.sleep(1); print(i, file=open(FILE, 'a'))".replace(
        "FILE", repr(str(tmp_path / "a"))
    )
    assert seconds_of(code, tmp_path) >= 2 + 5


def test_there_is_a_limit_to_any_wait() -> None:
    assert 3 <= seconds_of("while True: pass", limit=3.0) < 60


def test_what_a_process_says_is_returned() -> None:
    said = run_process(*PYTHON, "import sys; print('ü' * 100_000); print('b', file=sys.stderr); sys.exit(3)")
    assert (said.code, said.out, said.err) == (3, "ü" * 100_000 + "\n", "b\n")
