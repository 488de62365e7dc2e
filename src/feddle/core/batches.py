"""Mini-batches of examples, as indices."""

from collections.abc import Iterator

import torch
from torch import Tensor


def mini_batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """A random permutation of `count` examples, in batches; the last one may be smaller."""
    order = torch.randperm(count, generator=generator)
    yield from torch.split(order, batch_size)


def in_order(count: int, batch_size: int) -> tuple[Tensor, ...]:
    """All examples in order, in batches; the last one may be smaller."""
    return torch.split(torch.arange(count), batch_size)
