"""Federations on Flower: the server's loop on a grid with a simulated clock, then real processes."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import GetNodesResponse
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from rich.console import Console
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from command import PYTHON, run_feddle, run_process, wait_for_end
from feddle.cli.display import FederationDisplay, picture
from feddle.clients.work import ClientWork
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Layout
from feddle.core.messages import Job, Update
from feddle.core.seeds import global_seed, seed_for
from feddle.data.examples import as_examples
from feddle.flower.certificates import Certificates
from feddle.flower.local import LocalFederation
from feddle.flower.plan import APP, make_plan
from feddle.flower.replay import replay
from feddle.flower.run import Feddle, federated, run_in_folder, status_of
from feddle.run.folder import RunFolder
from feddle.run.run import Run, build_server
from feddle.runtimes.flower.client import train_job
from feddle.runtimes.flower.network import Network
from feddle.runtimes.flower.pulls import Pulls
from feddle.runtimes.flower.wire import Order, UnreadableError, order_message, read_order, read_update, update_message
from feddle.training.train import Recipe
from federation.client_data import share
from federation.model import make_model
from federation.server_data import held_out_data, server_data
from needs import linux
from waiting import LIMIT, patient, wait_until

# --- a grid whose nodes reply by a simulated clock, for cases that take too long with real processes


@dataclass
class Time:
    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 1e5, "the federation waits forever"


Answers = Iterable[tuple[float, Message]]  # the seconds until each reply, and the reply


@dataclass(eq=False)
class SmallGrid(Grid):
    """A grid in memory. `answer` returns a node's replies to a message; each is delivered once, as by a SuperLink."""

    time: Time
    answer: Callable[[Message], Answers]
    nodes: Callable[[float], Sequence[int]]  # the nodes that are connected at a time
    sent: list[tuple[float, int]] = field(default_factory=list)
    replies: list[tuple[float, Message]] = field(default_factory=list)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise AssertionError("the loop does not read this")

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError("the loop does not use this deprecated method")

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise AssertionError("the loop does not wait for all nodes")

    def get_node_ids(self) -> Sequence[int]:
        return self.nodes(self.time.now)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            ids.append(message.metadata.message_id)
            self.sent.append((self.time.now, message.metadata.dst_node_id))
            self.replies += [(self.time.now + after, reply) for after, reply in self.answer(message)]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        due = [r for r in self.replies if r[0] <= self.time.now and r[1].metadata.reply_to_message_id in asked]
        self.replies = [r for r in self.replies if r not in due]
        return [reply for _, reply in sorted(due, key=lambda r: r[0])]


NODES = (2**63 + 11, 7, 12345)  # ids are unsigned numbers of 64 bits; client 0 is node 7, client 1 is 12345
BY_NUMBER = tuple(sorted(NODES))
POINTS = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
LABELS = (POINTS.prod(1) > 0).long()
SHARES = [TensorDataset(POINTS[i : i + 20], LABELS[i : i + 20]) for i in range(0, 60, 20)]
SERVER, TEST = TensorDataset(POINTS[60:90], LABELS[60:90]), TensorDataset(POINTS[90:], LABELS[90:])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def trained(message: Message) -> Message:
    """The reply of an honest node."""
    return train_job(message, net(), SHARES[BY_NUMBER.index(message.metadata.dst_node_id)])


def delays(message: Message) -> float:
    """The seconds until a node replies. Node 7 is fast, the others are slow."""
    return {7: 2.0, 12345: 5.0}.get(message.metadata.dst_node_id, 11.0)


def honest(message: Message) -> Answers:
    return [(delays(message), trained(message))]


def failed(message: Message, reason: str = "out of memory") -> Message:
    return Message(Error(2, reason), reply_to=message)


SETTINGS: dict[str, Any] = {
    "rounds": 6,
    "clients": {"count": 10, "per_round": 2},
    "training": {"epochs": 1, "batch_size": 10},
    "method": {"name": "feddle", "search": {"epochs": 1}},
    "federation": {"merge_after": 100.0, "job_limit": 300.0, "cooldown": 30.0},
}


def federate(answer: Callable[[Message], Answers] = honest, /, **changes: Any) -> Run[Network]:
    """Run a federation on a small grid."""
    run = ready(answer, **changes)
    run.go()
    return run


def ready(
    answer: Callable[[Message], Answers] = honest,
    /,
    nodes: Callable[[float], Sequence[int]] = lambda _: NODES,
    **changes: Any,
) -> Run[Network]:
    moments = Time()
    plan = make_plan({**SETTINGS, **changes}, source="test")
    run = federated(plan, at_server(), SmallGrid(moments, answer, nodes))
    run.runtime.now, run.runtime.sleep = (lambda: moments.now), moments.sleep
    return run


def at_server() -> Any:
    with global_seed(3):
        model = net()
    return Feddle(model, server=SERVER, test=TEST).problem


def grid_of(run: Run[Network]) -> SmallGrid:
    assert isinstance(run.runtime.grid, SmallGrid)
    return run.runtime.grid


def jobs(run: Run[Network]) -> list[list[tuple[int, int, int]]]:
    return [[tuple(job) for job in line["jobs"]] for line in run.history]


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the identity that Flower needs to create messages, as in the process of an app."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


# --- rounds


def test_a_merge_is_due_when_enough_updates_have_arrived() -> None:
    run = federate(rounds=4)
    # 7 replies after 2 s, 12345 after 5 s: merge. Both start again at 5 s, and the next merge is at 10 s.
    # The third node replies at 11 s, two versions late.
    assert jobs(run)[0] == [(0, 0, 0), (1, 0, 0)]
    assert jobs(run)[1] == [(0, 1, 1), (1, 1, 1)]
    assert jobs(run)[2] == [(2, 0, 0), (0, 2, 2)]
    assert [line["staleness"] for line in run.history] == [[0, 0], [0, 0], [2, 0], [0, 1]]
    assert sorted(run.history[0]["sent"]) == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert run.result["finished"]
    assert run.result["clients"] == 3


def test_a_merge_is_due_after_some_time_with_at_least_one_update() -> None:
    late = lambda m: [(2.0 if m.metadata.dst_node_id == 7 else 250.0, trained(m))]  # noqa: E731
    run = federate(late, rounds=2)
    assert jobs(run) == [[(0, 0, 0)], [(0, 1, 1)]]
    assert 200 < grid_of(run).time.now < 215, "100 s after each first update"


def test_a_merge_does_not_wait_for_more_nodes_than_there_are() -> None:
    run = federate(rounds=2, clients={"count": 10, "per_round": 9})
    assert [len(of) for of in jobs(run)] == [3, 3]
    assert grid_of(run).time.now < 30, "all three have replied, and there are no other nodes"


def test_nodes_connect_and_disconnect() -> None:
    def connected(now: float) -> Sequence[int]:
        return [] if now < 50 else [7, 12345] if now < 60 else [NODES[0]]

    run = federate(honest, nodes=connected, rounds=12, clients={"count": 10, "per_round": 1})
    assert grid_of(run).sent[0][0] == 50, "no node is connected before"
    assert {node for when, node in grid_of(run).sent if when >= 60} == {NODES[0]}
    assert [node.client for node in run.runtime.roster.nodes.values()] == [0, 1, 2]


