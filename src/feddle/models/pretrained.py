"""Models that start from ImageNet weights."""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.errors import FeddleError
from feddle.models.options import ModelOptions
from feddle.models.weights import IMAGENET_MEAN, IMAGENET_STD, FetchedWeights, named


class ImageNetOptions(ModelOptions, ABC):
    """A model that can start from the ImageNet weights of its name; every layer is trained."""

    network: ClassVar[Callable[..., nn.Module]]
    head: ClassVar[str]  # the name of the last layer, which is always new

    name: str = ""
    pretrained: bool = Field(
        True, description="whether to start from ImageNet weights (`feddle weights list`) with a new head"
    )
    folder: str | None = Field(
        None, description="folder that holds the official weights; by default they are downloaded"
    )
    batchnorm: Literal["average", "fixed"] = Field(
        "average",
        description="running statistics: `average` (the mean of the clients' statistics) or `fixed` (the "
        "statistics of the pretrained weights, also in training)",
    )

    def weights(self) -> FetchedWeights | None:
        return named(self.name, self.folder) if self.pretrained else None

    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:
        weights = self.weights()
        if image_size < 32:
            raise FeddleError(f"{self.name} needs images of at least 32×32, got {image_size}; raise data.image_size")
        if weights and channels != 3:
            raise FeddleError(f"the weights of {self.name} need 3 channels, got data.channels {channels}; set it to 3")
        model = self.network(classes, in_channels=channels, inputs=Standardise() if weights else nn.Identity())
        if weights:
            # the head belongs to another task, and the weights have no counters
            own = {n: t for n, t in model.state_dict().items() if n.startswith(self.head) or not t.is_floating_point()}
            model.load_state_dict(weights.read(quiet=quiet) | own)
        if self.batchnorm == "fixed":
            fix_statistics(model)
        return model


class Standardise(nn.Module):
    """Standardises images in [−1, 1] with a mean and a deviation that were measured on images in [0, 1].

    It has no parameters, and its numbers are not in the model's state.
    """

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, deviation: Sequence[float] = IMAGENET_STD) -> None:
        super().__init__()
        means, deviations = (torch.tensor(list(values)).view(-1, 1, 1) for values in (mean, deviation))
        self.scale = nn.Buffer(0.5 / deviations, persistent=False)
        self.shift = nn.Buffer((0.5 - means) / deviations, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Standardise images (n, C, H, W); the shape stays the same."""
        return images * self.scale + self.shift


class FixedBatchNorm2d(nn.Module):
    """BatchNorm that always uses the statistics it came with; its scale and shift are trained."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.running_mean = nn.Buffer(norm.get_buffer("running_mean"))
        self.running_var = nn.Buffer(norm.get_buffer("running_var"))

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise features (n, C, H, W); the shape stays the same."""
        return F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def fix_statistics(model: nn.Module) -> None:
    """Replace every BatchNorm by one that keeps its statistics, in training too."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, FixedBatchNorm2d(module))
