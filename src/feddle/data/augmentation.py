"""Random changes of clients' training images, one batch at a time, drawn from the job's own generator."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feddle.data.examples import Examples

Augment = Callable[[Tensor, torch.Generator], Tensor]


def crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (n, C, H, W) shifted by up to an eighth of its size in both directions, and mirrored half of the time.

    This equals a random crop of the image with its edges repeated on all sides. The result is in channels_last.
    """
    n, _, height, width = images.shape
    rows = _shifted(n, height, generator)
    columns = _shifted(n, width, generator)
    mirrored = torch.randint(2, (n, 1), generator=generator).bool()
    columns = torch.where(mirrored, columns.flip(1), columns)
    flat = (rows[:, :, None] * width + columns[:, None, :]).reshape(n, -1)
    flat += torch.arange(n)[:, None] * (height * width)
    pixels = images.permute(0, 2, 3, 1).reshape(n * height * width, -1)
    moved = pixels.index_select(0, flat.reshape(-1).to(images.device))
    return moved.reshape(n, height, width, -1).permute(0, 3, 1, 2)


def _shifted(n: int, size: int, generator: torch.Generator) -> Tensor:
    """For each of n images, the source line of every line (n, size)."""
    most = size // 8
    shift = torch.randint(-most, most + 1, (n, 1), generator=generator)
    return (torch.arange(size) + shift).clamp_(0, size - 1)


@dataclass(frozen=True, eq=False)
class Augmented:
    """The examples of one job, changed again at every access; so they must be taken in the job's own order."""

    examples: Examples
    augment: Augment
    generator: torch.Generator

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self.examples.take(index)
        return self.augment(inputs, self.generator), targets
