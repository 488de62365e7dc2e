"""A cache of every client's last update, in memory or on disk."""

import errno
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from feddle.core.errors import FeddleError, StoppedError
from feddle.core.state import prefixed, without_prefix
from feddle.methods.cost import Cost, Setting
from feddle.options import Positive
from feddle.training.parts import Parts

CacheLimit = Annotated[
    Positive, Field(description="memory for the clients' last updates, in MB; a larger cache is kept in a file")
]


class ClientCache:
    """h_i, the last update of client i, zero until it first reports; and h̄ = 1/J Σ h_i over all J clients.

    There is one vector per client that has reported. If J vectors would exceed `limit` bytes, they are kept in a
    file in `folder`, which is mapped into memory.
    """

    def __init__(
        self, clients: int, dimension: int, *, limit: int = 2**31, folder: Path | None = None, device: str = "cpu"
    ) -> None:
        self.clients = clients
        self.dimension = dimension
        self.device = device
        self._last: dict[int, Tensor] = {}
        self._sum = torch.zeros(dimension, dtype=torch.float64)  # of many additions and subtractions
        fits = 4 * clients * dimension <= limit
        self._keep: Callable[[Tensor], Tensor] = torch.clone if fits else _FileRows(folder, clients, dimension)

    def __getitem__(self, client: int) -> Tensor:
        last = self._last.get(client)
        return torch.zeros(self.dimension, device=self.device) if last is None else last.to(self.device)

    def mean(self) -> Tensor:
        """h̄ (d,), over all clients, including those that have not reported."""
        return (self._sum / self.clients).float().to(self.device)

    def put(self, client: int, update: Tensor) -> None:
        """Replace a client's last update."""
        update, before = update.cpu(), self[client].cpu()
        if client not in self._last and len(self._last) >= self.clients:
            raise FeddleError(
                f"more than {self.clients} clients sent updates (client {client} is new); raise clients.count"
            )
        self._last[client] = self._keep(update)  # a new tensor: those read or saved before do not change
        self._sum += update.double() - before.double()

    def state_dict(self) -> dict[str, Tensor]:
        """The last updates (not copied) and their sum."""
        last = {str(client): update for client, update in self._last.items()}
        return {**prefixed("last", last), "sum": self._sum.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._last = {int(client): self._keep(update) for client, update in without_prefix("last", state).items()}
        self._sum = state["sum"].clone()


def build_cache(parts: Parts, limit: float) -> ClientCache:
    """A cache for every client; if it needs more than `limit` MB, it is kept in a file."""
    size, scratch = parts.bench.layout.size, parts.scratch
    return ClientCache(parts.clients, size, limit=int(limit * 1e6), folder=scratch, device=parts.device)


def cache_cost(setting: Setting, limit: float) -> Cost:
    """The cost of a cache with a `limit` in MB: one vector for each client that has reported."""
    if 4 * setting.clients * setting.size <= int(limit * 1e6):
        return Cost(cached=setting.reported)
    return Cost(in_file=setting.reported)


class _FileRows:
    """Stores updates as rows of a sparse file, in which rows that were never written take no space.

    Rows are read through a memory map but written with `pwrite`: a full disk then raises an error, not a signal that
    ends the process. A row can be reused when the tensor that was read from it is garbage-collected.
    """

    def __init__(self, folder: Path | None, clients: int, dimension: int) -> None:
        self._row_bytes = 4 * dimension
        self._where = f"the last updates of {clients} clients ({clients * self._row_bytes / 1e6:,.3g} MB)"
        if folder is None:
            remedy = "raise cache_limit, or name a folder for them (in Python: scratch=)"
            raise FeddleError(f"{self._where} exceed the cache limit; {remedy}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:  # without a name: it replaces nothing, and ends with the process
                self._descriptor = os.dup(file.fileno())
                rows = 2 * clients + 1  # a state being saved may hold every row twice, and one is being replaced
                os.ftruncate(self._descriptor, rows * self._row_bytes)
                self._mapping = np.memmap(file, dtype=np.float32, mode="r+", shape=(rows, dimension))
        except OSError as error:
            remedy = "free some space" if error.errno == errno.ENOSPC else "name another folder"
            raise FeddleError(f"cannot keep {self._where} in {folder}: {error.strerror}; {remedy}") from error
        self._used = 0
        self._free: list[int] = []  # used rows that can be written again

    def __call__(self, update: Tensor) -> Tensor:
        """Write an update to the file; the result reads from there."""
        row = self._free.pop() if self._free else self._used
        self._write(row, update)
        self._used = max(self._used, row + 1)
        kept = torch.from_numpy(self._mapping[row])
        weakref.finalize(kept, self._free.append, row)
        return kept

    def _write(self, row: int, update: Tensor) -> None:
        content = update.contiguous().numpy().tobytes()
        try:
            done = 0
            while done < len(content):
                done += os.pwrite(self._descriptor, content[done:], row * self._row_bytes + done)
        except OSError as error:
            raise StoppedError(
                f"no space left for {self._where}: {error.strerror}; free some space and resume"
            ) from error

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
