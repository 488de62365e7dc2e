"""Waiting for processes for as long as they make progress: a loaded machine is slow, not broken."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

STILL = 120.0  # seconds without any progress, after which nothing more is expected
LIMIT = 1800.0  # seconds that a wait may take in any case
patient = pytest.mark.timeout(2 * LIMIT)  # for tests of processes, instead of pytest's limit for all others


class StuckError(AssertionError):
    """What was waited for did not happen."""


def wait_until(
    true: Callable[[], object],
    what: str,
    *outputs: Path,
    still: float = STILL,
    limit: float = LIMIT,
    details: Callable[[], object] = str,
) -> None:
    """Wait until a condition is true.

    Progress is a child process that uses CPU time, or a change of a file or folder in `outputs`. `details` is added to
    the error.
    """
    began = looked = progressed = time.monotonic()
    seen: object = None
    while not true():
        now = time.monotonic()
        if now - looked >= 0.5 or seen is None:
            looked, before, seen = now, seen, (cpu_times(os.getpid()), [_sizes(path) for path in outputs])
            progressed = now if seen != before else progressed
        if now - progressed >= still:
            raise StuckError(f"{what}: nothing has happened for {still:g} s; {details()}")
        if now - began >= limit:
            raise StuckError(f"{what}: not within {limit:g} s; {details()}")
        time.sleep(0.05)


def cpu_times(root: int) -> dict[int, int]:
    """The CPU time, in clock ticks, of each process that a process has started, directly or not; Linux only."""
    parents, times = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(entry.parent.name)
        parents[pid], times[pid] = int(fields[1]), int(fields[11]) + int(fields[12])

    def is_below(pid: int) -> bool:
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return {pid: ticks for pid, ticks in times.items() if pid != root and is_below(pid)}


def _sizes(path: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of a file, or of every file in a folder."""
    sizes = {}
    for file in [path, *path.rglob("*")]:
        try:
            found = file.stat()
        except OSError:  # it is not there yet, or has just been removed
            continue
        sizes[file] = (found.st_size, found.st_mtime_ns)
    return sizes
