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
    """Return how long the test waits for a process that runs the code and then does nothing."""
    with subprocess.Popen([*PYTHON, f"import time\n{code}\nwhile True: time.sleep(1000)"]) as process:
        began = time.monotonic()
        try:
            with pytest.raises(StuckError, match="an end") as caught:
                wait_until(lambda: process.poll() is not None, "an end", *outputs, still=still, limit=limit)
        finally:
            process.kill()
    assert ("nothing has happened" in str(caught.value)) == (limit == 300.0)
    return time.monotonic() - began


def test_waiting_ends_if_a_process_does_nothing() -> None:
    assert seconds_of("") < 60


def test_waiting_continues_while_a_process_computes() -> None:
    assert seconds_of("while time.process_time() < 4: pass") >= 2 + 3


def test_waiting_continues_while_a_process_writes(tmp_path: Path) -> None:
    code = "for i in range(6):\n  time.sleep(1); print(i, file=open(FILE, 'a'))".replace(
        "FILE", repr(str(tmp_path / "a"))
    )
    assert seconds_of(code, tmp_path) >= 2 + 5


def test_any_wait_has_a_limit() -> None:
    assert 3 <= seconds_of("while True: pass", limit=3.0) < 60


def test_the_output_of_a_process_is_returned() -> None:
    result = run_process(*PYTHON, "import sys; print('ü' * 100_000); print('b', file=sys.stderr); sys.exit(3)")
    assert (result.code, result.out, result.err) == (3, "ü" * 100_000 + "\n", "b\n")
