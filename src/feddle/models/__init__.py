"""The models that a config can name."""

from typing import Annotated

from pydantic import Discriminator, Field

from feddle.models.cnn import CnnOptions
from feddle.models.mobilenet import MobileNetV2Options
from feddle.models.resnet import ResNet18Options
from feddle.models.transformers import TransformersOptions
from feddle.options import choice

AnyModel = CnnOptions | ResNet18Options | MobileNetV2Options | TransformersOptions
Model = Annotated[AnyModel, Discriminator("name"), choice("cnn"), Field(description="the model that is trained")]
