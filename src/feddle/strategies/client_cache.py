"""The last update of every client, in memory or on disk."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError


class ClientCache:
    """h_i, the last update of client i, zero until it first reports; and h̄ = 1/J Σ h_i over all J clients.

    One vector a client that ever reported. If all J of them would take more than `limit` bytes, they live in a file in
    `folder` that is mapped into memory, so that only what is in use takes room there.
    """

    def __init__(
        self, clients: int, dimension: int, *, limit: int = 2**31, folder: Path | None = None, device: str = "cpu"
    ) -> None:
        self.clients = clients
        self.dimension = dimension
        self.device = device
        self._row_of: dict[int, int] = {}
        self._sum = torch.zeros(dimension, dtype=torch.float64)  # of many updates that come and go
        fits = 4 * clients * dimension <= limit
        self._rows: _Rows = _HeldRows() if fits else _FileRows(folder, clients, dimension)

    def __getitem__(self, client: int) -> Tensor:
        row = self._row_of.get(client)
        if row is None:
            return torch.zeros(self.dimension, device=self.device)
        return self._rows.read(row).to(self.device)

    def mean(self) -> Tensor:
        """h̄ (d,), over all clients, also those that have not reported."""
        return (self._sum / self.clients).float().to(self.device)

    def put(self, client: int, update: Tensor) -> None:
        """Replace a client's last update."""
        update, before = update.cpu(), self[client].cpu()
        row = self._row_of.get(client, len(self._row_of))
        if row >= self.clients:
            raise FeddleError(f"client {client} is one more than the {self.clients} clients that the cache is for")
        self._rows.write(row, update)
        self._row_of[client] = row
        self._sum += update.double() - before.double()

    def state_dict(self) -> dict[str, Tensor]:
        """The cached updates in the order in which their clients first reported."""
        held = torch.stack([self._rows.read(r) for r in self._row_of.values()]) if self._row_of else torch.zeros(0)
        clients = torch.tensor(list(self._row_of), dtype=torch.int64)
        return {"clients": clients, "updates": held, "sum": self._sum.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""
        self._row_of = {}
        for client, update in zip(state["clients"].tolist(), state["updates"], strict=True):
            self.put(client, update)
        self._sum = state["sum"].clone()


class _Rows(Protocol):
    def read(self, row: int) -> Tensor:
        """A copy of a row."""

    def write(self, row: int, update: Tensor) -> None:
        """Set a row, or add the next one."""


class _HeldRows:
    """Rows in memory."""

    def __init__(self) -> None:
        self._held: list[Tensor] = []

    def read(self, row: int) -> Tensor:
        return self._held[row].clone()

    def write(self, row: int, update: Tensor) -> None:
        self._held[row : row + 1] = [update.clone()]


class _FileRows:
    """Rows in a sparse file: those that were never written take no room.

    They are read through a mapping, but written with a call: a full disk is then an error, not a signal that ends the
    process.
    """

    def __init__(self, folder: Path | None, clients: int, dimension: int) -> None:
        self._row_bytes = 4 * dimension
        size = f"{clients * self._row_bytes / 1e6:,.3g} MB"
        self._where = f"the last updates of {clients} clients ({size})"
        if folder is None:
            raise FeddleError(f"{self._where} take more than the limit; raise it, or name a scratch folder for them")
        file = folder / "client-updates.f32"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            file.unlink()  # the descriptor keeps it; it is gone with the run, however that ends
            os.ftruncate(self._descriptor, clients * self._row_bytes)
            with os.fdopen(os.dup(self._descriptor), "rb") as mapped:
                self._mapping = np.memmap(mapped, dtype=np.float32, mode="r", shape=(clients, dimension))
        except OSError as error:
            raise FeddleError(f"no room for {self._where} in {folder}: {error.strerror}") from error

    def read(self, row: int) -> Tensor:
        return torch.from_numpy(self._mapping[row].copy())

    def write(self, row: int, update: Tensor) -> None:
        content = update.contiguous().numpy().tobytes()
        try:
            done = 0
            while done < len(content):
                done += os.pwrite(self._descriptor, content[done:], row * self._row_bytes + done)
        except OSError as error:
            raise FeddleError(f"no room left for {self._where}: {error.strerror}") from error

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
