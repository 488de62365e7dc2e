"""A federation on a real network: jobs are messages, updates come back when they do."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from logging import INFO, WARNING
from typing import Any

import httpx
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from feddle.core.messages import Job
from feddle.core.seeds import numpy_generator, seed_for
from feddle.flower.plan import FederationPlan
from feddle.flower.roster import Node, Roster
from feddle.flower.wire import Order, UnreadableError, order_message, read_update
from feddle.learning.training import Recipe
from feddle.runtimes.simulation import Round
from feddle.server import Server
from feddle.strategies.strategy import above, below

_REMEMBERED = 10_000  # message ids that were answered, to tell a duplicate from what was never asked
_TELL_EVERY = 60.0  # seconds, that nobody is there
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


class Network:
    """Each round: give idle nodes jobs, take in what comes back, merge.

    A merge is due when N updates have arrived, or some time after the first of them, or when nobody is left to wait
    for. A reply counts only for the job that it answers and if it comes from the node that the job was sent to. An
    error ends a job, and so does its time limit; the node then cools down. A reply that comes after that, or twice, is
    dropped and counted in `dropped`.
    """

    def __init__(self, server: Server, grid: Grid, plan: FederationPlan, *, clock: Clock | None = None) -> None:
        self.server = server
        self.grid = grid
        self.plan = plan
        self.rules = plan.federation
        self.clock = clock or Clock()
        self.roster = Roster(plan.clients.count)
        self.dropped: Counter[str] = Counter()
        self.watch: Callable[[], None] = lambda: None  # called at each look
        self._recipe = Recipe(**plan.training.model_dump())
        self._under_way: dict[str, _Sent] = {}  # by message id
        self._given_up: dict[str, _Sent] = {}
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self._told_at = -_TELL_EVERY
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
        arrivals = self.server.advance()
        self.roster.merged()
        notes = {
            "sent": [list(astuple(job)) for job in self._sent],
            "jobs": [list(astuple(arrival.update.job)) for arrival in arrivals],
            "at": round(time.time(), 3),
            "nodes": sum(node.connected for node in self.roster.nodes.values()),
            "dropped": dict(self.dropped),
        }
        returned = self._returned
        self._new_round()
        return Round(jobs, returned, arrivals, notes)

    def _look(self) -> None:
        """One look at the network: who is there, what came back, what took too long; then new jobs."""
        self.roster.connect(self.grid.get_node_ids())
        for reply in self._pull():
            self._take(reply)
        self._give_up()
        self._tell_if_alone()
        if not self._is_due():  # else there will be a newer version in a moment
            self._send()

    def _is_due(self) -> bool:
        limit = self.server.strategy.max_staleness
        if limit is not None and limit < 0:  # a method that uses no update at all
            return True
        if self._first_at is None:
            return False
        waited = self.clock.now() - self._first_at
        return (
            self._accepted >= self.plan.clients.per_round
            or waited >= self.rules.merge_after
            or not (self._under_way or self.roster.idle(self.clock.now()))
        )

    # --- jobs out

    def _send(self) -> None:
        now = self.clock.now()
        idle = self.roster.idle(now)
        if not idle:
            return
        order = numpy_generator(seed_for(self.plan.seed, "sample", self.server.version, len(self._sent)))
        free = len(idle) if self.rules.at_once is None else max(0, self.rules.at_once - len(self._under_way))
        chosen = [idle[i] for i in order.permutation(len(idle))[:free]]
        for node in chosen:
            self._send_to(node, now)

    def _send_to(self, node: Node, now: float) -> None:
        job = self.server.dispatch(node.client)
        start = self.server.start_of(job)
        limit = self.rules.job_limit
        order = Order(job, start, self.server.digest, self._recipe, self.plan.seed)
        ids = list(self.grid.push_messages([order_message(order, node.id, ttl=2 * limit)]))
        node.begin(job)
        self._sent.append(job)
        if not ids or not ids[0]:  # Flower says so of a message that it could not send
            self._end(node, job, "not sent")
            return
        self._under_way[ids[0]] = _Sent(node, job, now + limit, now + 2 * limit)

    # --- updates in

    def _pull(self) -> Iterator[Message]:
        """What has come back, one message at a time: no two large ones at once, and none that spoils another."""
        for asked in [*self._under_way, *self._given_up]:
            try:
                yield from self.grid.pull_messages([asked])
            except httpx.HTTPError:  # the network, not the message
                raise
            except Exception as error:  # whatever a hostile message does to Flower, which builds it from a node's bytes
                self._drop_broken(asked, error)

    def _drop_broken(self, asked: str, error: Exception) -> None:
        self._given_up.pop(asked, None)
        sent = self._under_way.get(asked)
        if sent is not None:
            self._answer(asked)
            self._end(sent.node, sent.job, "broken", f"{type(error).__name__}: {error}")

    def _take(self, reply: Message) -> None:
        asked = reply.metadata.reply_to_message_id
        if asked in self._given_up:
            del self._given_up[asked]
            self._answered.append(asked)
            if reply.has_content():
                self.dropped["late"] += 1
            return
        sent = self._under_way.get(asked)
        if sent is None:
            self.dropped["duplicate" if asked in self._answered else "never asked for"] += 1
            return
        if reply.has_error():
            self._answer(asked)
            self._end(sent.node, sent.job, "error", reply.error.reason or f"code {reply.error.code}")
            return
        if reply.metadata.src_node_id != sent.node.id:  # the job goes on: nobody ends it in another's name
            self.dropped["from another node"] += 1
            return
        self._answer(asked)
        self._returned += 1
        self._receive(reply, sent)

    def _answer(self, asked: str) -> None:
        del self._under_way[asked]
        self._answered.append(asked)

    def _receive(self, reply: Message, sent: _Sent) -> None:
        before = Counter(self.server.refused)
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
        sent.node.succeed(self.server.version - sent.job.version)
        self._accepted += 1
        if self._first_at is None:
            self._first_at = self.clock.now()

    def _give_up(self) -> None:
        now = self.clock.now()
        for asked, sent in list(self._under_way.items()):
            if sent.wanted_until <= now:
                self._given_up[asked] = self._under_way.pop(asked)
                self._end(sent.node, sent.job, "expired", f"no reply within {self.rules.job_limit:g} s")
        for asked in [asked for asked, sent in self._given_up.items() if sent.kept_until <= now]:
            del self._given_up[asked]

    def _end(self, node: Node, job: Job, how: str, why: str = "") -> None:
        """A job came to nothing."""
        told = " ".join(why.split())[:_LONGEST_REASON]
        self.server.forget(job)
        node.fail(self.clock.now(), self.rules.cooldown, f"{how}: {told}" if told else how)
        if how != "refused":  # those are counted by the server, by reason
            self.dropped[how] += 1
        log(WARNING, "node %s (client %s), job %s: %s", node.id, node.client, job.number, node.why)

    def _tell_if_alone(self) -> None:
        now = self.clock.now()
        if any(node.connected for node in self.roster.nodes.values()) or now - self._told_at < _TELL_EVERY:
            return
        self._told_at = now
        log(INFO, "no node is connected; waiting for one")

    # --- what is seen and kept

    def status(self) -> dict[str, Any]:
        """How things stand, as JSON values."""
        return {
            "version": self.server.version,
            "rounds": self.plan.rounds,
            "arrived": self._accepted,
            "wanted": self.plan.clients.per_round,
            "under_way": len(self._under_way),
            "nodes": self.roster.view(self.clock.now()),
            "turned_away": len(self.roster.turned_away),
            "dropped": dict(self.dropped),
            "refused": dict(self.server.refused),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """The server, who has which number, and the counts, as tensors."""
        return {
            **above("server.", self.server.state_dict()),
            **above("roster.", self.roster.state_dict()),
            **above("dropped.", {reason: torch.tensor(count) for reason, count in self.dropped.items()}),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state: what was under way is lost, since replies reach only the run that asked."""
        self.server.load_state_dict(below("server.", state))
        for job in self.server.in_flight:
            self.server.forget(job)
        self.roster.load_state_dict(below("roster.", state))
        self.dropped = Counter({reason: int(count) for reason, count in below("dropped.", state).items()})
