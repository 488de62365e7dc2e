"""The paper's network."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from feddle.core.errors import FeddleError
from feddle.models.options import ModelOptions
from feddle.options import Count
from feddle.training.kernels import pooled_relu


class CnnOptions(ModelOptions):
    """The paper's CNN: three convolutions, two linear layers."""

    name: Literal["cnn"] = "cnn"
    channels: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        (32, 64, 64), description="output channels of each convolution"
    )
    hidden: Count = Field(512, description="outputs of the first linear layer")
    padding: bool = Field(True, description="whether the convolutions keep the height and width")
    pools: int = Field(3, ge=0, le=1000, strict=True, description="number of convolutions that 2×2 pooling follows")

    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:  # noqa: ARG002
        """See `ModelOptions`."""
        return CNN(classes, image_size=image_size, in_channels=channels, **self.model_dump(exclude={"name"}))

    def weights(self) -> None:
        """See `ModelOptions`."""


class CNN(nn.Module):
    """Three 3×3 convolutions and two linear layers, for square images of any size from 28 up.

    2×2 pooling follows the first `pools` convolutions. The defaults are calibrated on the paper's Center rows.
    """

    def __init__(
        self,
        classes: int,
        *,
        image_size: int = 32,
        in_channels: int = 3,
        channels: Sequence[int] = (32, 64, 64),
        hidden: int = 512,
        padding: bool = True,
        pools: int = 3,
    ) -> None:
        super().__init__()
        if image_size < 28:
            raise FeddleError(
                f"the CNN takes images from 28×28 up, got {image_size}×{image_size}; raise data.image_size"
            )
        self.features = nn.Sequential()
        width, size, place = in_channels, image_size, 0
        for i, out in enumerate(channels):
            if size > 0:  # else refused below, without building layers of nothing
                self.features.add_module(f"{place}", nn.Conv2d(width, out, 3, padding=int(padding)))
            width, size = out, size if padding else size - 2
            pool = i < pools
            # the ReLU is the same after pooling as before it, at a quarter of the work
            self.features.add_module(f"{place + 1}", pooled_relu() if pool else nn.ReLU(inplace=True))
            size, place = (size // 2, place + 3) if pool else (size, place + 2)  # names as if pooling and ReLU were two
        if size < 1:
            raise FeddleError(f"{pools} poolings leave nothing of a {image_size}×{image_size} image; lower model.pools")
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(width * size * size, hidden), nn.ReLU(inplace=True))
        self.head = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        logits: Tensor = self.head(self.hidden(self.features(images)))
        return logits
