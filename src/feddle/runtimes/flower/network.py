"""A federation on a real network: jobs are messages, updates come back when they do."""

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
from pydantic import Field
from torch import Tensor

from feddle.core.errors import FeddleError, StoppedError, one_line
from feddle.core.messages import Job, Round
from feddle.core.seeds import numpy_generator, seed_for
from feddle.core.state import load, prefixed, save, without_prefix
from feddle.methods.strategy import max_staleness
from feddle.options import Count, NonNegative, Options, Positive
from feddle.runtimes.flower.pulls import Pulls
from feddle.runtimes.flower.roster import Node, Roster
from feddle.runtimes.flower.wire import Order, UnreadableError, order_message, read_update
from feddle.server import Server
from feddle.training.train import Recipe

_TELL_EVERY = 60.0  # seconds, what goes on for longer
_PATIENCE = 600.0  # seconds that the SuperLink may answer with errors; while it does not answer, Flower itself waits
_TROUBLE = (httpx.HTTPError, OSError)  # of the network or of the SuperLink, not of a message
_LONGEST_REASON = 300


@dataclass(frozen=True)
class _Sent:
    """A job that was sent to a node, and until when its reply is wanted and kept."""

    node: Node
    job: Job
    wanted_until: float
    kept_until: float


@dataclass
class Clock:
    """The real time; tests have one of their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Rules(Options):
    """When updates are merged and jobs end, in seconds."""

    merge_after: Positive = Field(600.0, description="seconds after the first arrival until what has arrived is merged")
    job_limit: Positive = Field(3600.0, description="seconds until a job is given up; its update is then too late")
    cooldown: NonNegative = Field(
        60.0, description="seconds without a job after a node has failed; doubled each time in a row"
    )
    at_once: Count | None = Field(
        None, description="largest number of jobs under way; by default one for each connected node"
    )
    poll: Positive = Field(1.0, description="seconds between two looks for replies")


@dataclass(eq=False)
class NetworkState:
    """What a network remembers besides its server and its nodes."""

    layout: str  # digest of the model's layout
    dropped: Counter[str] = field(default_factory=Counter)  # jobs that ended without an update, by reason


class Network:
    """Each round: give idle nodes jobs, take in what comes back, merge.

    A merge is due when N updates have arrived, or some time after the first of them, or when nobody is left to wait
    for. A reply counts only for the job that it answers and if it comes from the node that the job was sent to. An
    error ends a job, and so does its time limit; the node then cools down. A reply that comes after that, or twice, is
    dropped and counted in `dropped`.
    """

    def __init__(
        self,
        server: Server,
        grid: Grid,
        rules: Rules,
        *,
        recipe: Recipe,
        seed: int,
        per_round: int,
        limit: int,
        clock: Clock | None = None,
    ) -> None:
        self.server = server
        self.grid = grid
        self.rules = rules
        self.recipe = recipe
        self.seed = seed
        self.per_round = per_round
        self.clock = clock or Clock()
        self.roster = Roster(limit)
        self.state = NetworkState(server.digest)
        self.watch: Callable[[], None] = lambda: None  # called at each look
        self._under_way: dict[str, _Sent] = {}  # by message id
        self._given_up: dict[str, _Sent] = {}
        self._pulls = Pulls(grid)
        self._trouble_since: float | None = None
        self._told_at: dict[str, float] = {}
        self._new_round()

    def _new_round(self) -> None:
        self._sent: list[Job] = []
        self._returned = 0
        self._accepted = 0
        self._first_at: float | None = None

    def step(self) -> Round:
        """One round: until a merge is due."""
        self._look()
        while not self._is_due():
            self.watch()
            self.clock.sleep(self.rules.poll)
            self._look()
        jobs = len(self._sent)
        arrivals, merged = self.server.advance()
        self.roster.merged()
        notes = {
            **merged,
            "sent": [list(astuple(job)) for job in self._sent],
            "jobs": [list(astuple(arrival.update.job)) for arrival in arrivals],
            "at": round(time.time(), 3),
            "nodes": sum(node.connected for node in self.roster.nodes.values()),
            "dropped": dict(self.state.dropped),
        }
        returned = self._returned
        self._new_round()
        return Round(jobs, returned, arrivals, notes)

    def _look(self) -> None:
        """One look at the network: who is there, what came back, what took too long; then new jobs."""
        try:
            connected = list(self.grid.get_node_ids())
        except _TROUBLE as error:
            self._bear(error)
            return
        self._trouble_since = None
        self._tell_turned_away(self.roster.connect(connected))
        for asked in [*self._under_way, *self._given_up]:
            for reply in self._pull(asked):
                self._take(asked, reply)
        self._give_up()
        self._tell_if_alone()
        if not self._is_due():  # else there will be a newer version in a moment
            self._send()

    def _bear(self, error: Exception) -> None:
        """A look that failed is skipped: nobody's time limit passes, since their replies may wait at the SuperLink."""
        now = self.clock.now()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        if now - self._trouble_since >= _PATIENCE:
            raise StoppedError(
                f"the SuperLink has answered with errors for {_PATIENCE:g} s, last with {_one_line(error)}; "
                "once that is mended, start the run again: it goes on from its checkpoint"
            ) from error
        self._tell("trouble", "the SuperLink cannot be asked, trying on: %s", _one_line(error))

    def _is_due(self) -> bool:
        limit = max_staleness(self.server.strategy)
        if limit is not None and limit < 0:  # the method uses no updates at all
            return True
        if self._first_at is None:
            return False
        waited = self.clock.now() - self._first_at
        return (
            self._accepted >= self.per_round
            or waited >= self.rules.merge_after
            or not (self._under_way or self.roster.idle(self.clock.now()))
        )

    # --- jobs out

    def _send(self) -> None:
        now = self.clock.now()
        idle = self.roster.idle(now)
        if not idle:
            return
        order = numpy_generator(seed_for(self.seed, "sample", self.server.version, len(self._sent)))
        free = len(idle) if self.rules.at_once is None else max(0, self.rules.at_once - len(self._under_way))
        chosen = [idle[i] for i in order.permutation(len(idle))[:free]]
        for node in chosen:
            self._send_to(node, now)

    def _send_to(self, node: Node, now: float) -> None:
        job = self.server.dispatch(node.client)
        start = self.server.start_of(job)
        limit = self.rules.job_limit
        order = Order(job, start, self.server.digest, self.recipe, self.seed)
        node.begin(job)
        self._sent.append(job)
        try:
            ids = list(self.grid.push_messages([order_message(order, node.id, ttl=2 * limit)]))
        except (*_TROUBLE, ObjectPushError) as error:
            self._end(node, job, "not sent", _one_line(error))
            return
        if not ids or not ids[0]:  # Flower says so of a message that it could not send
            self._end(node, job, "not sent")
            return
        self._under_way[ids[0]] = _Sent(node, job, now + limit, now + 2 * limit)

    # --- updates in

    def _pull(self, asked: str) -> list[Message]:
        try:
            return self._pulls.ask(asked)
        except _TROUBLE as error:  # asked again at the next look; if it stays so, the job ends at its time limit
            self._tell("pull", "a reply could not be fetched, trying on: %s", _one_line(error))
        except Exception as error:  # whatever a hostile message does to Flower, which builds it from a node's bytes
            self._drop_broken(asked, error)
        return []

    def _drop_broken(self, asked: str, error: Exception) -> None:
        if asked in self._given_up:
            self._forget_given_up(asked)
        elif asked in self._under_way:
            sent = self._under_way.pop(asked)
            self._end(sent.node, sent.job, "broken", _one_line(error))

    def _take(self, asked: str, reply: Message) -> None:
        """A reply to the message `asked`, whatever the reply says of itself: that is a node's word."""
        sent = self._under_way.get(asked) or self._given_up.get(asked)
        if sent is None:
            self.state.dropped["duplicate"] += 1
        elif not _is_from(sent.node, reply):  # the job goes on: nobody ends it in another's name
            self.state.dropped["from another node"] += 1
        elif asked in self._given_up:
            self._forget_given_up(asked)
            if reply.has_content():
                self.state.dropped["late"] += 1
        elif reply.has_error():
            del self._under_way[asked]
            self._end(sent.node, sent.job, "error", reply.error.reason or f"code {reply.error.code}")
        else:
            del self._under_way[asked]
            self._returned += 1
            self._receive(reply, sent)

    def _receive(self, reply: Message, sent: _Sent) -> None:
        before, zeros = Counter(self.server.refused), self.server.zero_updates
        try:
            update = read_update(reply, sent.job, self.server.model)
            accepted = self.server.receive(update)
        except UnreadableError as error:
            self.server.refused[str(error)] += 1
            accepted = False
        if not accepted:
            reason = next(iter(self.server.refused - before))
            self._end(sent.node, sent.job, "refused", reason)
            return
        staleness, limit = self.server.version - sent.job.version, max_staleness(self.server.strategy)
        sent.node.succeed(staleness)
        if self._first_at is None:  # whatever it is worth, the node waits for a merge from here on
            self._first_at = self.clock.now()
        if self.server.zero_updates == zeros and (limit is None or staleness <= limit):
            self._accepted += 1  # one that the merge makes use of

    def _give_up(self) -> None:
        now = self.clock.now()
        for asked in [asked for asked, sent in self._given_up.items() if sent.kept_until <= now]:
            self._forget_given_up(asked)  # first: a node's job before the one that is given up now says nothing of it
        for asked, sent in list(self._under_way.items()):
            if sent.wanted_until <= now:
                self._given_up[asked] = self._under_way.pop(asked)
                self._end(sent.node, sent.job, "expired", f"no reply within {self.rules.job_limit:g} s")
                sent.node.overdue = not sent.node.was_gone

    def _forget_given_up(self, asked: str) -> None:
        """Its node has reported back, or Flower has dropped the message: nothing of the job is left there."""
        self._given_up.pop(asked).node.overdue = False
        self._pulls.forget(asked)

    def _end(self, node: Node, job: Job, how: str, why: str = "") -> None:
        """A job came to nothing."""
        told = _cut(why)
        self.server.forget(job)
        node.fail(self.clock.now(), self.rules.cooldown, f"{how}: {told}" if told else how)
        if how != "refused":  # those are counted by the server, by reason
            self.state.dropped[how] += 1
        log(WARNING, "node %s (client %s), job %s: %s", node.id, node.client, job.number, node.why)

    def _tell_if_alone(self) -> None:
        if not any(node.connected for node in self.roster.nodes.values()):
            self._tell("alone", "no node is connected; waiting for one", level=INFO)

    def _tell_turned_away(self, new: list[int]) -> None:
        """Once for each node; a client's number is never given to another, since methods remember clients."""
        if new:
            gone = sum(not node.connected for node in self.roster.nodes.values())
            told = (
                "too many nodes: %s get no job, since clients.count is %s (%s of them are gone); raise it in a new run"
            )
            log(WARNING, told, ", ".join(map(str, new)), self.roster.limit, gone)

    def _tell(self, kind: str, text: str, *values: object, level: int = WARNING) -> None:
        """What goes on for longer is told now and then."""
        now = self.clock.now()
        if now - self._told_at.get(kind, -_TELL_EVERY) >= _TELL_EVERY:
            self._told_at[kind] = now
            log(level, text, *values)

    # --- what is seen and kept

    def status(self) -> dict[str, Any]:
        """How things stand, as JSON values."""
        return {
            "version": self.server.version,
            "arrived": self._accepted,
            "wanted": self.per_round,
            "under_way": len(self._under_way),
            "nodes": self.roster.view(self.clock.now()),
            "turned_away": len(self.roster.turned_away),
            "dropped": dict(self.state.dropped),
            "refused": dict(self.server.refused),
        }

    def facts(self) -> dict[str, Any]:
        """Jobs that ended without an update, by reason, and the number of nodes that ever took part."""
        return {"dropped": dict(self.state.dropped), "clients": len(self.roster.nodes)}

    def state_dict(self) -> dict[str, Tensor]:
        """The server, the nodes' numbers and the counts, as tensors."""
        return {
            **prefixed("server", self.server.state_dict()),
            **prefixed("roster", save(self.roster.state)),
            **save(self.state),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state; jobs under way are lost, since replies reach only the run that sent them."""
        saved = NetworkState("")
        load(saved, state)
        if saved.layout != self.server.digest:  # the user may have changed the app
            raise FeddleError(
                "the checkpoint is of a federation with another model; undo the change to the model, or start a new "
                "run in another folder"
            )
        self.state = saved
        self.server.load_state_dict(without_prefix("server", state))
        for job in self.server.in_flight:
            self.server.forget(job)
        self.roster.restore(without_prefix("roster", state))


def _is_from(node: Node, reply: Message) -> bool:
    """Whether a node sent it; that a node is gone or its reply lost, the SuperLink says in the node's stead."""
    source = reply.metadata.src_node_id
    return source == node.id or (source == SUPERLINK_NODE_ID and reply.has_error())


def _one_line(error: Exception) -> str:
    return _cut(f"{type(error).__name__}: {error}")


def _cut(text: str) -> str:
    """A node's words, on one line, with nothing in them that a terminal obeys."""
    return one_line(" ".join(text.split())[:_LONGEST_REASON], _LONGEST_REASON)
