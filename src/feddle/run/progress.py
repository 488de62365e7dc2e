"""Progress bars on a terminal, and plain lines elsewhere."""

import sys
import time
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
        self._began = (0.0, 0)  # when the run began or continued, and after how many rounds

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, label: str, rounds: int, done: int = 0) -> None:
        """A run starts, or continues after some rounds."""
        self.bars.add_task(label, total=rounds, completed=done, state="")
        self._began = (time.monotonic(), done)

    def show(self, line: dict[str, Any]) -> None:
        """A round is complete."""
        run = self.bars.tasks[-1]
        self.bars.update(run.id, completed=line["round"])
        if text := reached(line):
            self.bars.update(run.id, state=text)
            if self.bars.disable:
                number = f"round {line['round']:>4}/{run.total}"
                left = self._left(line["round"], int(run.total or 0))
                self.bars.console.print(f"{run.description:<10} {number}  {text}{left}", highlight=False)

    def _left(self, rounds: int, total: int) -> str:
        """The time that the run still needs, if its rounds take as long as until now."""
        at, done = self._began
        seconds = (time.monotonic() - at) / max(rounds - done, 1) * (total - rounds)
        return f"  {about(seconds)} left" if rounds < total else ""


def about(seconds: float) -> str:
    """A time in one unit, such as about 4 min."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
