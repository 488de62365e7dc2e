"""What the options of every model answer."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from feddle.data.source import Source
from feddle.options import Options


class ModelOptions(Options, ABC):
    """A model: an option that only another model has is refused by its name."""

    @abstractmethod
    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:
        """The model for images (channels, image_size, image_size), with random weights where it is not pretrained."""

    @abstractmethod
    def weights(self) -> Source[Any] | None:
        """Where its pretrained weights come from; None if it has none."""
