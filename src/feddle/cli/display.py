"""Tables, and progress: live on a terminal, plain lines elsewhere."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """Print a plain table."""
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(text or "") for text in row))  # Text: no markup in brackets
    Console().print(table)


class Display:
    """Progress bars on stderr, so that the output on stdout can be piped."""

    def __init__(self, description: str, width: int, *, quiet: bool) -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self.live = self.console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn(description),
            BarColumn(bar_width=width),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.live,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class RunDisplay(Display):
    """Shows the rounds of a run."""

    def __init__(self, rounds: int, *, quiet: bool = False) -> None:
        super().__init__("{task.description:<10}", 40, quiet=quiet)
        self.rounds = rounds
        self._label = ""
        self._task: TaskID | None = None

    def begin(self, label: str, done: int = 0) -> None:
        """A run starts, or continues after some rounds."""
        self._label = label
        self._task = self._progress.add_task(label, total=self.rounds, completed=done, state="")

    def show(self, line: dict[str, Any]) -> None:
        """A round is complete."""
        assert self._task is not None
        accuracy = line.get("accuracy")
        if accuracy is not None:
            self._progress.update(self._task, state=f"accuracy {accuracy:6.1%}")
        self._progress.update(self._task, completed=line["round"])
        if accuracy is not None and not self.live:
            number = f"round {line['round']:>4}/{self.rounds}"
            self.console.print(f"{self._label:<10} {number}  accuracy {accuracy:.1%}", highlight=False)
