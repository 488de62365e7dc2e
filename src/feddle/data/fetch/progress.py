"""Tell the person at the terminal what is being fetched."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)


@final
class ByteBar:
    """The tqdm-like object that pooch feeds: it sets `total`, then calls update, reset and close."""

    def __init__(self, progress: Progress, words: str) -> None:
        self._progress = progress
        self._task = progress.add_task(words, total=None)

    @property
    def done(self) -> float:
        """The number of bytes counted so far."""
        return self._progress.tasks[0].completed

    @property
    def total(self) -> int:
        """The expected number of bytes, 0 if the server does not say."""
        return int(self._progress.tasks[0].total or 0)

    @total.setter
    def total(self, value: int) -> None:
        self._progress.update(self._task, total=value or None)

    def update(self, size: int) -> None:
        """Count another `size` bytes."""
        self._progress.update(self._task, advance=size)

    def reset(self) -> None:
        """Start to count again."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Nothing to do: the live display ends with its context."""


@final
class Teller:
    """Writes progress to stderr: live displays on a terminal, plain lines elsewhere, nothing if quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.live = not quiet and sys.stderr.isatty()

    def say(self, line: str) -> None:
        """Write one plain line."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    @contextmanager
    def counting(self, words: str) -> Iterator[ByteBar | None]:
        """A bar of bytes for pooch, or None where there is no terminal."""
        if not self.live:
            yield None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield ByteBar(progress, words)

    @contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        """A spinner with the elapsed time, for work that does not tell how far it is."""
        if not self.live:
            yield
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            progress.add_task(words, total=None)
            yield
