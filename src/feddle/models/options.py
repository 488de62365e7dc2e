"""What the options of every model answer, and the options of models with ImageNet weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from feddle.core.errors import FeddleError
from feddle.data.source import Source
from feddle.models.pretrained import Standardise, adopt, fix_statistics
from feddle.models.weights import FetchedWeights, named
from feddle.options import Options


class ModelOptions(Options, ABC):
    """A model: an option that only another model has is refused by its name."""

    @abstractmethod
    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:
        """The model for images (channels, image_size, image_size), with random weights where it is not pretrained."""

    @abstractmethod
    def weights(self) -> Source[Any] | None:
        """Where its pretrained weights come from; None if it has none."""


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
        description="running statistics: `average` (the mean of the clients' statistics) or `fixed` (those of the "
        "pretrained weights, in training too)",
    )

    def weights(self) -> FetchedWeights | None:
        """See `ModelOptions`."""
        return named(self.name, self.folder) if self.pretrained else None

    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:
        """See `ModelOptions`."""
        weights = self.weights()
        if image_size < 32:
            raise FeddleError(f"{self.name} needs images of at least 32×32, got {image_size}; raise data.image_size")
        if weights and channels != 3:
            wrong = f"the weights of {self.name} are for 3 channels, got data.channels {channels}"
            raise FeddleError(f"{wrong}; set it to 3")
        model = self.network(classes, in_channels=channels, inputs=Standardise() if weights else nn.Identity())
        if weights:
            adopt(model, weights.read(quiet=quiet), self.head)
        if self.batchnorm == "fixed":
            fix_statistics(model)
        return model
