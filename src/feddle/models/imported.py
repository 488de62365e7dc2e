"""A custom model, named by its import path."""

from typing import ClassVar

from torch import nn

from feddle.core.errors import FeddleError
from feddle.core.importing import called
from feddle.models.options import ModelOptions
from feddle.options import Imported


class ImportedModel(ModelOptions, Imported):
    """A custom model: a function or class that makes it, by its import path. All other keys are its arguments.

    It also receives `classes`, `image_size` and `channels`, if it has parameters with these names.
    """

    offers: ClassVar[tuple[str, ...]] = ("classes", "image_size", "channels")

    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:  # noqa: ARG002
        offers = dict(zip(self.offers, (classes, image_size, channels), strict=True))
        model = called(self.name, self.arguments, offers)
        if not isinstance(model, nn.Module):
            raise FeddleError(f"{self.name}: expected a torch.nn.Module, but it returned {type(model).__name__}")
        return model

    def weights(self) -> None:
        """No weights are fetched: the code of the model may load its own."""