def test_the_plan_limits_the_number_of_nodes_and_of_jobs_at_once() -> None:
    rules = {**SETTINGS["federation"], "at_once": 1}
    run = federate(rounds=3, clients={"count": 2, "per_round": 1}, federation=rules)
    assert status_of(run)["turned_away"] == 1
    assert {node for _, node in grid_of(run).sent} <= {7, 12345}
    times = [when for when, _ in grid_of(run).sent]
    assert all(later - sooner >= 2 for sooner, later in pairwise(times)), "one job after the other"


def test_a_method_that_uses_no_updates_sends_no_jobs() -> None:
    run = federate(method={"name": "center", "epochs": 6})
    assert not grid_of(run).sent
    assert run.server.version == 6


# --- failures


def test_an_error_ends_a_job_and_the_node_cools_down_longer_each_time() -> None:
    def answer(message: Message) -> Answers:
        return [(1.0, failed(message))] if message.metadata.dst_node_id == 12345 else honest(message)

    run = federate(answer, rounds=40)
    asked = [when for when, node in grid_of(run).sent if node == 12345]
    waits = [later - sooner - 1.0 for sooner, later in pairwise(asked)]
    assert len(waits) >= 2
    assert 30 <= waits[0] < 34
    assert 60 <= waits[1] < 64
    assert run.runtime.state.dropped["error"] == len(asked)
    assert run.runtime.roster.nodes[12345].why == "error: out of memory"
    assert not any(job[0] == 1 for of in jobs(run) for job in of)


def test_the_error_of_a_node_is_one_line_without_control_characters() -> None:
    run = federate(
        lambda m: [(1.0, failed(m, "\x1b[2J\x1b]0;owned\x07 out\nof memory"))] if delays(m) == 5.0 else honest(m)
    )
    assert run.runtime.roster.nodes[12345].why == r"error: \x1b[2J\x1b]0;owned\x07 out of memory"


def test_a_job_over_the_time_limit_expires_and_its_update_is_dropped() -> None:
    slow = lambda m: [(2.0 if m.metadata.dst_node_id == 7 else 400.0, trained(m))]  # noqa: E731
    run = federate(slow, rounds=60)
    assert run.runtime.state.dropped["expired"] >= 2
    assert run.runtime.state.dropped["late"] >= 2
    assert {job[0] for of in jobs(run) for job in of} == {0}
    assert not run.server.in_flight - {sent.job for sent in run.runtime._under_way.values()}, (
        "no version is kept for an expired job"
    )


def test_a_duplicate_reply_counts_once() -> None:
    run = federate(lambda m: 2 * list(honest(m)), rounds=3)
    assert run.runtime.state.dropped == {"duplicate": 6}
    assert run.server.refused == {}
    assert len({job for of in jobs(run) for job in of}) == 6


def test_a_reply_from_another_node_is_dropped() -> None:
    def answer(message: Message) -> Answers:
        forged = trained(message)
        forged.metadata.__dict__["_src_node_id"] = 12345
        mine = message.metadata.dst_node_id == 12345
        return honest(message) if mine else [(1.0, forged), *honest(message)]

    run, plain = federate(answer), federate(honest)
    assert run.runtime.state.dropped["from another node"] > 2
    assert jobs(run) == jobs(plain)
    assert torch.equal(run.server.model.vector, plain.server.model.vector)


def test_a_message_that_flower_cannot_read_ends_only_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready(rounds=3)
    grid = grid_of(run)
    pull = grid.pull_messages

    def pulled(ids: Iterable[str]) -> Iterable[Message]:
        replies = list(pull(ids))
        if any(reply.metadata.src_node_id == 12345 for reply in replies):
            raise ValueError("object id does not fit its content")
        return replies

    monkeypatch.setattr(grid, "pull_messages", pulled)
    run.go()
    assert run.runtime.state.dropped == {"broken": 1}
    assert run.runtime.roster.nodes[12345].why == "broken: ValueError: object id does not fit its content"
    assert {job[0] for of in jobs(run) for job in of} == {0, 2}


def internal_error() -> httpx.HTTPStatusError:
    """Flower's client raises this error immediately, but waits for a SuperLink that does not answer at all."""
    request = httpx.Request("POST", "https://superlink")
    return httpx.HTTPStatusError("500 Internal Server Error", request=request, response=httpx.Response(500))


def failing(call: Callable[..., Any], time: Time, moments: range, error: Callable[[], Exception]) -> Callable[..., Any]:
    """A call to the grid that fails at these moments."""

    def called(*arguments: Any) -> Any:
        if int(time.now) in moments:
            raise error()
        return call(*arguments)

    return called


