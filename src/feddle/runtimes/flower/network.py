"""A federation on a real network: jobs and updates are messages, and updates may arrive at any time."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from logging import INFO, WARNING
from typing import Any

import httpx
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore import log
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from torch import Tensor

from feddle.core.errors import FeddleError, StoppedError, one_line
from feddle.core.messages import Job, Round
from feddle.core.seeds import numpy_generator, seed_for
from feddle.core.state import load, prefixed, save, without_prefix
from feddle.methods.strategy import max_staleness
from feddle.runtimes.flower.pulls import Pulls
from feddle.runtimes.flower.roster import Node, Roster, Rules
from feddle.runtimes.flower.wire import Order, UnreadableError, order_message, read_update
from feddle.server import Server
from feddle.training.train import Recipe

_LOG_EVERY = 60.0  # seconds between two log lines about the same problem
_PATIENCE = 600.0  # seconds that the SuperLink may answer with errors; while it does not answer, Flower itself waits
_TROUBLE = (httpx.HTTPError, OSError)  # errors of the network or of the SuperLink, not of a message
_LONGEST_REASON = 300


@dataclass(eq=False)
class _Sent:
    """A job that was sent to a node; after its time limit it is given up, but its message is kept for a while."""

    node: Node
    job: Job
    at: float
    given_up: bool = False


@dataclass(eq=False)
class _Progress:
    """What has happened since the last merge."""

    sent: list[Job] = field(default_factory=list)
    returned: int = 0
    accepted: int = 0  # updates that the merge will use
    first_at: float | None = None  # when the first update was accepted


@dataclass(eq=False)
class NetworkState:
    """The state of a network, except the state of its server."""

    layout: str  # digest of the model's layout
    roster: Roster
    dropped: Counter[str] = field(default_factory=Counter)  # jobs that ended without an update, by reason


@dataclass(eq=False)
class Network:
    """Each round: send jobs to idle nodes, receive updates, merge.

    A merge is due when N updates have arrived, or some time after the first of them, or when there is no node left to
    wait for. A reply counts only for the job that it answers, and only from the node that the job was sent to. An error
    or the time limit ends a job, and the node then cools down. A reply that arrives later, or twice, is dropped and
    counted in `dropped`.
    """

    server: Server
    grid: Grid
    rules: Rules
    recipe: Recipe
    seed: int
    per_round: int
    roster: Roster
    now: Callable[[], float] = time.monotonic  # tests have a virtual clock
    sleep: Callable[[float], None] = time.sleep
    watch: Callable[[], None] = lambda: None  # called after each check of the network

    def __post_init__(self) -> None:
        self.state = NetworkState(self.server.digest, self.roster)
        self._jobs: dict[str, _Sent] = {}  # by message id, oldest first
        self._pulls = Pulls(self.grid)
        self._progress = _Progress()
        self._trouble_since: float | None = None
        self._logged_at: dict[str, float] = {}

    @property
    def _under_way(self) -> dict[str, _Sent]:
        return {asked: sent for asked, sent in self._jobs.items() if not sent.given_up}

    def step(self) -> Round:
        """One round: until a merge is due."""
        self._look()
        while not self._is_due():
            self.watch()
            self.sleep(self.rules.poll)
            self._look()
        arrivals, merged = self.server.advance()
        for node in self.roster.nodes.values():
            node.waits = False
        done, self._progress = self._progress, _Progress()
        notes = {
            **merged,
            "sent": [list(astuple(job)) for job in done.sent],
            "jobs": [list(astuple(arrival.update.job)) for arrival in arrivals],
            "at": round(time.time(), 3),
            "nodes": self.roster.connected,
            "dropped": dict(self.state.dropped),
        }
        return Round(len(done.sent), done.returned, arrivals, notes)

    def _look(self) -> None:
        """Check the network: connected nodes, replies, time limits; then send new jobs."""
        try:
            connected = list(self.grid.get_node_ids())
        except _TROUBLE as error:
            self._tolerate(error)
            return
        self._trouble_since = None
        if turned_away := self.roster.connect(connected):  # a client's number is never reused for another node
            text = "too many nodes: %s get no job; clients.count is %s (%s of them are gone); raise it in a new run"
            gone = len(self.roster.nodes) - self.roster.connected
            log(WARNING, text, ", ".join(map(str, turned_away)), self.roster.limit, gone)
        for asked in list(self._jobs):
            for reply in self._pull(asked):
                self._take(asked, reply)
        self._give_up()
        if not self.roster.connected:
            self._log("alone", "no node is connected; waiting for one", level=INFO)
        if not self._is_due():  # otherwise there will soon be a newer version
            self._send()

    def _tolerate(self, error: Exception) -> None:
        """Skip a check that failed: no job reaches its time limit, since its reply may wait at the SuperLink."""
        now = self.now()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        if now - self._trouble_since >= _PATIENCE:
            raise StoppedError(
                f"the SuperLink has answered with errors for {_PATIENCE:g} s, the last one is {_describe(error)}; "
                "once that is fixed, start the run again: it continues from its checkpoint"
            ) from error
        self._log("trouble", "the SuperLink does not answer properly, trying again: %s", _describe(error))

    def _is_due(self) -> bool:
        limit, done, now = max_staleness(self.server.strategy), self._progress, self.now()
        if limit is not None and limit < 0:  # the method uses no updates at all
            return True
        return done.first_at is not None and (
            done.accepted >= self.per_round
            or now - done.first_at >= self.rules.merge_after
            or not (self._under_way or self.roster.idle(now))
        )

    # --- sending jobs

    def _send(self) -> None:
        idle = self.roster.idle(self.now())
        order = numpy_generator(seed_for(self.seed, "sample", self.server.version, len(self._progress.sent)))
        free = len(idle) if self.rules.at_once is None else max(0, self.rules.at_once - len(self._under_way))
        for i in order.permutation(len(idle))[:free]:
            self._send_to(idle[i])

    def _send_to(self, node: Node) -> None:
        job = self.server.dispatch(node.client)
        order = Order(job, self.server.start_of(job), self.server.digest, self.recipe, self.seed)
        sent = _Sent(node, job, self.now())
        node.job, node.was_gone = job, False
        self._progress.sent.append(job)
        asked = why = ""  # Flower returns no id for a message that it could not send
        try:
            asked = next(iter(self.grid.push_messages([order_message(order, node.id, 2 * self.rules.job_limit)])), "")
        except (*_TROUBLE, ObjectPushError) as error:
            why = _describe(error)
        if asked:
            self._jobs[asked] = sent
        else:
            self._end(sent, "not sent", why)

    # --- receiving updates

    def _pull(self, asked: str) -> list[Message]:
        try:
            return self._pulls.ask(asked)
        except _TROUBLE as error:  # repeated at the next check; if the trouble lasts, the job ends at its time limit
            self._log("pull", "a reply could not be fetched, trying again: %s", _describe(error))
        except Exception as error:  # Flower builds a message from a node's bytes, which may be hostile
            sent = self._close(asked)
            if not sent.given_up:
                self._end(sent, "broken", _describe(error))
        return []

    def _take(self, asked: str, reply: Message) -> None:
        """Handle a reply to the message `asked`; what the reply says about itself is not trusted."""
        sent = self._jobs.get(asked)
        if sent is None:
            self.state.dropped["duplicate"] += 1
        elif not _is_from(sent.node, reply):  # the job continues: no node can end the job of another one
            self.state.dropped["from another node"] += 1
        elif sent.given_up:
            self._close(asked)
            if reply.has_content():
                self.state.dropped["late"] += 1
        elif reply.has_error():
            self._end(self._close(asked), "error", reply.error.reason or f"code {reply.error.code}")
        else:
            self._progress.returned += 1
            self._receive(reply, self._close(asked))

    def _receive(self, reply: Message, sent: _Sent) -> None:
        before, zeros = Counter(self.server.refused), self.server.zero_updates
        try:
            accepted = self.server.receive(read_update(reply, sent.job, self.server.model))
        except UnreadableError as error:
            self.server.refuse(sent.job.client, str(error))
            accepted = False
        if not accepted:
            self._end(sent, "refused", next(iter(self.server.refused - before)))
            return
        staleness, limit = self.server.version - sent.job.version, max_staleness(self.server.strategy)
        sent.node.succeed(staleness)
        if self._progress.first_at is None:  # also after an unused update: its node now waits for a merge
            self._progress.first_at = self.now()
        if self.server.zero_updates == zeros and (limit is None or staleness <= limit):
            self._progress.accepted += 1

    def _give_up(self) -> None:
        """End jobs at their time limit, and forget them at twice the limit, when Flower drops their messages."""
        now, limit = self.now(), self.rules.job_limit
        for asked, sent in list(self._jobs.items()):  # oldest first, since closing a job clears `overdue`
            if sent.given_up and now >= sent.at + 2 * limit:
                self._close(asked)
            elif not sent.given_up and now >= sent.at + limit:
                sent.given_up = True
                self._end(sent, "expired", f"no reply within {limit:g} s")
                sent.node.overdue = not sent.node.was_gone

    def _close(self, asked: str) -> _Sent:
        """Forget a job whose node has replied, or whose message Flower has dropped: it no longer runs there."""
        sent = self._jobs.pop(asked)
        self._pulls.forget(asked)
        if sent.given_up:
            sent.node.overdue = False
        return sent

    def _end(self, sent: _Sent, how: str, why: str = "") -> None:
        """End a job without an update."""
        node, reason = sent.node, _cut(why)
        self.server.forget(sent.job)
        node.fail(self.now(), self.rules.cooldown, f"{how}: {reason}" if reason else how)
        if how != "refused":  # the server counts those, by reason
            self.state.dropped[how] += 1
        log(WARNING, "node %s (client %s), job %s: %s", node.id, node.client, sent.job.number, node.why)

    # --- logging and state

    def _log(self, kind: str, text: str, *values: object, level: int = WARNING) -> None:
        """Log a problem that lasts, at most once a minute."""
        now = self.now()
        if now - self._logged_at.get(kind, -_LOG_EVERY) >= _LOG_EVERY:
            self._logged_at[kind] = now
            log(level, text, *values)

    def status(self) -> dict[str, Any]:
        """The current state, as JSON values."""
        return {
            "version": self.server.version,
            "arrived": self._progress.accepted,
            "wanted": self.per_round,
            "under_way": len(self._under_way),
            "nodes": [node.view(self.now()) for node in self.roster.nodes.values()],
            "turned_away": len(self.roster.turned_away),
            "dropped": dict(self.state.dropped),
            "refused": dict(self.server.refused),
        }

    def facts(self) -> dict[str, Any]:
        """Jobs that ended without an update, by reason, and the number of nodes that ever took part."""
        return {"dropped": dict(self.state.dropped), "clients": len(self.roster.nodes)}

    def state_dict(self) -> dict[str, Tensor]:
        """The server, the nodes' numbers and the counts, as tensors."""
        return {**prefixed("server", self.server.state_dict()), **save(self.state)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state; jobs under way are lost, since replies reach only the run that sent them."""
        load(self.state, state)
        if self.state.layout != self.server.digest:  # the user may have changed the app
            raise FeddleError(
                "the checkpoint belongs to a federation with another model; undo the change to the model, or start a "
                "new run in another folder"
            )
        self.server.load_state_dict(without_prefix("server", state))
        for job in self.server.in_flight:
            self.server.forget(job)


def _is_from(node: Node, reply: Message) -> bool:
    """Whether a node sent the reply, or the SuperLink reports that the node is gone or its reply lost."""
    source = reply.metadata.src_node_id
    return source == node.id or (source == SUPERLINK_NODE_ID and reply.has_error())


def _describe(error: Exception) -> str:
    return _cut(f"{type(error).__name__}: {error}")


def _cut(text: str) -> str:
    """Text from a node on one line, without control characters that a terminal would execute."""
    return one_line(" ".join(text.split())[:_LONGEST_REASON], _LONGEST_REASON)
