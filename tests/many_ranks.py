"""Processes that are the ranks of one run, as torchrun would start them, but forked: they import nothing again."""

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from command import Completed, fork_feddle
from feddle.core.ranks import Ranks
from killing import ended_within
from waiting import wait_until


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return {"RANK": str(rank), "WORLD_SIZE": str(count), **address}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def in_ranks(count: int, folder: Path, work: Callable[[Ranks], Any]) -> list[Any]:
    """What `work` returns at each rank, as JSON."""
    port, children = free_port(), []
    for rank in range(count):
        child = os.fork()
        if not child:
            _work(rank, environment(rank, count, port), folder, work)
        children.append(child)
    with _ended(children):
        wait_until(lambda: all(ended_within(0, child) for child in children), "the end of the ranks", folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def _work(rank: int, own: dict[str, str], folder: Path, work: Callable[[Ranks], Any]) -> None:
    try:
        torch.set_num_threads(1)
        os.environ.update(own)
        (folder / f"{rank}.json").write_text(json.dumps(work(Ranks.join())))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


@contextmanager
def feddle_ranks(folder: Path, *commands: Sequence[str | Path]) -> Iterator[list[int]]:
    """Start `feddle` with one command per rank, each in a folder of its own; those left at the end are killed."""
    port, children = free_port(), []
    for rank, words in enumerate(commands):
        cwd = folder / f"rank-{rank}"
        cwd.mkdir(exist_ok=True)
        prepare = partial(_prepare, environment(rank, len(commands), port))
        children.append(fork_feddle(*map(str, words), cwd=cwd, prepare=prepare))
    with _ended(children):
        yield children


def _prepare(own: dict[str, str]) -> None:
    """In a forked process: its own environment, and output that pytest does not capture."""
    os.environ.update(own)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)


def results_of(folder: Path, children: Sequence[int]) -> list[Completed]:
    """Wait until all ranks have ended; the exit code and the output of each."""
    wait_until(lambda: all(ended_within(0, child) for child in children), "the end of the ranks", folder)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    texts = [
        [(folder / f"rank-{rank}" / name).read_text() for name in ("stdout", "stderr")] for rank in range(len(codes))
    ]
    return [Completed(code, *text) for code, text in zip(codes, texts, strict=True)]


@contextmanager
def _ended(children: Sequence[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for child in children:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
