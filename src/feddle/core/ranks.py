"""The processes of a run that share one search, as torchrun starts them (torch.distributed, gloo).

Rank 0 leads: it runs the simulation and announces each step. The other ranks follow its commands.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from feddle.core.errors import FeddleError, StoppedError

_TIMEOUT = timedelta(minutes=30)  # for an answer of another rank
_PATIENCE = timedelta(days=365)  # for the next command: clients may train for long
_FAREWELL = timedelta(seconds=20)  # for rank 0 to report that it ends; torchrun kills all ranks after 30
_ENDED = "feddle/ended"  # the key of this report in the store of the ranks
_WORDS = 5  # number of whole numbers in a command
_TEXT = 4096  # bytes of a text that each rank sends at the start
STOP = 0  # the command that ends all ranks


class EndError(Exception):
    """Ends a rank that follows, because rank 0 has ended; `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class LostRankError(StoppedError):
    """Another rank has ended or does not answer."""


@dataclass(eq=False)
class Ranks:
    """A group of processes, in each of which this object has its own `rank` from 0 to `size` − 1.

    All ranks call the same collective functions in the same order. If another rank has ended, they raise an error
    instead of waiting.
    """

    rank: int
    size: int
    commands: Any = None  # the group for commands, for which a rank may wait long
    store: Any = None  # of torchrun, which outlives the ranks; else of rank 0
    agreed: bool = field(default=False, init=False)

    @classmethod
    def join(cls, timeout: timedelta = _TIMEOUT) -> "Ranks":
        """Connect to the other ranks that the environment describes."""
        with _talking("meet"):
            store, rank, size = next(rendezvous("env://", timeout=timeout))
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
            commands = dist.new_group(backend="gloo", timeout=_PATIENCE)
        return cls(rank, size, commands, store)

    def leave(self) -> None:
        """Close the connections."""
        with suppress(RuntimeError):
            dist.destroy_process_group()

    def announce(self, *command: int) -> None:
        """At rank 0: send a command of at most five whole numbers to the others."""
        words = torch.tensor([*command, *[0] * (_WORDS - len(command))], dtype=torch.int64)
        with _talking("send a command to"):
            dist.broadcast(words, 0, group=self.commands)

    def next_command(self) -> list[int]:
        """At the other ranks: wait for the next command of rank 0, which may be to end."""
        words = torch.zeros(_WORDS, dtype=torch.int64)
        with _talking("hear from"):
            dist.broadcast(words, 0, group=self.commands)
        command: list[int] = words.tolist()
        if command[0] == STOP:
            raise EndError(command[1])
        return command

    def share(self, tensor: Tensor) -> Tensor:
        """Copy a tensor from rank 0 to all, in place."""
        with _talking("share numbers with"):
            if tensor.numel():
                dist.broadcast(tensor, 0)
        return tensor

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        with _talking("add numbers with"):
            dist.all_reduce(tensor)
        return tensor

    def add_at_first(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place at rank 0."""
        with _talking("add numbers with"):
            if tensor.numel():
                dist.reduce(tensor, 0)
        return tensor

    def hand(self, tensor: Tensor, owner: int) -> Tensor:
        """Copy a tensor from rank 0 to `owner`, in place; the others do nothing."""
        with _talking("hand numbers to"):
            if owner and self.rank == 0:
                dist.send(tensor, owner)
            elif owner and self.rank == owner:
                dist.recv(tensor, 0)
        return tensor

    def exchange(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send a record to all ranks; returns the records of all ranks, by rank."""
        content = json.dumps(said).encode()[:_TEXT].ljust(_TEXT)
        mine = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        heard = [torch.zeros_like(mine) for _ in range(self.size)]
        with _talking("meet"):
            dist.all_gather(heard, mine)
        self.agreed = True
        return [json.loads(each.numpy().tobytes()) for each in heard]

    def agree(self, digest: Mapping[str, str]) -> None:
        """Compare what the ranks have built. Rank 0 raises the error of another rank, or names the difference."""
        said = self.exchange({"digest": dict(digest)})
        if self.rank:
            ended = said[0].get("end")
            if ended is not None:
                raise EndError(int(ended))
        for rank, each in enumerate(said):
            if "end" in each:
                self._refuse(f"rank {rank}: {each.get('why', 'it has ended')}")
            different = [name for name in digest if each["digest"].get(name) != said[0]["digest"].get(name)]
            if different:
                remedy = "start all ranks with the same command, files and versions"
                self._refuse(f"rank {rank} has another {different[0]} than rank 0; {remedy}")

    def _refuse(self, reason: str) -> NoReturn:
        """Only rank 0 reports the error to the user."""
        raise EndError(2) if self.rank else FeddleError(reason)

    def end(self, code: int, why: str = "") -> None:
        """End all ranks, before or after `agree`.

        After a failure within a step, the others wait for numbers and would not receive a command. They end when the
        connections of this rank close.
        """
        if self.rank == 0 and self.store is not None:
            with suppress(RuntimeError):
                self.store.set(_ENDED, str(code))
        with suppress(StoppedError):
            if not self.agreed:
                self.exchange({"end": code, "why": why[:500]})
            elif code == 0:
                self.announce(STOP, code)

    def rank_0_reports(self) -> bool:
        """At the other ranks, when a rank is lost: whether rank 0 ends by itself, and so reports the error."""
        try:
            self.store.wait([_ENDED], _FAREWELL)
        except RuntimeError:
            return False
        return True


@contextmanager
def _talking(what: str) -> Iterator[None]:
    """Report a lost connection in one line."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(f"cannot {what} the other ranks: one of them has ended or does not answer") from error
