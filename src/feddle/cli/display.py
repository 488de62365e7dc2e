"""Tables and progress: a live display on a terminal, and plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Task as Bar
from rich.table import Table
from rich.text import Text

from feddle.core.errors import one_line
from feddle.core.metrics import reached
from feddle.reading import parse_line, read_result, read_status
from feddle.records import HISTORY, Status
from feddle.report.grid import Grid, Panel
from feddle.report.joining import caveats, joining, untested
from feddle.report.numbers import duration
from feddle.report.setting import examples, remarks, unknown_examples
from feddle.report.tables import QUICK, footnotes, results
from feddle.report.warnings import warnings
from feddle.report.words import lead
from feddle.run.progress import make_bars

if TYPE_CHECKING:
    from feddle.grids.cells import Ended, Task

_INTERRUPTED = 130  # exit code after Ctrl-C
_LONGEST = 1000  # characters of an error, which may quote a path of any length
_NARROW = ("MB up", "MB down")  # columns of the page that a terminal has no room for
_LONG = 30.0  # seconds; a federation writes its status about once per second, but not while it merges


def error_line(text: str) -> str:
    """A text as one printable line. If it is too long, its middle is cut out, because its end says what to do."""
    line = one_line(text, longest=sys.maxsize)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def stop(text: str, code: int = 2) -> NoReturn:
    """Print an error and exit."""
    if code == _INTERRUPTED and sys.stderr.isatty():
        click.echo(err=True)  # the terminal shows ^C where the cursor was
    click.echo(f"feddle: {error_line(text)}", err=True)
    sys.exit(code)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """Print a plain table."""
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(text or "") for text in row))  # Text: no markup in brackets
    Console().print(table)


def print_grid(grid: Grid) -> None:
    """Print the tables and the sentences of a grid."""
    for panel in grid.panels:
        if panel.runs:
            Console().print(terminal_table(grid, panel))
            click.echo(examples(panel.runs) or unknown_examples(panel.runs))
    for cell in grid.cells:
        for remark in dict.fromkeys(text for run in cell.runs for text in remarks(run)):
            click.echo(f"{cell.name}: {remark}")
    sentences = [*joining(grid), *caveats(grid)]
    sentences += lead(grid) if len(grid.cells) > 1 else []  # for a single run the table is enough
    sentences += untested(grid)
    alerts = [f"Warning: {text}" for text in warnings(grid)]
    for text in (*footnotes(grid), *([QUICK] if grid.quick else []), *alerts, *sentences):
        click.echo(text)


def terminal_table(grid: Grid, panel: Panel) -> Table:
    """The results of a panel; a panel with one column fits 80 characters."""
    table = results(grid, panel)
    heads = [head for head in table.headings if head not in _NARROW]
    shown = Table(box=SIMPLE_HEAD, title=panel.title or None, title_justify="left", caption_justify="left")
    shown.caption = f"{panel.metric.words}: best of the last five evaluations."
    shown.add_column(table.label, overflow="fold")
    for head in heads:
        shown.add_column(head, justify="right", no_wrap=len(heads) < 6 and len(head) < 12)
    for row in table.rows:
        # Text, not markup: a folder may be called `[red]`.
        label = Text(row.label, "bold" if row.best else "")
        if row.status:
            label.append(f" ({row.status})", "dim not bold")
        texts = []
        for entry in row.entries:
            style = " ".join(("bold",) * entry.best + ("underline",) * entry.above_center)
            texts += [Text(entry.text + entry.marks, style)] * entry.span if entry.heading not in _NARROW else []
        shown.add_row(label, *texts)
    return shown


class GridDisplay:
    """One bar for the grid, counted in rounds, and one for each active run."""

    def __init__(self, runs: int, done: int, rounds: int, *, quiet: bool = False) -> None:
        self.runs, self.done = runs, done
        self.bars = make_bars("{task.description}", width=20, quiet=quiet)
        self._whole = self.bars.add_task("all rounds", total=rounds, state=self._count())
        self._active: dict[str, Bar] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, task: "Task") -> None:
        """A run has started or was resumed."""
        self.bars.add_task(task.label, total=task.config.rounds, state="")
        self._active[task.label] = self.bars.tasks[-1]

    def round(self, task: "Task", line: dict[str, Any]) -> None:
        """A round of a run is complete."""
        bar = self._active[task.label]
        self.bars.update(self._whole, advance=line["round"] - bar.completed)
        self.bars.update(bar.id, completed=line["round"])
        if text := reached(line):
            self.bars.update(bar.id, state=text)

    def end(self, task: "Task", ended: "Ended") -> None:
        """A run has ended."""
        self.done += 1
        bar = self._active.pop(task.label)
        self.bars.remove_task(bar.id)
        self.bars.update(self._whole, advance=task.config.rounds - bar.completed, state=self._count())
        value = f"{ended.metric.shown(ended.score)} ({duration(ended.seconds)})"
        what = error_line(ended.reason) if ended.reason else value
        self.bars.console.print(f"{self._count()}  {task.label}: {what}", highlight=False, markup=False, soft_wrap=True)

    def _count(self) -> str:
        return f"{self.done}/{self.runs} runs"


class FederationDisplay:
    """Shows a run folder as it changes, on stderr. A status older than `since` is ignored: its process has ended."""

    def __init__(self, folder: Path, *, quiet: bool = False, since: float = 0.0) -> None:
        self.console = Console(stderr=True, quiet=quiet, force_terminal=False if quiet else None)
        self.live = Live(console=self.console, auto_refresh=False, transient=not self.console.is_terminal)
        self.folder = folder
        self.since = since
        self._shown = 0  # lines of history
        self._silent = False
        self._failed: dict[str, int] = {}  # failures shown so far, by node

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        """Print a line. Brackets in it, as in a path, are not markup."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return bool(read_result(self.folder).get("finished"))

    def show(self) -> None:
        """Show the current state."""
        status = read_status(self.folder)
        new = status if status and status["at"] >= self.since else None
        silence = _silence(new) if new else ""
        if self.console.is_terminal and status:
            self.live.update(picture(status, silence), refresh=True)
        elif not self.console.is_terminal:
            self._print_versions(status and status["rounds"])
            if new:
                self._print_failures(new)
            if silence and not self._silent:
                self.say(silence)
            self._silent = bool(silence)

    def _print_versions(self, rounds: int | None) -> None:
        path = self.folder / HISTORY
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text.rpartition("\n")[0].splitlines()  # the last one may be incomplete
        for line in map(parse_line, lines[self._shown :]):
            if "version" not in line:  # damaged: the ServerApp reports it
                continue
            score = f", {text}" if (text := reached(line)) else ""
            staleness = " ".join(map(str, line.get("staleness", [])))
            of = "" if rounds is None else f"/{rounds}"
            self.say(f"version {line['version']}{of}: {line.get('nodes', 0)} nodes, staleness {staleness}{score}")
        self._shown = len(lines)

    def _print_failures(self, status: Status) -> None:
        """Print failed jobs. Without the live table, only these lines show that an app is wrong."""
        for node in status["nodes"]:
            known, self._failed[node["node"]] = self._failed.get(node["node"], 0), node["failed"]
            if node["failed"] > known and node["why"]:
                self.say(f"client {node['client']}, failure {node['failed']}: {node['why']}")


