"""Live progress on a terminal, plain lines elsewhere."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class RunDisplay:
    """Shows a run's rounds as they happen, on stderr, so that what is printed can be piped."""

    def __init__(self, rounds: int, *, quiet: bool = False) -> None:
        self.rounds = rounds
        self.console = Console(stderr=True, quiet=quiet)
        self.live = self.console.is_terminal and not quiet
        self._label = ""
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.live,
        )

    def __enter__(self) -> "RunDisplay":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, label: str, done: int = 0) -> None:
        """A run starts, or goes on after some rounds."""
        self._label = label
        self._task = self._progress.add_task(label, total=self.rounds, completed=done, state="")

    def show(self, line: dict[str, Any]) -> None:
        """A round is done."""
        assert self._task is not None
        accuracy = line.get("accuracy")
        if accuracy is not None:
            self._progress.update(self._task, state=f"accuracy {accuracy:6.1%}")
        self._progress.update(self._task, completed=line["round"])
        if accuracy is not None and not self.live:
            number = f"round {line['round']:>4}/{self.rounds}"
            self.console.print(f"{self._label:<10} {number}  accuracy {accuracy:.1%}", highlight=False)
