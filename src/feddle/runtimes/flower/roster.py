"""The nodes that take part, the state of each, and the time limits of their jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.messages import Job
from feddle.options import Count, NonNegative, Options, Positive

_LONGEST_COOLDOWN = 16  # times the shortest


class Rules(Options):
    """When updates are merged and jobs end, in seconds."""

    merge_after: Positive = Field(
        600.0, description="seconds after the first update until the updates that have arrived are merged"
    )
    job_limit: Positive = Field(3600.0, description="time limit of a job in seconds; later updates are dropped")
    cooldown: NonNegative = Field(
        60.0, description="seconds without a job after a node has failed; doubled after each further failure in a row"
    )
    at_once: Count | None = Field(None, description="largest number of jobs under way; by default one per node")
    poll: Positive = Field(1.0, description="seconds between two checks for replies")


@dataclass
class Node:
    """A node of the network; `client` is its number in jobs, counted in the order in which nodes first connected."""

    id: int
    client: int
    connected: bool = True
    job: Job | None = None  # under way
    waits: bool = False  # for the merge that uses its update: until then there is no newer model to start from
    ready_at: float = 0.0  # end of its cooldown
    was_gone: bool = False  # it was disconnected since its last job began, so the job was lost
    overdue: bool = False  # its last job was given up, and may still be running there
    failures: int = 0  # in a row
    done: int = 0
    failed: int = 0
    staleness: int | None = None  # of its last update
    why: str = ""  # reason why its last job ended without an update

    def succeed(self, staleness: int) -> None:
        """Note that its update was accepted."""
        self.job, self.waits, self.failures, self.staleness, self.why = None, True, 0, staleness, ""
        self.done += 1

    def fail(self, now: float, cooldown: float, why: str) -> None:
        """Note that its job ended without an update; its cooldown doubles with each failure in a row."""
        self.ready_at = now + cooldown * min(2**self.failures, _LONGEST_COOLDOWN)
        self.job, self.why = None, why
        self.failures += 1
        self.failed += 1

    def state(self, now: float) -> str:
        """Its state as a word for the operator; an idle node can be given a job."""
        if not self.connected:
            return "gone"
        if self.job is not None:
            return "training"
        if self.overdue:
            return "overdue"
        if self.waits:
            return "waiting"
        return "cooling down" if self.ready_at > now else "idle"

    def view(self, now: float) -> dict[str, Any]:
        """The node as JSON values; its id is text, since the number is too long for JavaScript."""
        version = None if self.job is None else self.job.version
        shown = {name: getattr(self, name) for name in ("client", "done", "failed", "staleness", "why")}
        return {"node": str(self.id), "state": self.state(now), "version": version, **shown}


@dataclass(eq=False)
class Roster:
    """All nodes that ever connected, at most `limit`; a node keeps its client number as long as it keeps its id."""

    limit: int
    nodes: dict[int, Node] = field(default_factory=dict)
    turned_away: set[int] = field(default_factory=set)

    @property
    def connected(self) -> int:
        """Number of nodes that are connected now."""
        return sum(node.connected for node in self.nodes.values())

    def connect(self, ids: Iterable[int]) -> list[int]:
        """Set which nodes are connected now; return the ids that are turned away for the first time."""
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
        """The nodes that can be given a job, by client number."""
        return [node for node in self.nodes.values() if node.state(now) == "idle"]

    def state_dict(self) -> dict[str, Tensor]:
        """Id, done and failed of each node, by client number; ids are unsigned numbers of 64 bits, stored as signed."""
        rows = [((node.id + 2**63) % 2**64 - 2**63, node.done, node.failed) for node in self.nodes.values()]
        return {"nodes": torch.tensor(rows, dtype=torch.int64)}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a saved state: no node has a job, and none is known to be connected."""
        for client, (signed, done, failed) in enumerate(saved["nodes"].tolist()):
            node = Node(signed % 2**64, client, connected=False, done=done, failed=failed)
            self.nodes[node.id] = node
