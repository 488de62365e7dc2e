"""The interface of every model's options."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from feddle.data.source import Source
from feddle.options import Options


class ModelOptions(Options, ABC):
    """Base of every model's options, so that an error can name the model that has a misplaced option."""

    @abstractmethod
    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:
        """The model for images (channels, image_size, image_size), with random weights where it is not pretrained."""

    @abstractmethod
    def weights(self) -> Source[Any] | None:
        """Where its pretrained weights come from; None if it has none."""
