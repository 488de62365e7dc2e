"""Reports on the terminal what is being fetched."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)


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
    def counting(self, words: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar of bytes; call what it gives with the size of each part. `total` is 0 if it is not known."""
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with self._live(*columns) as progress:
            task = progress.add_task(words, total=total or None)
            yield partial(progress.advance, task)

    @contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        """A spinner with the elapsed time, for work that does not report its progress."""
        with self._live(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
            progress.add_task(words, total=None)
            yield

    def _live(self, *columns: ProgressColumn) -> Progress:
        return Progress(*columns, console=Console(stderr=True), transient=True, disable=not self.live)
