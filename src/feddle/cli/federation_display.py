"""The state of a real federation: a live table on a terminal, one line for each version elsewhere."""

import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from feddle.records import HISTORY, parse_mapping, read_mapping, read_result

_LONG = 30.0  # seconds; a run writes its status about once per second, but not while it merges


class FederationDisplay:
    """Shows a run folder as it changes, on stderr. A status older than `since` is ignored: its process has ended."""

    def __init__(self, folder: Path, *, quiet: bool = False, since: float = 0.0) -> None:
        self.folder = folder
        self.since = since
        self.console = Console(stderr=True, quiet=quiet)
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal and not quiet else None
        self._shown = 0  # lines of history
        self._silent = False
        self._failed: dict[str, int] = {}  # failures shown so far, by node

    def __enter__(self) -> "FederationDisplay":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line. Brackets in it, as in a path, are not markup."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return bool(read_result(self.folder).get("finished"))

    def refresh(self) -> None:
        """Show the current state."""
        status = read_mapping(self.folder / "status.json")
        new = status.get("at", 0.0) >= self.since
        silence = _silence(status) if new else ""
        if self._live is not None and status:
            self._live.update(picture(status, silence), refresh=True)
        elif self._live is None:
            self._print_versions(status.get("rounds"))
            if new:
                self._print_failures(status)
            if silence and not self._silent:
                self.say(silence)
            self._silent = bool(silence)

    def _print_versions(self, rounds: int | None) -> None:
        path = self.folder / HISTORY
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text.rpartition("\n")[0].splitlines()  # the last one may be incomplete
        for line in map(parse_mapping, lines[self._shown :]):
            if "version" not in line:  # damaged: the ServerApp reports it
                continue
            accuracy = f", accuracy {line['accuracy']:.1%}" if "accuracy" in line else ""
            staleness = " ".join(map(str, line["staleness"]))
            of = "" if rounds is None else f"/{rounds}"
            self.say(f"version {line['version']}{of}: {line['nodes']} nodes, staleness {staleness}{accuracy}")
        self._shown = len(lines)

    def _print_failures(self, status: dict[str, Any]) -> None:
        """Print failed jobs: without the table, only they show that an app is wrong."""
        for node in status.get("nodes", []):
            known, self._failed[node["node"]] = self._failed.get(node["node"], 0), node["failed"]
            if node["failed"] > known and node["why"]:
                self.say(f"client {node['client']}, failure {node['failed']}: {node['why']}")


def _silence(status: dict[str, Any]) -> str:
    """A warning if the status is old: a merge takes long, the SuperLink does not answer, or the run is dead."""
    seconds = time.time() - status.get("at", math.inf)
    if seconds < _LONG or status["version"] >= status["rounds"]:
        return ""
    return f"no status from the ServerApp (process {status['pid']}) for {seconds:.0f} s; check that it is running"


def picture(status: dict[str, Any], silence: str = "") -> Group:
    """The state of a federation: a headline, a warning if there is one, and one row for each node."""
    accuracy = "–" if status["accuracy"] is None else f"{status['accuracy']:.1%}"
    head = (
        f"{status['method']}: version {status['version']}/{status['rounds']}, accuracy {accuracy}, "
        f"{status['arrived']} of {status['wanted']} updates for the next merge, {status['under_way']} in progress"
    )
    table = Table("client", "node", "state", "from version", "last staleness", "updates", "failed", "", box=None)
    for node in status["nodes"]:
        values = (node[name] for name in ("version", "staleness", "done", "failed"))
        numbers = ("–" if value is None else str(value) for value in values)
        why = Text(node["why"], overflow="ellipsis")
        table.add_row(str(node["client"]), node["node"], node["state"], *numbers, why)
    losses = {**status["dropped"], **status["refused"]}
    lost = ", ".join(f"{reason} ({count})" for reason, count in losses.items())
    away = f"; {status['turned_away']} nodes over the limit" if status["turned_away"] else ""
    warning = [Text(silence, style="bold red")] if silence else []
    return Group(Text(head), *warning, table, Text(f"lost jobs: {lost or 'none'}{away}", style="dim"))
