"""Reports on the terminal what is being fetched."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import final

from rich import progress as bars
from rich.console import Console

_WORDS = bars.TextColumn("{task.description}")


@final
class Reporter:
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
        """A bar of bytes, advanced by the function that it yields; `total` is 0 if it is not known."""
        with self._live(_WORDS, bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn()) as progress:
            task = progress.add_task(words, total=total or None)
            yield partial(progress.advance, task)

    @contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        """A spinner with the elapsed time, for work that does not report its progress."""
        with self._live(bars.SpinnerColumn(), _WORDS, bars.TimeElapsedColumn()) as progress:
            progress.add_task(words, total=None)
            yield

    def _live(self, *columns: bars.ProgressColumn) -> bars.Progress:
        return bars.Progress(*columns, console=Console(stderr=True), transient=True, disable=not self.live)
