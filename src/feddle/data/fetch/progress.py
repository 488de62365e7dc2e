"""Reports on the terminal what is being fetched."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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

    def counting(self, words: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """A bar of bytes, advanced by the function that it yields; `total` is 0 if it is not known."""
        return self._task(words, total, _WORDS, bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn())

    def waiting(self, words: str) -> AbstractContextManager[Callable[[int], None]]:
        """A spinner with the elapsed time, for work that does not report its progress."""
        return self._task(words, 0, bars.SpinnerColumn(), _WORDS, bars.TimeElapsedColumn())

    @contextmanager
    def _task(self, words: str, total: int, *columns: bars.ProgressColumn) -> Iterator[Callable[[int], None]]:
        console = Console(stderr=True)
        with bars.Progress(*columns, console=console, transient=True, disable=not self.live) as progress:
            yield partial(progress.advance, progress.add_task(words, total=total or None))