@pytest.mark.parametrize("error", [internal_error, lambda: httpx.ConnectError("TLS handshake"), ConnectionResetError])
@pytest.mark.parametrize("name", ["get_node_ids", "pull_messages", "push_messages"])
def test_temporary_errors_of_the_superlink_are_tolerated(
    name: str, error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ready(rounds=6)
    grid = grid_of(run)
    monkeypatch.setattr(grid, name, failing(getattr(grid, name), grid.time, range(4, 14), error))
    run.go()
    assert run.result["finished"]
    assert {job[0] for of in jobs(run) for job in of} == {0, 1, 2}, "all nodes take part"
    assert set(run.runtime.state.dropped) == ({"not sent"} if name == "push_messages" else set())
    assert torch.equal(replayed(run), run.server.model.vector)
    if name == "push_messages":
        assert grid.time.now > 30, "a node that could not be reached cools down"


def test_a_superlink_that_keeps_failing_ends_the_run_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready()
    grid = grid_of(run)
    monkeypatch.setattr(grid, "get_node_ids", failing(grid.get_node_ids, grid.time, range(3, 10**6), internal_error))
    with pytest.raises(
        StoppedError, match=r"^the SuperLink .* errors for 600 s, the last one is HTTPStatusError: 500.*again"
    ):
        run.go()
    assert 600 <= grid.time.now < 610


class FailingLink(BaseHTTPRequestHandler):
    """A SuperLink that answers with an internal error, and later with a node."""

    statuses: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = self.statuses.pop(0)
        body = GetNodesResponse(nodes=[NodeInfo(node_id=7)]).SerializeToString() if status == 200 else b""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def test_errors_from_flowers_own_client_are_tolerated(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready()
    monkeypatch.setattr(FailingLink, "statuses", [500, 500, 200])
    monkeypatch.setattr(run.runtime, "_send", lambda: None)
    with HTTPServer(("127.0.0.1", 0), FailingLink) as link:
        Thread(target=link.serve_forever, daemon=True).start()
        grid = HttpGrid(f"127.0.0.1:{link.server_port}", insecure=True, token="of a test")  # noqa: S106
        run.runtime.grid = grid
        for known in ([], [], [7]):
            run.runtime._look()
            assert list(run.runtime.roster.nodes) == known
        grid._disconnect()
        link.shutdown()


class StoppedRunError(BaseException):
    """Like Flower's exception for a run that an operator has stopped."""


def test_a_run_that_an_operator_has_stopped_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready()
    grid = grid_of(run)
    monkeypatch.setattr(grid, "pull_messages", failing(grid.pull_messages, grid.time, range(3, 99), StoppedRunError))  # type: ignore[arg-type]
    with pytest.raises(StoppedRunError):
        run.go()


def test_a_slow_reply_does_not_delay_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    run, uploaded, pulls = ready(rounds=9), Event(), Counter[str]()
    grid = grid_of(run)
    pull = grid.pull_messages

    def pulled(ids: Iterable[str]) -> Iterable[Message]:
        replies = list(pull(ids))
        if any(reply.metadata.src_node_id == 12345 for reply in replies):
            pulls.update(ids)
            assert uploaded.wait(LIMIT)
        return replies

    def release(line: dict[str, Any]) -> None:
        if line["round"] == 5:
            uploaded.set()
            while not all(pull.done() for pull in run.runtime._pulls._slow.values()):
                time.sleep(0.01)

    monkeypatch.setattr(grid, "pull_messages", pulled)
    run.runtime._pulls.patience = 0.05
    run.go(release)
    first = [1 in {job[0] for job in of} for of in jobs(run)].index(True)
    assert first == 5, "the other updates were merged meanwhile, and this one at the next poll"
    assert run.history[first]["staleness"][0] == 5
    assert set(pulls.values()) == {1}, "each reply is fetched once"


ENDLESS = """
import time
from feddle.runtimes.flower.pulls import Pulls

class Endless:
    def pull_messages(self, ids):
        time.sleep(600)

assert Pulls(Endless(), patience=0.05).ask("a message") == []
END
"""


@patient
@pytest.mark.parametrize("end", ["", "import os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"])
def test_a_slow_reply_does_not_prevent_the_process_from_ending(end: str) -> None:
    script = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler){ENDLESS}".replace("END", end)
    done = run_process(*PYTHON, script)
    assert ("KeyboardInterrupt" in done.err) == bool(end), done.err


def test_the_number_of_slow_replies_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded, grid = Event(), SmallGrid(Time(), honest, lambda _: NODES)
    monkeypatch.setattr(grid, "pull_messages", lambda ids: [*ids] if uploaded.wait(LIMIT) else [])
    pulls = Pulls(grid, patience=0.05, at_once=2)
    assert [pulls.ask(asked) for asked in "abc"] == [[], [], []]
    uploaded.set()
    while not all(pull.done() for pull in pulls._slow.values()):
        time.sleep(0.01)
    pulls.patience = 60
    replies: list[Any] = [pulls.ask(asked) for asked in "abc"]
    assert replies == [["a"], ["b"], ["c"]], "the third is requested when there is room"


def zero_update(message: Message) -> Message:
    return changed_update(message, _delta(Array(np.zeros(SIZE, np.float32))))


def test_zero_updates_do_not_cause_a_merge() -> None:
    def answer(message: Message) -> Answers:
        return [(1.0, zero_update(message))] if message.metadata.dst_node_id == 7 else honest(message)

    run = federate(answer, rounds=3)
    assert [line["arrivals"] for line in run.history] == [3, 3, 3], "two other updates each time"
    assert run.result["zero_updates"] == 3
    run = federate(lambda m: [(1.0, zero_update(m))], rounds=3)
    assert all(line["arrivals"] for line in run.history), "but the server does not wait forever"


def test_updates_that_the_method_discards_do_not_cause_a_merge() -> None:
    run = federate(rounds=6, method={"name": "fedavg", "late": "discard"})
    in_time = [line["staleness"].count(0) for line in run.history]
    assert any(any(line["staleness"]) for line in run.history)
    assert in_time == [2] * 6


def test_a_node_gets_no_second_job_while_its_first_may_still_be_running() -> None:
    def times(
        answer: Callable[[Message], Answers], nodes: Callable[[float], Sequence[int]], rounds: int
    ) -> list[float]:
        run = federate(answer, nodes=nodes, rounds=rounds, method="fedasync")
        return [when for when, node in grid_of(run).sent if node == 12345]

    def after(seconds: float) -> Callable[[Message], Answers]:
        return lambda m: honest(m) if m.metadata.dst_node_id == 7 else [(seconds, trained(m))]

    always = lambda _: (7, 12345)  # noqa: E731
    assert times(after(500), always, 120)[1] == pytest.approx(500, abs=5), "the node has replied"
    assert times(after(1e6), always, 170)[1] == pytest.approx(600, abs=5), "Flower has dropped the message"
    away = lambda now: (7,) if 100 < now < 150 else (7, 12345)  # noqa: E731
    assert times(after(1e6), away, 40)[1] == pytest.approx(330, abs=5), (
        "the node was disconnected: only the cooldown counts"
    )


def test_forgetting_a_job_does_not_affect_the_next_one() -> None:
    rules = {**SETTINGS["federation"], "cooldown": 0.0}
    away = lambda now: (7,) if 100 < now < 150 else (7, 12345)  # noqa: E731
    never: Callable[[Message], Answers] = lambda m: honest(m) if m.metadata.dst_node_id == 7 else []  # noqa: E731
    run = federate(never, nodes=away, rounds=400, method="fedasync", federation=rules)
    times = [when for when, node in grid_of(run).sent if node == 12345]
    assert times[1:3] == [pytest.approx(300, abs=5), pytest.approx(900, abs=5)], "the second one may still be running"


def test_a_node_cannot_reply_to_the_job_of_another_node() -> None:
    """Node 12345 sends errors for the jobs of other nodes, and a reply that names another node's message."""
    others: list[str] = []

    def answer(message: Message) -> Answers:
        if message.metadata.dst_node_id != 12345:
            others.append(message.metadata.message_id)
            forged = failed(message)
            forged.metadata.__dict__["_src_node_id"] = 12345
            return [(1.0, forged), *honest(message)]
        return honest(message)

    run, plain = federate(answer), federate(honest)
    assert set(run.runtime.state.dropped) == {"from another node"}
    assert len(others) > 5
    assert jobs(run) == jobs(plain)

    run = ready()
    run.runtime._look()
    mine, another = (i for i, sent in run.runtime._under_way.items() if sent.node.id in (12345, 7))
    order = order_message(Order(Job(1, 0, 0), run.server.model, run.server.digest, Recipe(), 0), 12345, ttl=10)
    order.metadata.__dict__["_message_id"] = another
    run.runtime._take(mine, failed(order))
    assert another in run.runtime._under_way
    assert mine not in run.runtime._under_way


def test_an_error_that_the_superlink_sends_for_a_node_ends_its_job() -> None:
    def answer(message: Message) -> Answers:
        lost = failed(message, "Node Unavailable")
        lost.metadata.__dict__["_src_node_id"] = 1
        return [(1.0, lost)] if message.metadata.dst_node_id == 12345 else honest(message)

    run = federate(answer, rounds=3)
    assert run.runtime.roster.nodes[12345].why == "error: Node Unavailable"


def test_nodes_that_are_turned_away_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setattr("feddle.runtimes.flower.network.log", lambda _, text, *values: printed.append(text % values))
    run = federate(honest, nodes=lambda now: NODES if now < 20 else NODES[:1], clients={"count": 2, "per_round": 1})
    assert status_of(run)["turned_away"] == 1
    away = [line for line in printed if "too many nodes" in line]
    assert away == [
        f"too many nodes: {max(NODES)} get no job; clients.count is 2 (0 of them are gone); raise it in a new run"
    ]


def changed_update(message: Message, change: Callable[[dict[str, Any]], None]) -> Message:
    reply = trained(message)
    content = {name: reply.content[name] for name in reply.content}
    change(content)
    return Message(RecordDict(content), reply_to=message)


def _delta(array: Array) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content["update"] = ArrayRecord({"delta": array, "buffers": content["update"]["buffers"]})

    return change


def _npy(header: str, data: bytes) -> bytes:
    padded = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + data


SIZE = Layout.of(net()).size
HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,)}"
BAD: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "nan": ("not a number", _delta(Array(np.full(SIZE, np.nan, np.float32)))),
    "short": ("wrong length", _delta(Array(np.ones(SIZE - 1, np.float32)))),
    "long": ("too large", _delta(Array(np.ones(SIZE + 2000, np.float32)))),
    "float64": ("no array of numbers", _delta(Array(np.ones(SIZE, np.float64)))),
    "a false header": ("no array of numbers", _delta(Array("float32", (SIZE,), "numpy.ndarray", _npy(HUGE, b"")))),
    **{
        f"a header like {header[:8]}": (
            "no array of numbers",
            _delta(Array("float32", (SIZE,), "numpy.ndarray", _npy(header, b""))),
        )
        for header in ("{[]: 1}", "{'a': (")  # numpy parses it as Python: TypeError, TokenError
    },
    "objects": (
        "no array of numbers",
        _delta(Array("object", (1,), "numpy.ndarray", _npy(HUGE.replace("<f4", "|O"), b"\x80\x04N."))),
    ),
    "pickled": ("no array of numbers", _delta(Array("float32", (SIZE,), "pickle", b"\x80\x04N."))),
    "another layout": ("wrong layout", lambda c: c.update(layout=ConfigRecord({"digest": "of another model"}))),
    "no examples": ("bad example count", lambda c: c.update(facts=MetricRecord({"examples": 0}))),
    "an additional record": ("no update", lambda c: c.update(more=ConfigRecord({"x": 1}))),
    "empty": ("no update", dict.clear),
}


