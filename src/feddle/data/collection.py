"""A data set in any storage: images, their labels, and the clients that own them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError, did_you_mean
from feddle.core.seeds import numpy_generator
from feddle.data.pictures import Pictures

NOBODY = -1  # the owner of an image that belongs to no client
_LISTED = 12  # names of classes in an error


class Part(IntEnum):
    """The purpose of an image: training, test or server."""

    TRAIN = 0
    TEST = 1
    SERVER = 2
    NOTHING = 3


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, which the model's tokenizer turns into tokens."""

    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, index: Tensor) -> "Texts":
        """Some of them."""
        return Texts(tuple(self.texts[i] for i in index.tolist()))


Inputs = Tensor | Pictures | Texts


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images with their labels: bytes (n, C, H, W), or pictures that are decoded when used; or texts."""

    images: Inputs
    labels: Tensor
    owners: Tensor | None = None  # which client each belongs to, numbered from 0, or NOBODY
    kinds: Tensor | None = None  # what a Dirichlet partition spreads, if not the labels

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> "Labelled":
        """Some of them."""
        images = self.images[index] if isinstance(self.images, Tensor) else self.images.select(index)
        owners, kinds = (None if t is None else t[index] for t in (self.owners, self.kinds))
        return Labelled(images, self.labels[index], owners, kinds)


@dataclass(frozen=True, eq=False)
class Collection:
    """A data set; without `test`, a share of `train` is held out later."""

    name: str
    train: Labelled
    test: Labelled | None
    classes: int
    server: Labelled | None = None  # the server's own images, of the same classes; without them it takes some of `test`
    names: tuple[str, ...] = ()  # of the classes; empty if they have only numbers
    client_names: Sequence[str] = ()
    unused: tuple[str, ...] = ()  # columns of the table that have no role
    unowned: str = ""  # where the first training row without a client is, such as `line 7`, if some rows have one


def ranks(values: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Each value as a number from 0, in the order of the distinct values: as numbers if all are whole, else as text."""
    column = np.array([str(value) for value in values])
    with suppress(ValueError, OverflowError):  # some are not numbers, or are too large
        numbers = [int(value) for value in values]
        if all(str(number) == str(value) for number, value in zip(numbers, values, strict=True)):  # 01 is not 1
            column = np.array(numbers, dtype=np.int64)
    distinct, rank = np.unique(column, return_inverse=True)
    return torch.from_numpy(rank.reshape(-1).astype(np.int64)), [str(value) for value in distinct]


def with_classes(collection: Collection, chosen: Sequence[str | int], option: str) -> Collection:
    """The rows of some classes, given by name or number; their labels are numbered from 0 in this order."""
    names = collection.names or tuple(map(str, range(collection.classes)))
    known = {name: number for number, name in enumerate(names)}
    if not all(name.isdigit() for name in names):  # otherwise a number is a name
        known = {str(number): number for number in range(len(names))} | known
    if unknown := [name for name in chosen if str(name) not in known]:
        listed = f"Its classes are {', '.join(names[:_LISTED])}{', …' if len(names) > _LISTED else ''}"
        hint = f"{did_you_mean(str(unknown[0]), names)} {listed}".lstrip()
        raise FeddleError(f"{option}: {collection.name} has no class {unknown[0]!r}: {hint}")
    numbers = [known[str(name)] for name in chosen]
    if twice := [name for i, name in enumerate(chosen) if numbers[i] in numbers[:i]]:
        raise FeddleError(f"{option} names the class {twice[0]!r} twice; remove one of them")
    renumbered = torch.full((len(names),), -1)
    renumbered[numbers] = torch.arange(len(numbers))

    def kept(rows: Labelled | None) -> Labelled | None:
        if rows is None:
            return None
        found = rows.select((renumbered[rows.labels] >= 0).nonzero().flatten())
        return replace(found, labels=renumbered[found.labels]) if len(found) else None

    train = kept(collection.train)
    if train is None:
        raise FeddleError(f"{option}: {collection.name} has no training images of these classes; choose others")
    new = tuple(names[number] for number in numbers)
    test, server = kept(collection.test), kept(collection.server)
    return replace(collection, train=train, test=test, classes=len(new), server=server, names=new)


