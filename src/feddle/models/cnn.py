"""The paper's network."""

import os
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from feddle.core.errors import FeddleError
from feddle.models.options import ModelOptions
from feddle.options import Count
from feddle.training.kernels import convolution, pooled_relu


class CnnOptions(ModelOptions):
    """The paper's CNN: three convolutions, two linear layers."""

    name: Literal["cnn"] = "cnn"
    channels: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        (32, 64, 64), description="output channels of each convolution"
    )
    hidden: Count = Field(512, description="outputs of the first linear layer")
    padding: bool = Field(True, description="whether the convolutions keep the height and width")
    pools: int = Field(3, ge=0, le=1000, strict=True, description="number of convolutions followed by 2×2 pooling")

    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:  # noqa: ARG002
        return CNN(classes, self, image_size=image_size, in_channels=channels)

    def weights(self) -> None:
        """See `ModelOptions`."""


_PAPER = CnnOptions()


class CNN(nn.Module):
    """Three 3×3 convolutions and two linear layers, for square images of any size from 28 up.

    2×2 pooling follows the first `pools` convolutions. The defaults are calibrated on the paper's Center rows.
    """

    def __init__(
        self, classes: int, options: CnnOptions = _PAPER, *, image_size: int = 32, in_channels: int = 3
    ) -> None:
        super().__init__()
        channels, hidden, pools, size = options.channels, options.hidden, options.pools, image_size
        if size < 28:
            raise FeddleError(f"the CNN takes images from 28×28 up, got {size}×{size}; raise data.image_size")
        for i in range(len(channels)):
            size = (size if options.padding else size - 2) // (2 if i < pools else 1)
        if size < 1:
            raise FeddleError(f"{pools} poolings leave nothing of a {image_size}×{image_size} image; lower model.pools")
        widths, flat = (in_channels, *channels), channels[-1] * size * size
        _require_memory(sum(9 * width * out for width, out in pairwise(widths)) + flat * hidden + hidden * classes)
        self.features = nn.Sequential()
        place = 0
        for i, (width, out) in enumerate(pairwise(widths)):
            self.features.add_module(f"{place}", convolution(width, out, padding=options.padding))
            # the ReLU is the same after pooling as before it, at a quarter of the work
            self.features.add_module(f"{place + 1}", pooled_relu() if i < pools else nn.ReLU(inplace=True))
            place += 3 if i < pools else 2  # names as if pooling and ReLU were two
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(inplace=True))
        self.head = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        logits: Tensor = self.head(self.hidden(self.features(images)))
        return logits


def _require_memory(weights: int) -> None:
    """Refuse a model that cannot be trained on this machine, before its memory is allocated."""
    needed = 16 * weights / 2**30  # GiB; four bytes each: the model, its gradients, the server's copy and an update
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if needed > held:
        large = f"the CNN has {weights:,} weights, which need {needed:,.0f} GiB of memory or more, but this machine has"
        raise FeddleError(f"{large} {held:,.0f} GiB; lower model.channels, model.hidden or data.image_size")