@pytest.mark.parametrize("kind", BAD)
def test_updates_are_checked_as_in_the_simulation(kind: str) -> None:
    reason, change = BAD[kind]

    def answer(message: Message) -> Answers:
        if message.metadata.dst_node_id != 12345:
            return honest(message)
        return [(1.0, changed_update(message, change))]

    run = federate(answer, rounds=3)
    assert list(run.server.refused) == [reason]
    assert run.runtime.roster.nodes[12345].why == f"refused: {reason}"
    assert not any(job[0] == 1 for of in jobs(run) for job in of)


def order(model: nn.Module | None = None) -> Order:
    model = model or net()
    layout = Layout.of(model)
    return Order(Job(1, 2, 3), layout.read(model), layout.digest, Recipe(epochs=2, lr=0.1), 2**62)


@pytest.mark.parametrize("model", [net(), nn.Linear(4, 2)], ids=["with buffers", "without"])
def test_messages_are_read_as_they_were_sent(model: nn.Module) -> None:
    sent = order(model)
    message = order_message(sent, 7, ttl=10)
    got = read_order(message)
    assert (got.job, got.digest, got.recipe, got.seed) == (sent.job, sent.digest, sent.recipe, sent.seed)
    assert torch.equal(got.start.vector, sent.start.vector)
    assert torch.equal(got.start.buffers, sent.start.buffers)
    update = Update(sent.job, sent.start.vector, sent.start.buffers, 5, {"loss": 0.5}, sent.digest)
    back = read_update(update_message(update, message), sent.job, sent.start)
    assert torch.equal(back.delta, update.delta)
    assert torch.equal(back.buffers, update.buffers)
    assert (back.num_examples, back.metrics, back.digest) == (5, {"loss": 0.5}, sent.digest)
    longer = replace(update, delta=torch.zeros(2000))
    with pytest.raises(UnreadableError, match="too large"):
        read_update(update_message(longer, message), sent.job, sent.start)


def test_a_client_refuses_another_model_no_examples_and_another_version() -> None:
    with pytest.raises(FeddleError, match=r"this client's model differs from the server's.*run the same app"):
        train_job(order_message(order(), 7, ttl=10), nn.Linear(4, 2), SHARES[0])
    with pytest.raises(FeddleError, match="no examples"):
        train_job(order_message(order(), 7, ttl=10), net(), TensorDataset(POINTS[:0], LABELS[:0]))
    with pytest.raises(FeddleError, match="same version of feddle"):
        train_job(Message(RecordDict(), 7, "train"), net(), SHARES[0])


def test_a_client_does_not_import_the_code_for_runs() -> None:
    code = "import sys, feddle.runtimes.flower.client; print([m for m in sys.modules if m.startswith('feddle.run.')])"
    assert run_process(*PYTHON, code).out.strip() == "[]"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"delays": {"sigma": 3.0}}, "delays is for simulations"),
        ({"privacy": {}}, "privacy is for simulations"),
        ({"federation.merge_afer": 3}, "did you mean 'merge_after'"),
        ({"method": "fedbuf"}, "did you mean 'fedbuff'"),
    ],
)
def test_settings_of_simulations_and_unknown_settings_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(FeddleError, match=text):
        make_plan({**SETTINGS, **changes}, source="test")


# --- stop, resume, replay


class KilledError(Exception):
    """Stops a server."""


def test_a_killed_server_continues_with_its_version_and_its_atlas(tmp_path: Path) -> None:
    run = ready(rounds=7)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 4:
            raise KilledError

    with pytest.raises(KilledError):
        run_in_folder(run, tmp_path / "run", stop)
    assert run.server.in_flight
    again = ready(rounds=7)
    lines: list[dict[str, Any]] = []
    run_in_folder(again, tmp_path / "run", lines.append)
    assert [line["version"] for line in lines] == [5, 6, 7]
    assert min(lines[0]["anchor_versions"]) < 4, "anchors from before the stop"
    assert again.history[:4] == run.history
    assert again.history[4]["sent"][0][2] == 4, "unfinished jobs are lost, and new jobs start from the restored version"
    assert {path.stem for path in (tmp_path / "run").iterdir()} >= {"config", "history", "result", "model"}
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert [node["node"] for node in status["nodes"]] == [str(node) for node in BY_NUMBER], "nodes keep their numbers"
    assert torch.equal(replayed(again), again.server.model.vector)
    with pytest.raises(FeddleError, match="holds a finished federation"):
        run_in_folder(ready(rounds=7), tmp_path / "run")


def killed(where: str, monkeypatch: pytest.MonkeyPatch, run: Path, **changes: Any) -> None:
    """Start a run that is killed when it calls the function `where`."""

    def kill(*_: Any, **__: Any) -> None:
        raise KilledError

    federation = ready(**changes)
    with monkeypatch.context() as patches:
        patches.setattr(where, kill)
        with pytest.raises(KilledError):
            run_in_folder(federation, run)