def divided(name: str, rows: Labelled, parts: Tensor | None, classes: int, names: Sequence[str] = ()) -> Collection:
    """A collection of rows, each for its `Part`; without parts, all are for training."""
    if parts is None or not parts.any():
        return Collection(name, rows, None, classes, names=tuple(names))
    index = {part: (parts == part).nonzero().flatten() for part in Part}
    test, server = (rows.select(index[p]) if len(index[p]) else None for p in (Part.TEST, Part.SERVER))
    return Collection(name, rows.select(index[Part.TRAIN]), test, classes, server, tuple(names))


def among_drawn(collection: Collection, count: int, seed: int) -> Collection:
    """The images of at most `count` clients, drawn at random from those with training images and renumbered.

    Test images of clients that are not drawn are left out. Test images without a client, or of clients without training
    images, are kept. If no test images remain, a share of the training images is held out later.
    """
    owners = collection.train.owners
    assert owners is not None
    if (owners == NOBODY).any():
        row = collection.unowned or f"the training image {int((owners == NOBODY).nonzero()[0])} (from 0)"
        remedy = "name its client, leave it out, or set data.partition to dirichlet"
        raise FeddleError(f"{collection.name}: {row} has no client; {remedy}")
    present = np.unique(owners.numpy())
    drawn = torch.from_numpy(np.sort(numpy_generator(seed).permutation(present)[:count]))
    chosen = torch.isin(owners, drawn).nonzero().flatten()
    train = replace(collection.train.select(chosen), owners=torch.searchsorted(drawn, owners[chosen]))
    test = collection.test
    if test is not None and test.owners is not None:
        others = torch.from_numpy(np.setdiff1d(present, drawn.numpy()))
        left = (~torch.isin(test.owners, others)).nonzero().flatten()
        place = torch.searchsorted(drawn, test.owners).clamp(max=len(drawn) - 1)
        renumbered = replace(test, owners=torch.where(drawn[place] == test.owners, place, NOBODY))
        test = renumbered.select(left) if len(left) else None
    names = [collection.client_names[client] for client in drawn.tolist()] if collection.client_names else ()
    return replace(collection, train=train, test=test, client_names=names)


def held_out(collection: Collection, share: float, seed: int) -> Collection:
    """The collection with a share of its images, drawn at random, as test images.

    Every class and every client keeps a training image: the first in the order of drawing.
    """
    rows = collection.train
    order = numpy_generator(seed).permutation(len(rows))
    kept = np.zeros(len(rows), dtype=bool)
    for column in (rows.labels, rows.owners):
        if column is not None:
            _, first = np.unique(column.numpy()[order], return_index=True)
            kept[order[first]] = True
    chosen = order[~kept[order]][: round(share * len(rows))]
    if not len(chosen):
        few = f"{collection.name} has too few images ({len(rows)}) to hold out {share:g} of them for the test"
        raise FeddleError(f"{few}; raise data.test_share, or mark images with the split test")
    parts = torch.zeros(len(rows), dtype=torch.int64)
    parts[torch.from_numpy(chosen)] = Part.TEST
    split = divided(collection.name, rows, parts, collection.classes)
    return replace(collection, train=split.train, test=split.test)


def validation_split(collection: Collection, count: int, seed: int) -> tuple[Collection, Labelled]:
    """The collection without `count` of its training images, drawn at random, and these images."""
    rows = collection.train
    taken, kept = drawn_split("data.validation", len(rows), count, seed)
    return replace(collection, train=rows.select(kept)), rows.select(taken)


def drawn_split(option: str, total: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of `count` rows of `total`, drawn at random, and of the rest, which is not empty; both in order."""
    if not 0 <= count < total:
        raise FeddleError(f"{option} must be less than the {total} images that it is taken from, got {count}")
    order = torch.from_numpy(numpy_generator(seed).permutation(total))
    return order[:count].sort().values, order[count:].sort().values
