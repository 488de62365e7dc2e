"""Labelled examples that are read in batches, from any storage."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset, default_collate

from feddle.core.batches import in_order
from feddle.core.errors import FeddleError
from feddle.core.seeds import torch_generator
from feddle.data.pictures import KeptPictures

Inputs = Any  # of a batch: a tensor, or a list, tuple or dict of tensors, each with one row per example


class Examples(Protocol):
    """A set of examples, indexed from 0."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """The inputs and targets of a batch, ready for the model."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images as bytes (n, C, H, W), in memory or decoded when used, made into floats in [−1, 1] one batch at a time.

    Grey images are repeated over `channels`, so one model works with every set. Batches come in channels_last. With
    `size`, a batch is resized when it is taken, so that a large set can stay as it is on disk.
    """

    pixels: Tensor | KeptPictures
    labels: Tensor
    channels: int
    size: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self.pixels[index]
        pixels = chosen if self.size is None else resize(chosen, self.size)
        return normalised(pixels, self.channels), self.labels[index]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Texts as token ids (n, length)."""

    ids: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.ids[index], self.labels[index]


@dataclass(frozen=True, eq=False)
class Selection:
    """Some of a set's examples, by index: a client's share, or the server's."""

    examples: Examples
    index: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return self.examples.take(self.index[index])


@dataclass(frozen=True, eq=False)
class Relabelled:
    """The same inputs with other targets."""

    examples: Examples
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return self.examples.take(index)[0], self.labels[index]


@dataclass(frozen=True, eq=False)
class FromDataset:
    """Any map-style torch dataset of (input, target) pairs; an input is a tensor, or a tuple or dict of tensors."""

    dataset: Dataset[Any]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # a map-style Dataset has a length

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        rows = [self.dataset[i] for i in index.tolist()]
        several = isinstance(rows[0], tuple | list)
        if several and len(rows[0]) == 2:
            inputs, targets = default_collate(rows)
            parts = tensors_of(inputs)
            if parts and all(isinstance(part, Tensor) for part in (*parts, targets)):
                return inputs, targets
        found = ", ".join(type(value).__name__ for value in (rows[0] if several else rows[:1]))
        raise FeddleError(
            f"expected (input, target) pairs of tensors or numbers, but the data set yields {found}; "
            "wrap it in one that yields pairs. An input may also be a tuple or dict of tensors"
        )


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """The tensors of a batch's inputs."""
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple | list) else [inputs]


Data = Examples | Dataset[Any]  # of a user


def stored_targets(examples: Examples) -> Tensor | None:
    """The targets of all examples; None if the inputs would have to be read with them."""
    match examples:
        case Selection(inner, index):
            known = stored_targets(inner)
            return None if known is None else known[index]
        case Images(labels=labels) | Tokens(labels=labels) | Relabelled(labels=labels):
            return labels
        case FromDataset(TensorDataset(tensors=(*_, targets))):
            return targets
        case _:
            return None


def targets_of(examples: Examples) -> Tensor:
    """The targets of all examples. The inputs are read only if the targets are not stored apart from them."""
    known = stored_targets(examples)
    if known is not None:
        return known
    return torch.cat([examples.take(index)[1] for index in in_order(len(examples), 250)])


def classes_of(examples: Examples) -> Tensor | None:
    """The class of each example (n,); None if targets are not stored apart from the inputs, or are not classes."""
    known = stored_targets(examples)
    are_classes = known is not None and known.ndim == 1 and known.dtype == torch.int64 and not (known < 0).any()
    return known if are_classes else None


def as_examples(data: Data) -> Examples:
    """Wrap a torch dataset; other examples are returned unchanged."""
    if isinstance(data, Dataset) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return FromDataset(data)
    is_tensor = isinstance(data, Tensor)  # which has `take` too
    if hasattr(data, "take") and hasattr(data, "__len__") and not is_tensor:
        return data
    remedy = "; wrap it: TensorDataset(inputs, targets)" if is_tensor else ""
    found = f"got {type(data).__name__}{remedy}"
    raise FeddleError(f"expected a map-style torch Dataset of (input, target) pairs, {found}")


def are_finite(examples: Examples) -> bool:
    """Whether no input or target is infinite or NaN."""
    batches = (examples.take(index) for index in in_order(len(examples), 250))
    return all(bool(part.isfinite().all()) for inputs, targets in batches for part in (*tensors_of(inputs), targets))


def draw(examples: Examples, limit: int | None, seed: int, among: Tensor | None = None) -> Examples:
    """At most `limit` of the examples, drawn at random; all of them, in order, if that is enough.

    With `among`, only the examples with these indices are considered.
    """
    if among is not None:
        examples = Selection(examples, among)
    if limit is None or limit >= len(examples):
        return examples
    return Selection(examples, torch.randperm(len(examples), generator=torch_generator(seed))[:limit])


def normalised(pixels: Tensor, channels: int) -> Tensor:
    """Bytes (n, C, H, W) as floats in [−1, 1], grey ones repeated over `channels`, in channels_last."""
    floats = pixels.to(torch.float32).div_(127.5).sub_(1.0)
    return floats.expand(-1, channels, -1, -1).contiguous(memory_format=torch.channels_last)


def resize(pixels: Tensor, size: int) -> Tensor:
    """Images (n, C, H, W) of bytes, made size×size by bilinear interpolation."""
    if tuple(pixels.shape[-2:]) == (size, size):
        return pixels
    largest = pixels.shape[1] * max(pixels.shape[2] * pixels.shape[3], size * size)
    chunk = max(1, (1 << 22) // largest)  # bounds the floats in memory to 16 MiB, before and after
    parts = (pixels[i : i + chunk].float() for i in range(0, len(pixels), chunk))
    return torch.cat([F.interpolate(part, (size, size), mode="bilinear").round().byte() for part in parts])