def test_up_writes_the_report_of_a_finished_federation(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_in_folder(ready(), out)
    assert is_finished(out)
    assert not (out / "report.html").exists(), "the command writes it, not the ServerApp"
    up = run_feddle("federation", "up", "--out", out)
    assert (out / "report.html").exists()
    assert "Report: " in up.out
    assert_refused("is finished", "federation", "up", "--out", out)
    with pytest.raises(FeddleError, match="holds a finished federation"):
        run_in_folder(ready(), out)


def test_a_server_killed_before_saving_its_last_merge_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed("feddle.run.folder.RunFolder.finish", monkeypatch, tmp_path / "run", rounds=3)
    again = ready(rounds=3)
    run_in_folder(again, tmp_path / "run")
    assert [line["version"] for line in lines_of(tmp_path / "run")] == [1, 2, 3]
    assert is_finished(tmp_path / "run")


def test_settings_can_be_changed_before_the_first_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed("feddle.flower.run.go_to_the_end", monkeypatch, tmp_path / "run", rounds=3)
    again = ready(rounds=2)
    run_in_folder(again, tmp_path / "run")
    assert "rounds: 2\n" in (tmp_path / "run" / "config.yaml").read_text()
    assert len(lines_of(tmp_path / "run")) == 2


def assert_refused(pattern: str, *arguments: str | Path) -> None:
    """Check that the command line ends with exit code 2 and this message."""
    result = run_feddle(*arguments)
    assert result.code == 2
    assert re.search(pattern, result.err.splitlines()[-1])


def test_a_simulation_is_not_overwritten(tmp_path: Path) -> None:
    simulated = {"config.yaml": "rounds: 6\n", "history.jsonl": '{"round": 1}\n'}
    for name, text in simulated.items():
        (tmp_path / name).write_text(text)
    run = ready()
    with pytest.raises(FeddleError, match="holds a simulation, not a federation"):
        run_in_folder(run, tmp_path)
    for command in (["up", "--out"], ["watch"]):
        assert_refused("holds a simulation", "federation", *command, tmp_path)
    assert {name: (tmp_path / name).read_text() for name in simulated} == simulated


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed("feddle.run.folder.RunFolder.finish", monkeypatch, tmp_path / "run", rounds=3)
    other = at_server()
    other.model[2] = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    plan = make_plan({**SETTINGS, "rounds": 3}, source="test")
    again = federated(plan, other, SmallGrid(Time(), honest, lambda _: NODES))
    with pytest.raises(FeddleError, match="belongs to a federation with another model"):
        run_in_folder(again, tmp_path / "run")


def replayed(run: Run[Network]) -> torch.Tensor:
    federation = at_server()
    layout = Layout.of(federation.model)
    server = build_server(run.plan, federation, layout, "cpu")
    recipe = run.plan.training
    shares = [as_examples(data) for data in SHARES]
    work = ClientWork(net(), layout, shares, recipe, nn.functional.cross_entropy, run.plan.seed)
    replay(run.history, server, work)
    return server.model.vector


OPTIONS = {name: {"buffer_size": 3} for name in ("fedbuff", "ca2fl")}


@pytest.mark.parametrize("method", ["feddle", "fedbuff", "ca2fl", "fedasync"])
def test_a_replay_of_the_arrivals_on_a_simulated_server_is_bit_identical(method: str) -> None:
    def answer(message: Message) -> Answers:
        lost = int(message.metadata.message_id.split()[1]) % 5 == 3
        return [(3.0, failed(message))] if lost else honest(message)

    run = federate(answer, rounds=12, method={"name": method, **OPTIONS.get(method, {})})
    assert {s for line in run.history for s in line["staleness"]} >= {0, 1}
    assert torch.equal(replayed(run), run.server.model.vector)
    assert not torch.equal(run.server.model.vector, Layout.of(net()).read(at_server().model).vector)
    run.history[3], run.history[4] = run.history[4], run.history[3]
    with pytest.raises(FeddleError, match=r"expected job .* got .*; start with a new server"):
        replayed(run)


# --- Flower's own interface


def test_feddle_is_a_flower_strategy() -> None:
    grid, model = SmallGrid(Time(), lambda m: [(0.0, trained(m))], lambda _: NODES), net()
    strategy = Feddle(model, server=SERVER, test=TEST, **SETTINGS | {"federation": {"poll": 0.01}})
    seen: list[int] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen.append(number)
        assert list(arrays) == list(model.state_dict())
        return MetricRecord({"mine": float(number)})

    start = ArrayRecord(model.state_dict())
    result = strategy.start(grid, start, num_rounds=3, timeout=77.0, evaluate_fn=evaluate)
    assert seen == [0, 1, 2, 3]
    assert result.evaluate_metrics_serverapp[3]["mine"] == 3.0
    assert result.train_metrics_clientapp[3]["loss"]
    assert strategy.run is not None
    assert strategy.run.plan.rounds == 3
    assert strategy.run.runtime.rules.job_limit == 77.0
    end = result.arrays.to_torch_state_dict()
    assert not torch.equal(end["0.weight"], start.to_torch_state_dict()["0.weight"])
    assert torch.equal(end["0.weight"], model.state_dict()["0.weight"])
    with pytest.raises(FeddleError, match="asynchronous"):
        strategy.configure_train(1, start, ConfigRecord(), None)
    with pytest.raises(FeddleError, match="settings"):
        strategy.start(grid, start, train_config=ConfigRecord({"lr": 1}))


def test_keys_are_private_and_not_replaced(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "keys")
    made = certificates.make(["127.0.0.1", "example.org"], 2)
    assert {path.name for path in made} == {
        *("ca.crt", "ca.key", "server.crt", "server.key", "superexec.secret"),
        *("node-1.key", "node-1.pub", "node-2.key", "node-2.pub"),
    }
    assert {oct(p.stat().st_mode)[-3:] for p in made if p.suffix in (".key", ".secret")} == {"600"}
    before = {path: path.read_bytes() for path in made}
    assert [path.name for path in certificates.make(["127.0.0.1"], 3)] == ["node-3.key", "node-3.pub"]
    assert before == {path: path.read_bytes() for path in made}


@pytest.mark.parametrize("moment", range(7))
def test_interrupted_key_generation_leaves_no_incomplete_keys(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, written = Certificates(tmp_path), iter(range(99))

    def stop(descriptor: int) -> None:
        if next(written) == moment:
            os.truncate(descriptor, 3)
            raise KilledError

    with monkeypatch.context() as patches:
        patches.setattr("feddle.core.durable.os.fsync", stop)
        with pytest.raises(KilledError):
            certificates.make(["localhost"], 1)
    assert not any(path.stat().st_size == 3 for path in tmp_path.glob("[a-z]*"))
    certificates.make(["localhost"], 1)
    authority, server = (x509.load_pem_x509_certificate(f.read_bytes()) for f in (certificates.ca, certificates.server))
    server.verify_directly_issued_by(authority)
    for certificate, key in ((authority, certificates.ca_key), (server, certificates.server_key)):
        assert load_pem_private_key(key.read_bytes(), None).public_key() == certificate.public_key()
    public = load_ssh_public_key(certificates.node(1, "pub").read_bytes())
    assert load_ssh_private_key(certificates.node(1, "key").read_bytes(), None).public_key() == public
    private = [certificates.ca_key, certificates.server_key, certificates.node(1, "key"), certificates.secret]
    assert {oct(path.stat().st_mode)[-3:] for path in private} == {"600"}


def test_an_interrupted_replacement_of_a_key_leaves_a_valid_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path)
    certificates.make(["localhost"], 1)
    written = iter([None, KilledError])

    def stop(_: int) -> None:
        if next(written) is not None:
            raise KilledError

    with monkeypatch.context() as patches:
        patches.setattr("feddle.core.durable.os.fsync", stop)
        with pytest.raises(KilledError):
            certificates.remake_node(1)
    certificates.make(["localhost"], 1)
    public = load_ssh_public_key(certificates.node(1, "pub").read_bytes())
    assert load_ssh_private_key(certificates.node(1, "key").read_bytes(), None).public_key() == public


def test_an_existing_certificate_for_other_hosts_is_refused(tmp_path: Path) -> None:
    command = ["federation", "certificates", str(tmp_path), "--nodes", "0", "--host"]
    assert run_feddle(*command, "one.example.org").code == 0
    assert run_feddle(*command, "one.example.org").code == 0
    other = r"is for one\.example\.org, not for 10\.0\.0\.1; .* remove it and give all"
    assert_refused(other, *command, "10.0.0.1")
    (tmp_path / "server.crt").write_text("")
    assert_refused(r"server\.crt is not a certificate; remove it", *command, "10.0.0.1")
    (tmp_path / "server.crt").unlink()
    assert run_feddle(*command, "10.0.0.1").code == 0
    assert run_feddle(*command, "10.0.0.1").code == 0


@pytest.mark.parametrize("host", ["", "über.example.org", "example.org:8443", "https://example.org", "two names"])
def test_invalid_hosts_get_no_certificate(tmp_path: Path, host: str) -> None:
    with pytest.raises(FeddleError, match="expected a host name or address without a port"):
        Certificates(tmp_path / "keys").make(["localhost", host], 1)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("damaged", ["ca.crt", "ca.key"])
def test_an_unreadable_or_mismatched_authority_is_reported(tmp_path: Path, damaged: str) -> None:
    certificates, other = Certificates(tmp_path / "keys"), Certificates(tmp_path / "others")
    for made in (certificates, other):
        made.make(["localhost"], 0)
    certificates.server.unlink()
    whole = (certificates.folder / damaged).read_bytes()
    (certificates.folder / damaged).write_text("damaged")
    with pytest.raises(FeddleError, match="are not a readable certificate and key"):
        certificates.make(["localhost"], 0)
    # a missing key may be on another machine; if the certificate is missing too, both are made again
    if damaged == "ca.key":
        certificates.ca_key.unlink()
        with pytest.raises(FeddleError, match="are not a readable certificate and key; restore them"):
            certificates.make(["localhost"], 0)
    (certificates.folder / damaged).write_bytes((other.folder / damaged).read_bytes())
    with pytest.raises(FeddleError, match=r"ca\.key is not the key of .*ca\.crt"):
        certificates.make(["localhost"], 0)
    (certificates.folder / damaged).write_bytes(whole)
    assert certificates.make(["localhost"], 0) == [certificates.server]


def test_watch_shows_merges_and_failures(tmp_path: Path) -> None:
    def answer(message: Message) -> Answers:
        return [(1.0, failed(message))] if message.metadata.dst_node_id == 12345 else honest(message)

    run = ready(answer, rounds=3)
    run_in_folder(run, tmp_path / "run")
    printed = run_feddle("federation", "watch", tmp_path / "run").err.splitlines()
    shown = [line for line in printed if line.startswith("version")]
    assert [line.split(":")[0] for line in shown] == ["version 1/3", "version 2/3", "version 3/3"]
    assert all("3 nodes, staleness" in line and "accuracy" in line for line in shown)
    assert "client 1, failure 2: error: out of memory" in printed
    with (console := Console(width=200)).capture() as captured:
        console.print(picture(json.loads((tmp_path / "run" / "status.json").read_text())))
    text = captured.get()
    assert "feddle: version 3/3, accuracy" in text
    assert "error: out of memory" in text
    assert "lost jobs: error (" in text


def test_a_missing_status_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed("feddle.run.run.Run._line", monkeypatch, tmp_path)
    status = json.loads((tmp_path / "status.json").read_text())
    assert abs(status["at"] - time.time()) < 60
    with FederationDisplay(tmp_path) as display:
        display.show()
        assert capsys.readouterr().err == ""
        (tmp_path / "status.json").write_text(json.dumps({**status, "at": time.time() - 100}))
        display.show()
        display.show()
        printed = capsys.readouterr().err
        assert f"no status from the ServerApp (process {os.getpid()}) for 100 s" in printed
        assert printed.count("no status") == 1
    with FederationDisplay(tmp_path, since=time.time()) as display:
        display.show()
        assert capsys.readouterr().err == "", "a new process is starting"
    with (console := Console(width=200)).capture() as captured:
        console.print(picture(status, "no status for 100 s"))
    assert "no status for 100 s" in captured.get()


def test_the_display_keeps_text_unchanged_and_skips_damaged_lines_and_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FederationDisplay(tmp_path) as display:
        display.say("logs in /data/[bold]/[/x]")
        (tmp_path / "status.json").write_text('{"at": "now", "version": 1}')
        (tmp_path / "history.jsonl").write_text('x\n{"version": 2, "nodes": 1, "staleness": [0]}\n{"version": 3}\n')
        display.show()
    assert capsys.readouterr().err.splitlines() == [
        "logs in /data/[bold]/[/x]",
        "version 2: 1 nodes, staleness 0",
        "version 3: 0 nodes, staleness ",
    ]


class ShortFederation:
    """Replaces the processes. The ServerApp fails at the start, or the user stops it."""

    stop: type[BaseException] | None = None

    def __init__(self, folder: Path, *_: Any, **__: Any) -> None:
        self.address, self.logs = "127.0.0.1:1", folder

    def __enter__(self) -> "ShortFederation":
        if self.stop is not None:
            raise self.stop
        return self

    def __exit__(self, *_: Any) -> None: ...

    def start_run(self, _: Any) -> int:
        return 1

    def keep_up(self) -> None: ...

    def run_status(self, _: int) -> str:
        return "finished:failed"

    def run_log(self, _: int) -> str:
        return "feddle.core.errors.StoppedError: the disk is full"


def unanswered(*_: Any) -> str:
    raise FeddleError("no answer")


def test_the_command_to_continue_has_all_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shutil.copytree(APP, tmp_path / "my app", ignore=shutil.ignore_patterns("__pycache__"))
    out, previous = tmp_path / "run", signal.getsignal(signal.SIGTERM)
    options = ["--nodes", "2", "--out", str(out), "--app", str(own), "-o", "rounds=3", "-o", "method.name=fedbuff"]
    again = shlex.join(["feddle", "federation", "up", *options])
    monkeypatch.setattr("feddle.flower.local.LocalFederation", ShortFederation)
    monkeypatch.setattr("feddle.cli.federation._ASK_EVERY", 0.0)
    try:
        fixed = re.escape(f"; to continue once that is fixed: {again}") + "$"
        assert_refused(f"the disk is full{fixed}", "federation", "up", *options)
        monkeypatch.setattr(ShortFederation, "run_status", unanswered)
        assert_refused(f"no answer{fixed}", "federation", "up", *options)
        monkeypatch.setattr(ShortFederation, "stop", KeyboardInterrupt)
        stopped = run_feddle("federation", "up", *options)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert stopped.code == 130
    assert f"to continue: {again}\n" in stopped.err


def test_new_creates_an_app(tmp_path: Path) -> None:
    files = [Path(line) for line in run_feddle("federation", "new", tmp_path / "mine").out.splitlines()]
    assert [file.name for file in files] == ["model.py", "client_data.py", "server_data.py"]
    assert all(file.is_file() for file in files)
    settings = tomllib.loads((tmp_path / "mine" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert make_plan({key: value for key, value in settings.items() if key != "out"}, source="app").rounds == 20
    assert_refused("already exists", "federation", "new", tmp_path / "mine")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("method.name=fedbuf", "did you mean 'fedbuff'"),
        ("round=3", "round is not among the settings"),
        ("rounds", "expected KEY=VALUE"),
        ("rounds=[", "the value of rounds is not valid YAML"),
        ("out=runs/mine", "the run folder has its own option; use --out DIR"),
        ("clients.per_round=9", "count is 3"),
    ],
)
def test_up_starts_nothing_with_wrong_settings(tmp_path: Path, option: str, text: str) -> None:
    assert_refused(text, "federation", "up", "--out", tmp_path / "run", "-o", option)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"[tool.flwr.app]\nconfig = 3\n", b"\xff\xfe", b"tool"])
