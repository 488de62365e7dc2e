"""Progress of a download on a terminal. Nothing is shown on other outputs and on a quiet console."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from rich import progress as bars
from rich.console import Console

_WORDS = bars.TextColumn("{task.description}")
Display = AbstractContextManager[Callable[[int], None]]


def counting(console: Console, words: str, total: int) -> Display:
    """A bar of bytes, advanced by the function that it yields; `total` is 0 if it is not known."""
    return _task(console, words, total, _WORDS, bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn())


def tallying(console: Console, words: str, total: int) -> Display:
    """A bar of items, such as packages, advanced by the function that it yields."""
    return _task(console, words, total, _WORDS, bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())


def waiting(console: Console, words: str) -> Display:
    """A spinner with the elapsed time, for work that does not report its progress."""
    return _task(console, words, 0, bars.SpinnerColumn(), _WORDS, bars.TimeElapsedColumn())


@contextmanager
def _task(console: Console, words: str, total: int, *columns: bars.ProgressColumn) -> Iterator[Callable[[int], None]]:
    live = console.is_terminal and not console.quiet
    with bars.Progress(*columns, console=console, transient=True, disable=not live) as progress:
        yield partial(progress.advance, progress.add_task(words, total=total or None))
