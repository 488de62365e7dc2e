"""The models that a config can name."""

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from feddle.models.cnn import CnnOptions
from feddle.models.imported import ImportedModel
from feddle.models.mobilenet import MobileNetV2Options
from feddle.models.resnet import ResNet18Options
from feddle.models.transformers import TransformersOptions
from feddle.options import choice, named_or_imported

AnyModel = CnnOptions | ResNet18Options | MobileNetV2Options | TransformersOptions
NamedModel = Annotated[AnyModel, Discriminator("name")]
Model = Annotated[
    Annotated[NamedModel, Tag("named")] | Annotated[ImportedModel, Tag("imported")],
    named_or_imported,
    choice("cnn"),
    Field(description="the model that is trained"),
]