def test_up_starts_nothing_in_a_folder_without_an_app(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    refusal = r"is not an app: expected \[tool\.flwr\.app\.config\]"
    assert_refused(refusal, "federation", "up", "--out", tmp_path / "run", "--app", tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_flower_command_that_does_not_answer_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddle.flower.local._PATIENCE", 0.05)
    (tmp_path / "flwr").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "flwr").chmod(0o755)
    monkeypatch.setattr("feddle.flower.local.found", lambda name: str(tmp_path / name))
    with pytest.raises(FeddleError, match=r"^`flwr list` did not answer within 0\.1 s$"):
        LocalFederation(tmp_path, 1).run_status(1)


def test_two_processes_cannot_run_the_same_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("start_superlink", "register", "_start"):  # no processes: only the lock is tested
        monkeypatch.setattr(LocalFederation, name, lambda *_, **__: None)
    second = LocalFederation(tmp_path, 1)
    with LocalFederation(tmp_path, 1), pytest.raises(FeddleError, match="another process runs the fed"):
        second.__enter__()
    with LocalFederation(tmp_path, 1):
        pass


RUN_NODE = """
from pathlib import Path
from feddle.flower import node

node.found = lambda name: COMMAND
node.run_node("127.0.0.1:1", root=ROOT, key=KEY, more=["--port", "1"])
"""


@pytest.mark.parametrize("secure", [True, False])
def test_a_node_without_certificate_and_key_uses_no_tls(tmp_path: Path, secure: bool) -> None:
    keys, script = Certificates(tmp_path / "keys"), tmp_path / "flower-supernode"
    keys.make(["localhost"], 1)
    script.write_text('#!/bin/sh\necho "$@"\n')
    script.chmod(0o755)
    root, key = (f"Path({str(path)!r})" if secure else "None" for path in (keys.ca, keys.node(1, "key")))
    code = RUN_NODE.replace("COMMAND", repr(str(script))).replace("ROOT", root).replace("KEY", key)
    trust = (
        f"--root-certificates {keys.ca} --auth-supernode-private-key {keys.node(1, 'key')}" if secure else "--insecure"
    )
    assert run_process(*PYTHON, code).err == f"--superlink 127.0.0.1:1 {trust} --port 1\n"


# --- real processes, on loopback


def processes_of(folder: Path) -> list[str]:
    """The command lines of processes whose environment names a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def log_of(federation: LocalFederation, name: str) -> str:
    """The output of a process so far."""
    path = federation.logs / f"{name}.log"
    return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def processes(folder: Path, nodes: int, **options: Any) -> Iterator[LocalFederation]:
    federation = LocalFederation(folder, nodes, **options)
    try:
        with federation:
            yield federation
    finally:
        federation.close()
        wait_until(lambda: not processes_of(folder), "the end of all processes")


def node_ids(federation: LocalFederation) -> dict[int, int]:
    """The ids of the registered nodes, by the number of the node."""
    files = sorted(federation.certificates.folder.glob("node-*.id"))
    return {int(file.stem.removeprefix("node-")): int(file.read_text()) for file in files}


def wait_for(true: Callable[[], Any], federation: LocalFederation, what: str) -> None:
    def logs() -> dict[str, str]:
        return {name: log_of(federation, name)[-1500:] for name in federation.processes}

    wait_until(true, what, federation.logs, details=logs)


def lines_of(run: Path) -> list[dict[str, Any]]:
    path = run / "history.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def is_finished(run: Path) -> bool:
    return RunFolder(run).is_finished()


def app_with_a_slow_client(folder: Path) -> Path:
    """The shipped app with a second client that takes 6 s longer, so a merge of two updates does not wait for it."""
    app = shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    data = app / "federation" / "client_data.py"
    text = data.read_text().replace("from flwr", "import time\n\nfrom flwr", 1)
    slow = '    time.sleep(6 if context.node_config["partition-id"] == 1 else 0)\n    return share(int('
    assert text.count("    return share(int(") == 1
    data.write_text(text.replace("    return share(int(", slow))
    return app


def other_app(folder: Path) -> Path:
    """The shipped app with a model whose width can be set by an environment variable."""
    app = shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    model = app / "federation" / "model.py"
    text = model.read_text().replace("16 * 4 * 4, 32", "16 * 4 * 4, WIDTH").replace("nn.Linear(32", "nn.Linear(WIDTH")
    model.write_text(text.replace("from torch", "import os\n\nfrom torch", 1) + WIDTH)
    assert text.count("WIDTH") == 2
    return app


WIDTH = '\n\nWIDTH = int(os.environ.get("WIDTH", "32"))\n'


@linux
@patient
@pytest.mark.slow
def test_a_short_federation_of_real_processes_refuses_a_client_with_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    settings: dict[str, Any] = {
        "out": str(run),
        "rounds": 2,
        "clients.count": 2,
        "training.epochs": 1,
        "federation.poll": 0.2,
    }
    settings["federation.cooldown"] = 3600  # a refused client gets no second job, even on a slow machine
    with processes(tmp_path / "federation", 1, app=other_app(tmp_path / "app")) as federation:
        federation.register(2)
        federation.nodes = 2
        with monkeypatch.context() as patches:
            patches.setenv("WIDTH", "31")
            federation.start_node(2)
        logs = ("node-1", "node-2")
        wait_for(lambda: all("SuperNode ID" in log_of(federation, name) for name in logs), federation, "two nodes")
        federation.start_run(settings)
        wait_for(lambda: is_finished(run), federation, "the run")
    result = json.loads((run / "result.json").read_text())
    assert result["finished"]
    assert [len(line["jobs"]) for line in lines_of(run)] == [1, 1], "merges do not wait for a refused client"
    assert result["dropped"] == {"error": 1}
    nodes = json.loads((run / "status.json").read_text())["nodes"]
    assert sorted((node["done"], node["failed"]) for node in nodes) == [(0, 1), (2, 0)]
    why = next(node["why"] for node in nodes if node["failed"])
    assert "this client's model differs from the server's" in why
    assert "run the same app with the same model on both" in why


@linux
@patient
def test_registering_continues_after_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes after the second node is registered and before its id is saved."""
    federation = LocalFederation(tmp_path, 2)

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    try:
        federation.logs.mkdir()
        federation.certificates.make(["127.0.0.1"], 2)
        federation.start_superlink()
        federation.register(1)
        first = node_ids(federation)
        with monkeypatch.context() as patches:
            patches.setattr("feddle.flower.local.write_whole", stop)
            with pytest.raises(KeyboardInterrupt):
                federation.register(2)
        assert node_ids(federation) == first
        federation.register(1)
        federation.register(2)
    finally:
        federation.close()
        wait_until(lambda: not processes_of(tmp_path), "the end of all processes")
    known = node_ids(federation)
    assert list(first) == [1]
    assert known[1] == first[1]
    assert len(set(known.values())) == 2


# for the federation with TLS and authentication; the limits are long enough for a loaded machine
REAL: dict[str, Any] = {
    "rounds": 7,
    "clients.count": 3,
    "clients.per_round": 2,
    "training.epochs": 3,
    "federation.job_limit": 90,
    "federation.merge_after": 60,
    "federation.cooldown": 3,
    "federation.poll": 0.5,
}


@linux
@pytest.mark.slow
@patient
def test_a_federation_with_tls_and_authentication_survives_killed_processes(tmp_path: Path) -> None:
    run, settings = tmp_path / "run", {"out": str(tmp_path / "run"), **REAL}

    def version(wanted: int) -> Callable[[], bool]:
        return lambda: len(lines_of(run)) >= wanted or is_finished(run)

    def third_is_back() -> bool:
        federation.keep_up()  # the SuperLink refuses the node until it notices that the node was gone
        return log_of(federation, "node-3").count("SuperNode ID") == 2

    with processes(tmp_path / "federation", 3, app=app_with_a_slow_client(tmp_path / "app")) as federation:
        federation.start_run(settings)
        wait_for(version(2), federation, "two merges")
        federation.kill("node-3")
        wait_for(version(3), federation, "a merge without node 3")

        status = json.loads((run / "status.json").read_text())
        os.kill(status["pid"], signal.SIGKILL)
        time.sleep(1)  # the process may have been writing a checkpoint
        before = lines_of(run)
        assert [node["node"] for node in status["nodes"]] == [str(i) for i in sorted(node_ids(federation).values())]
        federation.start_node(3)
        wait_for(third_is_back, federation, "node 3")
        assert not is_finished(run)

        federation.start_run(settings)
        wait_for(version(len(before) + 1), federation, "a merge after the ServerApp was killed")
        federation.kill("superlink")
        federation.start_superlink()
        wait_for(lambda: is_finished(run), federation, "the rest")

    lines, result = lines_of(run), json.loads((run / "result.json").read_text())
    kept = (
        len(before) - 1 if before[-1] != lines[len(before) - 1] else len(before)
    )  # the last merge may have had no checkpoint
    assert kept >= 2
    assert lines[:kept] == before[:kept], "the run continued and did not start again"
    assert [line["version"] for line in lines] == list(range(1, REAL["rounds"] + 1))
    known = node_ids(federation)
    in_order = sorted(known.values())  # a client's number is the index of its node in this list
    third = in_order.index(known[3])
    assert any(job[0] == third for line in lines[kept:] for job in line["jobs"]), "node 3 is back with its old number"
    assert any(staleness for line in lines for staleness in line["staleness"])
    assert result["clients"] == 3
    assert result["refused"] == {}
    assert lines[-1]["accuracy"] > lines[0]["accuracy"] + 0.1
    shares = [next(n for n, i in known.items() if i == node) - 1 for node in in_order]
    model, vector = replayed_real(lines, settings, shares)
    model.load_state_dict(load_file(run / "model.safetensors"))
    assert torch.equal(Layout.of(model).read(model).vector, vector), "the simulation's result is bit-identical"


def replayed_real(
    lines: list[dict[str, Any]], settings: dict[str, Any], shares: Sequence[int]
) -> tuple[nn.Module, torch.Tensor]:
    """Replay a federation of the shipped app on a server in this process. Client i has the share `shares[i]`."""
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    plan = make_plan({k: v for k, v in {**config, **settings}.items() if k != "out"}, source="test")
    with global_seed(seed_for(plan.seed, "model")):
        model = make_model()
    loss, layout = nn.functional.cross_entropy, Layout.of(model)
    federation = Feddle(model, server=server_data(), test=held_out_data()).problem
    server = build_server(plan, federation, layout, "cpu")
    clients = [share(number, len(shares)) for number in shares]
    recipe = plan.training
    replay(lines, server, ClientWork(make_model(), layout, clients, recipe, loss, plan.seed))
    return model, server.model.vector


@linux
@pytest.mark.slow
@patient
def test_an_unregistered_node_and_one_with_another_certificate_are_refused(tmp_path: Path) -> None:
    with processes(tmp_path / "federation", 1) as federation:
        wait_for(lambda: "SuperNode ID" in log_of(federation, "node-1"), federation, "a node that is registered")
        federation.certificates.make([], 2)
        federation.start_node(2)
        other = Certificates(tmp_path / "other")
        other.make(["127.0.0.1"], 0)
        federation.certificates.make([], 3)
        federation.certificates.ca = other.ca
        federation.start_node(3)
        ended = [federation.processes[name] for name in ("node-2", "node-3")]
        wait_for(lambda: all(process.poll() is not None for process in ended), federation, "two refusals")
        assert "refused this node: its key is not registered (`flwr supernode register" in log_of(federation, "node-2")
        assert "does not match" in log_of(federation, "node-3")
        assert "use the federation's own ca.crt" in log_of(federation, "node-3")
        assert [process.returncode for process in ended] == [2, 2]
        assert federation.processes["node-1"].poll() is None


@linux
@pytest.mark.slow
@patient
def test_up_stops_all_processes_at_the_end_and_when_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["-o", "rounds=3", "-o", "training.epochs=1", "-o", "federation.poll=0.3"]
    command = [
        str(Path(sys.executable).parent / "feddle"),
        "federation",
        "up",
        "--nodes",
        "2",
        "--out",
        str(out),
        *options,
    ]
    log = tmp_path / "log"
    with log.open("w") as output:
        first = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # shells start background jobs with SIGINT ignored
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    try:
        wait_until(lambda: lines_of(out) or first.poll() is not None, "a merge", out)
        assert first.poll() is None
        assert len(processes_of(out)) >= 4
        first.send_signal(signal.SIGINT)
        wait_for_end(first, log)
    finally:
        first.kill()
        first.wait()
    printed = log.read_text()
    assert first.returncode == 130
    assert "with TLS and authentication" in printed
    assert f"to continue: feddle federation up --nodes 2 --out {out}" in printed
    assert processes_of(out) == []
    before = lines_of(out)
    nodes = {path.name: path.read_bytes() for path in (out / "flower" / "certificates").glob("node-*")}
    assert len(nodes) == 6, "two keys, public keys and ids"
    done = run_process(*command)
    assert done.code == 0, done.err
    assert lines_of(out)[: len(before)] == before
    kept = {path.name: path.read_bytes() for path in (out / "flower" / "certificates").glob("node-*")}
    assert kept == nodes, "the same keys, so the same nodes"
    assert "version 3/3: 2 nodes, staleness" in done.err
    assert "Report: " in done.out
    assert is_finished(out)
    assert processes_of(out) == []
    again = run_process(*command)
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "is finished; name another folder" in again.err


def test_resume_refuses_a_federation_and_names_its_command(tmp_path: Path) -> None:
    run = ready()
    RunFolder(tmp_path / "run").path.mkdir()
    RunFolder(tmp_path / "run").begin(run.plan.model_dump(mode="json"))
    with pytest.raises(FeddleError, match=r"holds a federation.*feddle federation up --out"):
        RunFolder(tmp_path / "run").config()
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "merge_after" in text
    assert "delays" not in text
