"""Progress bars on a terminal, and plain lines elsewhere."""

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from feddle.core.metrics import reached


def is_watched() -> bool:
    """Whether somebody sees the output: in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Display(Progress):
    """Progress bars on stderr, so that the output on stdout can be piped. They are disabled without a terminal."""

    def __init__(self, description: str = "{task.description:<10}", width: int = 40, *, quiet: bool = False) -> None:
        console = Console(stderr=True, quiet=quiet, force_jupyter=False)  # in a notebook, bars need another package
        super().__init__(
            TextColumn(description),
            BarColumn(bar_width=width),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=quiet or not console.is_terminal,
        )


class RunDisplay(Display):
    """Shows the rounds of runs, one run after the other."""

    def begin(self, label: str, rounds: int, done: int = 0) -> None:
        """A run starts, or continues after some rounds."""
        self.add_task(label, total=rounds, completed=done, state="")

    def show(self, line: dict[str, Any]) -> None:
        """A round is complete."""
        run = self.tasks[-1]
        self.update(run.id, completed=line["round"])
        if text := reached(line):
            self.update(run.id, state=text)
            if self.disable:
                number = f"round {line['round']:>4}/{run.total}"
                self.console.print(f"{run.description:<10} {number}  {text}", highlight=False)
