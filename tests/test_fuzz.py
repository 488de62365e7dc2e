"""Malformed updates to a running server and malformed config files are refused and change nothing."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from feddle.core.atlas import Atlas
from feddle.core.errors import FeddleError
from feddle.core.messages import Job, Update
from feddle.methods.feddle.fallback import FedBuffFallback
from feddle.methods.feddle.method import Feddle
from feddle.run.load import load_config
from feddle.server import Server
from feddle.training.search import PaperSearch
from three_numbers import Quadratic, state, weights

Random = np.random.Generator
NAN, INF = float("nan"), float("inf")


# --- updates


def live_server() -> Server:
    strategy = Feddle(
        Quadratic(1.0, 2.0, 3.0), Atlas(4, 3), PaperSearch(lr=0.01, epochs=1, batch_size=4), FedBuffFallback()
    )
    return Server(weights(0.0, 0.0, 0.0, buffers=[1.0, 2.0]), strategy, digest="ours", max_norm_ratio=100.0)


def honest(job: Job) -> Update:
    delta = torch.tensor([1.0, -0.5, 0.1 * (job.client + 1)])
    return Update(job, delta, torch.tensor([1.0, float(job.number)]), 1 + job.client, {"loss": 0.5}, "ours")


def no_tensor(rng: Random, like: torch.Tensor) -> Any:
    """An object that is not a dense float tensor of this length, or a tensor with NaN or infinity."""
    size = len(like)
    spoiled = like.clone()
    spoiled[rng.integers(size)] = [NAN, INF, -INF][rng.integers(3)]
    others: list[Callable[[], Any]] = [
        lambda: spoiled,
        lambda: torch.zeros(int(rng.integers(size))),
        lambda: torch.zeros(size + 1 + int(rng.integers(1000))),
        lambda: like.reshape(1, size),
        lambda: like.reshape(size, 1).expand(size, 2),
        lambda: torch.tensor(1.0),
        lambda: like.double(),
        lambda: like.half(),
        lambda: like.to(torch.complex64),
        lambda: like.to([torch.int64, torch.uint8, torch.bool][rng.integers(3)]),
        lambda: like.to_sparse(),
        lambda: like.to("meta"),
        lambda: like.clone().requires_grad_(),
        lambda: nn.Parameter(like),
        lambda: like.numpy(),
        lambda: like.tolist(),
        lambda: rng.bytes(4 * size),
        lambda: "1, 2, 3",
        lambda: None,
        lambda: {0: 1.0},
        object,
    ]
    return others[rng.integers(len(others))]()


def no_number(rng: Random) -> Any:
    """An object that is not a valid number in a message."""
    odd: tuple[Any, ...] = (
        None,
        True,
        False,
        1.0,
        0.5,
        NAN,
        INF,
        -INF,
        "1",
        "",
        b"1",
        [1],
        (1,),
        {},
        {1},
        1j,
        object(),
        int,
    )
    choices = [*odd, np.int64(1), np.float32(1), torch.tensor(1), 10**13, 10**400, -(10**400), -1, -7]
    return choices[rng.integers(len(choices))]


def bad_delta(rng: Random, update: Update, _: Server) -> Update:
    return replace(update, delta=no_tensor(rng, update.delta))


def bad_buffers(rng: Random, update: Update, _: Server) -> Update:
    return replace(update, buffers=no_tensor(rng, update.buffers))


def too_long(rng: Random, update: Update, _: Server) -> Update:
    return replace(update, delta=update.delta * float(10.0 ** rng.uniform(2.5, 38)))


def bad_digest(rng: Random, update: Update, _: Server) -> Update:
    others: tuple[Any, ...] = (None, "", "Ours", "ours ", b"ours", 7, ["ours"], rng.bytes(8).hex())
    return replace(update, digest=others[rng.integers(len(others))])


def bad_count(rng: Random, update: Update, _: Server) -> Update:
    return replace(update, num_examples=[no_number(rng), 0][rng.integers(2)])


def bad_metrics(rng: Random, update: Update, _: Server) -> Update:
    value = [NAN, INF, None, "0.5", 10**400, [0.5], True, torch.tensor(0.5)][rng.integers(8)]
    others: tuple[Any, ...] = ({"loss": value}, {7: 0.5}, None, [("loss", 0.5)], "loss", 0.5)
    return replace(update, metrics=others[rng.integers(len(others))])


def bad_job(rng: Random, update: Update, core: Server) -> Update:
    """A job that is not in flight, or no job at all."""
    job: Any = update.job
    field = ("client", "number", "version")[rng.integers(3)]
    numbers = (no_number(rng), int(rng.integers(-5, 10**9)), int(rng.integers(-3, 12)))
    others: tuple[Any, ...] = (
        replace(job, **{field: numbers[rng.integers(3)]}),
        None,
        (job.client, job.number, job.version),
        7,
        [job],
    )
    chosen = others[0 if rng.random() < 0.8 else rng.integers(len(others))]
    same = type(chosen) is Job and chosen in tuple(core.in_flight) and type(getattr(chosen, field)) is int
    return replace(update, job=Job(-1, 0, 0) if same else chosen)


def ended_job(rng: Random, update: Update, core: Server) -> Update:
    ended = list(core.state.last_received.values())
    return replace(update, job=ended[rng.integers(len(ended))])


MUTATIONS = (bad_delta, bad_buffers, too_long, bad_digest, bad_count, bad_metrics, bad_job, ended_job)
EVERY_REASON = {
    *("wrong type", "wrong layout", "wrong length", "bad example count", "bad metrics", "not a number", "infinite"),
    *("too long", "never sent", "duplicate", "wrong version", "not in flight"),
}


def attack_a_live_server(count: int, seed: int, make: Callable[[], Server] = live_server) -> tuple[Counter[str], int]:
    """Send bad updates between good ones. A twin that gets only the good ones must end in the same state.

    Returns how many were refused, by reason, and how many were accepted.
    """
    rng = np.random.default_rng(seed)
    core, twin = make(), make()
    for step in range(25):  # enough to estimate the usual norm
        for each in (core, twin):
            assert each.receive(honest(each.dispatch(step % 5)))
            each.advance()
    sent, accepted = 0, 25
    while sent < count:
        jobs = [core.dispatch(int(client)) for client in rng.integers(0, 9, size=3)]
        assert [twin.dispatch(job.client) for job in jobs] == jobs
        before = state(core)
        for _ in range(min(100, count - sent)):
            update = honest(jobs[rng.integers(3)])
            for mutate in rng.choice(len(MUTATIONS), size=rng.integers(1, 3), replace=False):
                update = MUTATIONS[mutate](rng, update, core) if type(update.delta) is torch.Tensor else update
            assert not core.receive(update), update
            assert state(core) == before, update
            sent += 1
        for each in (core, twin):
            assert all(each.receive(honest(job)) for job in jobs[:2])
            each.forget(jobs[2])
            each.advance()
        accepted += 2
    assert state(core) == state(twin)
    assert not twin.refused
    return core.refused, accepted


def test_ten_thousand_malformed_updates_change_nothing() -> None:
    refused, _ = attack_a_live_server(10_000, seed=0)
    assert refused.total() == 10_000
    assert set(refused) == EVERY_REASON


@pytest.mark.slow
def test_a_hundred_thousand_malformed_updates_change_nothing() -> None:
    refused, _ = attack_a_live_server(100_000, seed=1)
    assert refused.total() == 100_000
    assert set(refused) == EVERY_REASON


# --- config files

TREE: dict[str, Any] = {
    "seed": 3,
    "rounds": 4,
    "clients": {"count": 20, "per_round": 5},
    "data": {
        "name": "digits",
        "channels": 1,
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "server": {"samples": 9},
    },
    "model": {"name": "cnn", "channels": [4, 4], "hidden": 16},
    "training": {"optimizer": "sgd", "lr": 0.01},
    "delays": {"sigma": 1.0, "per": "job"},
    "attack": {"name": "scale", "share": 0.2},
    "privacy": {"clip": 2.0},
    "method": {"name": "feddle", "search": {"name": "paper", "epochs": 1}, "fallback": "none"},
}
SCALARS: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        10**18,
        10**30,
        -(10**400),
        1e308,
        -1e308,
        5e-324,
        NAN,
        INF,
        -INF,
        0.5,
        "",
        " ",
        "\n",
        "\x85",
    ),
    *(
        "feddle",
        "none",
        "~",
        "x" * 3000,
        "\u2028",
        "\u202e",
        "é😀",
        "\x07",
        "1e3",
        b"\xff\x00",
        [],
        {},
        [[]],
        [{}],
        {"": {}},
    ),
    *({"name": "fedbuff"}, {"name": []}, {1: 2}, {"a\nb": 1}, {"name": "feddle", "lr\u2029": 1}),
)
TOKENS = (
    *(
        b"&a",
        b"*a",
        b"<<: *a\n",
        b"!!python/object:os.system [ls]",
        b"!!binary x",
        b"!!int x",
        b"!!set {a}",
        b"{",
        b"[",
        b"]",
    ),
    *(
        b": ",
        b"- ",
        b"\t",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xe2\x80\xa8",
        b"---\n",
        b"...\n",
        b"%YAML 9.9\n",
        b"? ",
        b"|\n",
    ),
    *(
        b"0x" + b"f" * 5000,
        b"9" * 5000,
        b"1e999",
        b".nan",
        b"-.inf",
        b"2001-99-99",
        b"1:30:00",
        b"'",
        b'"',
        b'"\\ud800"',
    ),
    *(b"[" * 2000, b"{a: " * 500, b"\xef\xbb\xbf", b"\r\n", b"# ", b"@", b"`", b"=: 1\n", b"? [a]\n: b\n", b"\n\n"),
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in pairs for place in [(tree, key), *places(value)]]


def bend(rng: Random, tree: dict[str, Any]) -> None:
    """Replace, remove, rename, wrap or copy a random entry."""
    found = places(tree)
    if not found:
        return
    container, key = found[rng.integers(len(found))]
    value = SCALARS[rng.integers(len(SCALARS))]
    match rng.integers(5):
        case 0:
            container[key] = copy.deepcopy(value)
        case 1:
            del container[key]
        case 2 if isinstance(container, dict) and isinstance(value, str | int | float | None):
            container[value] = container.pop(key)
        case 3:
            container[key] = [container[key]] if rng.random() < 0.5 else {"name": container[key]}
        case _:
            other = found[rng.integers(len(found))]
            container[key] = copy.deepcopy(other[0][other[1]])


def break_text(rng: Random, text: bytes) -> bytes:
    """Remove, insert or repeat bytes at a random position."""
    at, until = sorted(rng.integers(0, len(text) + 1, size=2).tolist())
    lines = text.splitlines(keepends=True)
    match rng.integers(5):
        case 0:
            return text[:at] + text[until:]
        case 1:
            return text[:at] + TOKENS[rng.integers(len(TOKENS))] + text[at:]
        case 2:
            return text[:at] + rng.bytes(int(rng.integers(1, 6))) + text[at:]
        case 3 if lines:
            line = lines[rng.integers(len(lines))]
            return text + line
        case _:
            return text[:until] + text[at:]


def malformed(rng: Random) -> bytes:
    tree = copy.deepcopy(TREE)
    for _ in range(rng.integers(0, 4)):
        bend(rng, tree)
    text = yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode("utf-8", "surrogatepass")
    for _ in range(rng.integers(0, 3)):
        text = break_text(rng, text)
    return text


def read_or_refuse(path: Path, text: bytes) -> bool:
    """Whether the file holds a config; if not, the error is one printable line."""
    path.write_bytes(text)
    try:
        config = load_config(path)
    except FeddleError as error:
        line = str(error)
        assert len(line.splitlines()) == 1, text
        assert len(line.encode()) < 1000, text
        return False
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), allow_unicode=True), encoding="utf-8")
    assert load_config(path) == config, text
    return True


def valid_among(folder: Path, count: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    return sum(read_or_refuse(folder / "config.yaml", malformed(rng)) for _ in range(count))


def test_a_thousand_malformed_configs_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    assert 0 < valid_among(tmp_path, 1_000, seed=0) < 500  # some mutated configs are still valid


@pytest.mark.slow
def test_ten_thousand_malformed_configs_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    assert 0 < valid_among(tmp_path, 10_000, seed=1) < 5_000


@pytest.mark.parametrize(
    "text",
    [
        # each level refers to the previous one nine times, which would expand to 9⁹ words
        "a0: &a0 [lol]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)),
        "rounds: &a [" + "lol, " * 5 + "]\n" + "seed: [*a, *a]",
        "method: &m {name: feddle, search: *m}",
        "rounds: &r [*r]",
        "rounds: 0x" + "f" * 6000,
        "seed: 0x" + "f" * 6000,
    ],
)
def test_configs_that_would_grow_or_loop_are_refused(tmp_path: Path, text: str) -> None:
    assert not read_or_refuse(tmp_path / "config.yaml", text.encode())
    bomb = text.replace("a9:", "rounds:")
    assert not read_or_refuse(tmp_path / "config.yaml", bomb.encode())