def _silence(status: Status) -> str:
    """A warning if the status is old: a merge takes long, the SuperLink does not answer, or the run is dead."""
    seconds = time.time() - status["at"]
    if seconds < _LONG or status["version"] >= status["rounds"]:
        return ""
    return f"no status from the ServerApp (process {status['pid']}) for {seconds:.0f} s; check that it is running"


def picture(status: Status, silence: str = "") -> Group:
    """The state of a federation: a headline, a warning if there is one, and one row for each node."""
    score = status["reached"] or "not measured"
    head = (
        f"{status['method']}: version {status['version']}/{status['rounds']}, {score}, "
        f"{status['arrived']} of {status['wanted']} updates for the next merge, {status['under_way']} in progress"
    )
    table = Table("client", "node", "state", "from version", "last staleness", "updates", "failed", "", box=None)
    for node in status["nodes"]:
        values = (node["version"], node["staleness"], node["done"], node["failed"])
        numbers = ("–" if value is None else str(value) for value in values)
        why = Text(node["why"], overflow="ellipsis")
        table.add_row(str(node["client"]), node["node"], node["state"], *numbers, why)
    losses = {**status["dropped"], **status["refused"]}
    lost = ", ".join(f"{reason} ({count})" for reason, count in losses.items())
    away = f"; {status['turned_away']} nodes over the limit" if status["turned_away"] else ""
    warning = [Text(silence, style="bold red")] if silence else []
    return Group(Text(head), *warning, table, Text(f"lost jobs: {lost or 'none'}{away}", style="dim"))
