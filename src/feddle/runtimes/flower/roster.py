"""The nodes that take part, and how they are doing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from feddle.core.messages import Job
from feddle.core.state import load

_LONGEST_COOLDOWN = 16  # times the shortest


@dataclass
class Node:
    """A node of the network; `client` is the number that jobs know it by, in the order in which nodes first came."""

    id: int
    client: int
    connected: bool = True
    job: Job | None = None  # under way
    waits: bool = False  # for the merge that takes in its update: until then there is nothing new to start from
    ready_at: float = 0.0  # it cools down until then
    was_gone: bool = False  # since its last job began, which was then lost
    overdue: bool = False  # its last job was given up, and may still be running there
    failures: int = 0  # in a row
    done: int = 0
    failed: int = 0
    staleness: int | None = None  # of its last update
    why: str = ""  # its last job came to nothing

    def begin(self, job: Job) -> None:
        """A job is sent."""
        self.job, self.was_gone = job, False

    def succeed(self, staleness: int) -> None:
        """Its update was accepted."""
        self.job, self.waits, self.failures, self.staleness, self.why = None, True, 0, staleness, ""
        self.done += 1

    def fail(self, now: float, cooldown: float, why: str) -> None:
        """Its job came to nothing: it cools down, longer each time."""
        self.ready_at = now + cooldown * min(2**self.failures, _LONGEST_COOLDOWN)
        self.job, self.why = None, why
        self.failures += 1
        self.failed += 1

    def is_idle(self, now: float) -> bool:
        """Whether it can be given a job."""
        return self.connected and not (self.job or self.waits or self.overdue) and self.ready_at <= now

    def state(self, now: float) -> str:
        """How it is doing, in a word."""
        if not self.connected:
            return "gone"
        if self.job is not None:
            return "training"
        if self.overdue:
            return "overdue"
        if self.waits:
            return "waiting"
        return "cooling down" if self.ready_at > now else "idle"


class Roster:
    """All nodes that ever came, at most so many: a client's number lasts as long as its node's id."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nodes: dict[int, Node] = {}
        self.turned_away: set[int] = set()

    def connect(self, ids: Iterable[int]) -> list[int]:
        """These are connected now, and no others; returns those that are turned away for the first time."""
        connected = set(ids)
        new = sorted(connected - self.nodes.keys() - self.turned_away)
        free = max(0, self.limit - len(self.nodes))
        for node_id in new[:free]:
            self.nodes[node_id] = Node(node_id, len(self.nodes))
        self.turned_away.update(new[free:])
        for node in self.nodes.values():
            node.connected = node.id in connected
            if not node.connected:
                node.was_gone, node.overdue = True, False
        return new[free:]

    def idle(self, now: float) -> list[Node]:
        """Those that can be given a job, by number."""
        return [node for node in self.nodes.values() if node.is_idle(now)]

    def merged(self) -> None:
        """There is a new version to start from."""
        for node in self.nodes.values():
            node.waits = False

    def view(self, now: float) -> list[dict[str, Any]]:
        """Every node as JSON values."""
        return [
            {
                "node": str(node.id),  # too long a number for JavaScript
                "client": node.client,
                "state": node.state(now),
                "version": None if node.job is None else node.job.version,
                "done": node.done,
                "failed": node.failed,
                "staleness": node.staleness,
                "why": node.why,
            }
            for node in self.nodes.values()
        ]

    @property
    def state(self) -> "RosterState":
        """What is saved: who has which number, and their counts."""
        return RosterState([_Row(_signed(node.id), node.done, node.failed) for node in self.nodes.values()])

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a saved state: nobody has a job, and nobody is known to be connected."""
        state = RosterState()
        load(state, saved)
        nodes = [
            Node(row.id % 2**64, client, connected=False, done=row.done, failed=row.failed)
            for client, row in enumerate(state.nodes)
        ]
        self.nodes = {node.id: node for node in nodes}


@dataclass(frozen=True)
class _Row:
    """A node in a checkpoint; its id is an unsigned number of 64 bits, kept as a signed one."""

    id: int
    done: int
    failed: int


@dataclass(eq=False)
class RosterState:
    """The nodes by their client number."""

    nodes: list[_Row] = field(default_factory=list)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
