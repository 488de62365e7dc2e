"""How examples are spread over clients and server."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Discriminator, Field
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.core.seeds import numpy_generator
from feddle.data.collection import Collection, Labelled
from feddle.options import Options, Positive, choice


@dataclass(frozen=True, eq=False)
class Partition:
    """Which examples each client holds: `order[offsets[j] : offsets[j + 1]]` are those of client j."""

    order: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        return self.order[int(self.offsets[client]) : int(self.offsets[client + 1])]

    @property
    def sizes(self) -> Tensor:
        """The number of examples of each client."""
        return self.offsets.diff()


class Dirichlet(Options):
    """Each class is spread over the clients in Dirichlet(α) proportions."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[Positive, Field(le=1e6)] = Field(
        0.1, description="concentration (α): 0.1 is very uneven, 100 nearly even"
    )

    def build(self, rows: Labelled, clients: int, seed: int) -> Partition:
        """Spread the classes of the rows."""
        return dirichlet(rows.labels if rows.kinds is None else rows.kinds, clients, self.alpha, seed)


class Even(Options):
    """Every client has the same number of examples, drawn at random."""

    name: Literal["even"] = "even"

    def build(self, rows: Labelled, clients: int, seed: int) -> Partition:
        """Spread the rows."""
        return even(len(rows), clients, seed)


class Natural(Options):
    """Every client has the images that the data assigns to it; `clients.count` clients are drawn if there are more."""

    name: Literal["natural"] = "natural"

    def build(self, rows: Labelled, clients: int, seed: int) -> Partition:  # noqa: ARG002 - a partition's arguments
        """Give every client the rows that belong to it."""
        assert rows.owners is not None
        return by_owner(rows.owners, int(rows.owners.max()) + 1)


class Auto(Options):
    """`natural` where the data says which client an image belongs to, else `dirichlet` with its defaults."""

    name: Literal["auto"] = "auto"

    def build(self, rows: Labelled, clients: int, seed: int) -> Partition:
        """Partition as `natural` or `dirichlet` does."""
        return (Dirichlet() if rows.owners is None else Natural()).build(rows, clients, seed)


AnyPartition = Auto | Dirichlet | Even | Natural
PartitionOptions = Annotated[
    AnyPartition, Discriminator("name"), choice("dirichlet"), Field(description="how examples are assigned to clients")
]


def is_natural(partition: AnyPartition, collection: Collection) -> bool:
    """Whether every client has the images that belong to it."""
    owned = collection.train.owners is not None
    if isinstance(partition, Natural) and not owned:
        lacks = f"{collection.name} does not say which client an image belongs to"
        raise FeddleError(f"data.partition is natural, but {lacks}; use dirichlet or even, or add a column client")
    return owned and isinstance(partition, Natural | Auto)


def dirichlet(labels: Tensor, clients: int, alpha: float, seed: int) -> Partition:
    """Spread each class over the clients in proportions drawn from Dirichlet(α)."""
    if not alpha > 0:
        raise FeddleError(f"the Dirichlet α must be above 0, got {alpha:g}; 0.1 is very uneven, 100 nearly even")
    generator = numpy_generator(seed)
    owner = np.empty(len(labels), dtype=np.int64)
    concentrations = np.full(clients, alpha)
    for label in np.unique(labels.numpy()):
        members = generator.permutation(np.flatnonzero(labels.numpy() == label))
        shares = generator.dirichlet(concentrations)
        cuts = np.cumsum(shares, out=shares)  # there may be millions of clients: nothing is copied
        if not np.isfinite(cuts[-1]):  # α so small that every share underflows: one client has them all
            owner[members] = generator.integers(clients)
            continue
        np.rint(np.multiply(cuts, len(members), out=cuts), out=cuts)
        cuts[-1] = len(members)  # the shares sum to 1 only up to rounding
        owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
    return by_owner(torch.from_numpy(owner), clients)


def even(count: int, clients: int, seed: int) -> Partition:
    """Spread the examples at random in shares of equal size, give or take one."""
    owner = torch.from_numpy(numpy_generator(seed).permutation(count)) % clients
    return by_owner(owner, clients)


def by_owner(owner: Tensor, clients: int) -> Partition:
    """The partition in which example i belongs to client `owner[i]`."""
    sizes = torch.bincount(owner, minlength=clients)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return Partition(owner.argsort(stable=True), offsets)


def add_label_noise(labels: Tensor, share: float, classes: int, seed: int) -> Tensor:
    """Replace a share of the labels, drawn at random, each by one of the other classes."""
    generator = numpy_generator(seed)
    wrong = generator.permutation(len(labels))[: round(share * len(labels))]
    shift = generator.integers(1, classes, size=len(wrong))
    noisy = labels.clone()
    noisy[wrong] = (noisy[wrong] + torch.from_numpy(shift)) % classes
    return noisy
