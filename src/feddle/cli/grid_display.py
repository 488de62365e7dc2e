"""Live progress of a grid of runs; plain lines without a terminal."""

from typing import TYPE_CHECKING, Any

from rich.progress import TaskID

from feddle.cli.display import Display
from feddle.report.numbers import duration, percent

if TYPE_CHECKING:
    from feddle.grids.cells import Ended, Task


class GridDisplay(Display):
    """One bar for the grid, counted in rounds, and one for each active run."""

    def __init__(self, runs: int, done: int, rounds: int, *, quiet: bool = False) -> None:
        super().__init__("{task.description}", 20, quiet=quiet)
        self.runs, self.done = runs, done
        self._whole = self._progress.add_task("all rounds", total=rounds, state=self._count())
        self._bars: dict[str, TaskID] = {}
        self._reached: dict[str, int] = {}

    def begin(self, task: "Task") -> None:
        """A run has started or was resumed."""
        self._bars[task.label] = self._progress.add_task(task.label, total=task.config.rounds, state="")

    def round(self, task: "Task", line: dict[str, Any]) -> None:
        """A round of a run is complete."""
        bar, number = self._bars[task.label], line["round"]
        self._progress.update(bar, completed=number)
        self._progress.update(self._whole, advance=number - self._reached.get(task.label, 0))
        self._reached[task.label] = number
        if "accuracy" in line:
            self._progress.update(bar, state=percent(line["accuracy"]))

    def end(self, task: "Task", ended: "Ended") -> None:
        """A run has ended."""
        self.done += 1
        self._progress.remove_task(self._bars.pop(task.label))
        left = task.config.rounds - self._reached.get(task.label, 0)
        self._progress.update(self._whole, advance=left, state=self._count())
        what = f"{percent(ended.accuracy)} ({duration(ended.seconds)})" if not ended.reason else ended.reason
        self.console.print(f"{self._count()}  {task.label}: {what}", highlight=False, markup=False, soft_wrap=True)

    def _count(self) -> str:
        return f"{self.done}/{self.runs} runs"
