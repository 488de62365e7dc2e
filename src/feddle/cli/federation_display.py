"""What an operator sees of a real federation: a live table on a terminal, a line for each version elsewhere."""

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from feddle.records import HISTORY, RESULT

_LONG = 30.0  # seconds; a run says about once a second how it stands, but not while it merges


class FederationDisplay:
    """Shows a run folder as it changes, on stderr; what was said before `since` is of a process that has ended."""

    def __init__(self, folder: Path, *, quiet: bool = False, since: float = 0.0) -> None:
        self.folder = folder
        self.since = since
        self.console = Console(stderr=True, quiet=quiet)
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal and not quiet else None
        self._told = 0  # lines of history
        self._told_silence = False
        self._told_failed: dict[str, int] = {}  # by node

    def __enter__(self) -> "FederationDisplay":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays; a path or a node's words in it may have brackets."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def is_finished(self) -> bool:
        """Whether the run has come to its end."""
        return bool(self._read(RESULT).get("finished"))

    def refresh(self) -> None:
        """Show how things stand."""
        status = self._read("status.json")
        new = status.get("at", 0.0) >= self.since
        silence = _silence(status) if new else ""
        if self._live is not None and status:
            self._live.update(picture(status, silence), refresh=True)
        elif self._live is None:
            self._tell_new_versions(status.get("rounds"))
            if new:
                self._tell_failures(status)
            if silence and not self._told_silence:
                self.say(silence)
            self._told_silence = bool(silence)

    def _tell_new_versions(self, rounds: int | None) -> None:
        path = self.folder / HISTORY
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text.rpartition("\n")[0].splitlines()  # the last one may not be whole yet
        for line in map(_parsed, lines[self._told :]):
            if "version" not in line:  # damaged: the ServerApp will say so
                continue
            accuracy = f", accuracy {line['accuracy']:.1%}" if "accuracy" in line else ""
            staleness = " ".join(map(str, line["staleness"]))
            of = "" if rounds is None else f"/{rounds}"
            self.say(f"version {line['version']}{of}: {line['nodes']} nodes, staleness {staleness}{accuracy}")
        self._told = len(lines)

    def _tell_failures(self, status: dict[str, Any]) -> None:
        """Where there is no table to look at: jobs that fail are all that is seen of a wrong app."""
        for node in status.get("nodes", []):
            known, self._told_failed[node["node"]] = self._told_failed.get(node["node"], 0), node["failed"]
            if node["failed"] > known and node["why"]:
                self.say(f"client {node['client']}, failure {node['failed']}: {node['why']}")

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return _parsed((self.folder / name).read_bytes())
        except OSError:
            return {}


def _parsed(text: str | bytes) -> dict[str, Any]:
    """The mapping in a JSON text; nothing if there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _silence(status: dict[str, Any]) -> str:
    """That a run has not said for long how it stands: it merges for long, waits for its SuperLink, or is dead."""
    if "at" not in status or status["version"] >= status["rounds"]:
        return ""
    seconds = time.time() - status["at"]
    if seconds < _LONG:
        return ""
    return f"no word for {seconds:.0f} s from the ServerApp (process {status['pid']}): is it alive?"


def picture(status: dict[str, Any], silence: str = "") -> Group:
    """A federation's state: a headline, what is wrong with all of it, and a row for each node."""
    accuracy = "–" if status["accuracy"] is None else f"{status['accuracy']:.1%}"
    head = (
        f"{status['method']}: version {status['version']}/{status['rounds']}, accuracy {accuracy}, "
        f"{status['arrived']} of {status['wanted']} updates for the next merge, {status['under_way']} under way"
    )
    table = Table("client", "node", "state", "from version", "last staleness", "updates", "failed", "", box=None)
    for node in status["nodes"]:
        numbers = (_shown(node[name]) for name in ("version", "staleness", "done", "failed"))
        table.add_row(
            str(node["client"]), node["node"], node["state"], *numbers, Text(node["why"], overflow="ellipsis")
        )
    losses = {**status["dropped"], **status["refused"]}
    lost = ", ".join(f"{reason} ({count})" for reason, count in losses.items())
    away = f"; {status['turned_away']} nodes too many" if status["turned_away"] else ""
    warning = [Text(silence, style="bold red")] if silence else []
    return Group(Text(head), *warning, table, Text(f"came to nothing: {lost or 'no job'}{away}", style="dim"))


def _shown(value: int | None) -> str:
    return "–" if value is None else str(value)
