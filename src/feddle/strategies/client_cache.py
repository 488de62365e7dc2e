"""The last update of every client, in memory or on disk."""

from collections.abc import Mapping
from pathlib import Path

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
        self._rows: dict[int, int] = {}
        self._sum = torch.zeros(dimension, dtype=torch.float64)  # of many updates that come and go
        self._held: list[Tensor] = []
        self._file = _mapped(folder, clients, dimension) if 4 * clients * dimension > limit else None

    def __getitem__(self, client: int) -> Tensor:
        row = self._rows.get(client)
        if row is None:
            return torch.zeros(self.dimension, device=self.device)
        return (self._held[row] if self._file is None else self._file[row]).to(self.device)

    def mean(self) -> Tensor:
        """h̄ (d,), over all clients, also those that have not reported."""
        return (self._sum / self.clients).float().to(self.device)

    def put(self, client: int, update: Tensor) -> None:
        """Replace a client's last update."""
        update = update.cpu()
        self._sum += update.double() - self[client].cpu().double()
        row = self._rows.setdefault(client, len(self._rows))
        if self._file is not None:
            self._file[row] = update
        elif row == len(self._held):
            self._held.append(update.clone())
        else:
            self._held[row] = update.clone()

    def state_dict(self) -> dict[str, Tensor]:
        """The cached updates in the order in which their clients first reported."""
        held = torch.stack([self[c].cpu() for c in self._rows]) if self._rows else torch.zeros(0, self.dimension)
        return {"clients": torch.tensor(list(self._rows), dtype=torch.int64), "updates": held, "sum": self._sum.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""
        self._rows, self._held = {}, []
        for client, update in zip(state["clients"].tolist(), state["updates"], strict=True):
            self.put(client, update)
        self._sum = state["sum"].clone()


def _mapped(folder: Path | None, clients: int, dimension: int) -> Tensor:
    """A matrix (J, d) in a sparse file: rows that were never written take no room."""
    size = f"{4 * clients * dimension / 1e9:.1f} GB"
    if folder is None:
        raise FeddleError(
            f"the last updates of {clients} clients take {size}, more than the limit; raise it, or give them a folder"
        )
    file = folder / "client-updates.f32"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = np.memmap(file, dtype=np.float32, mode="w+", shape=(clients, dimension))
        file.unlink()  # the mapping keeps it; it is gone with the run, however that ends
    except OSError as error:
        raise FeddleError(f"no room for the last updates of {clients} clients ({size}) in {folder}: {error}") from error
    return torch.from_numpy(rows)
