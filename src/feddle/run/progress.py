"""Progress bars on a terminal, and plain lines elsewhere."""

import sys
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from feddle.core.metrics import reached


def is_watched() -> bool:
    """Whether somebody sees the output: in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def make_bars(description: str = "{task.description:<10}", width: int = 40, *, quiet: bool = False) -> Progress:
    """Progress bars on stderr, so that the output on stdout can be piped. They are disabled without a terminal."""
    console = Console(stderr=True, quiet=quiet, force_jupyter=False)  # in a notebook, bars need another package
    return Progress(
        TextColumn(description),
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=quiet or not console.is_terminal,
    )


class RunDisplay:
    """Shows the rounds of runs, one run after the other."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.bars = make_bars(quiet=quiet)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, label: str, rounds: int, done: int = 0) -> None:
        """A run starts, or continues after some rounds."""
        self.bars.add_task(label, total=rounds, completed=done, state="")

    def show(self, line: dict[str, Any]) -> None:
        """A round is complete."""
        run = self.bars.tasks[-1]
        self.bars.update(run.id, completed=line["round"])
        if text := reached(line):
            self.bars.update(run.id, state=text)
            if self.bars.disable:
                number = f"round {line['round']:>4}/{run.total}"
                self.bars.console.print(f"{run.description:<10} {number}  {text}", highlight=False)
