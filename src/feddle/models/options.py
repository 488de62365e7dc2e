"""The options of every model."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from feddle.options import Count, Positive, Share, Strict, choice


class ModelConfig(Strict):
    """A model: an option that only another one has is refused by its name."""


class Cnn(ModelConfig):
    """The paper's CNN: three convolutions, two linear layers."""

    name: Literal["cnn"] = "cnn"
    channels: Annotated[tuple[Count, ...], Field(min_length=1)] = Field((32, 64, 64), description="of the convolutions")
    hidden: Count = Field(512, description="width of the first linear layer")
    padding: bool = Field(True, description="whether convolutions keep the image's size")
    pools: int = Field(3, ge=0, le=1000, strict=True, description="2×2 pooling follows this many of the convolutions")


Pretrained = Annotated[
    bool, Field(description="start from ImageNet weights (`feddle weights list`), with a new head; else at random")
]
WeightsFolder = Annotated[str | None, Field(description="where the official weights are, if not to be fetched")]
BatchNorm = Annotated[
    Literal["average", "fixed"],
    Field(
        description="running statistics: `average` those of the arrivals, or `fixed` as they came with the weights, "
        "in training too"
    ),
]


class ResNet18(ModelConfig):
    """ResNet-18, every layer trained."""

    name: Literal["resnet18"] = "resnet18"
    pretrained: Pretrained = True
    folder: WeightsFolder = None
    batchnorm: BatchNorm = "average"


class MobileNetV2(ModelConfig):
    """MobileNetV2, for small devices; every layer trained."""

    name: Literal["mobilenet-v2"] = "mobilenet-v2"
    pretrained: Pretrained = True
    folder: WeightsFolder = None
    batchnorm: BatchNorm = "average"


class Lora(Strict):
    """Low-rank adapters (peft): they and the head are trained, sent and merged, the rest stays as it is."""

    rank: Count = Field(4, description="of the product BA that is added to a matrix")
    alpha: Positive = Field(8.0, description="the product is scaled by alpha/rank")
    dropout: Share = Field(0.0, description="of an adapter's inputs, in training")
    target_modules: tuple[str, ...] | str | None = Field(
        None,
        description="the layers that get one: ends of names, or a regular expression; by default attention's query "
        "and value",
    )
    options: dict[str, Any] = Field({}, description="any other field of peft's LoraConfig")


class Transformers(ModelConfig):
    """A classifier of the transformers library; needs `feddle[transformers]`."""

    name: Literal["transformers"] = "transformers"
    path: str = Field(
        description="a folder with `config.json` and safetensors (Hugging Face's layout, or timm's for a ViT), "
        "also one in `weights` of the cache folder; or a name of `feddle weights list`"
    )
    lora: Lora | None = Field(None, description="by default none: every layer is trained; `{}` for some")


AnyModel = Cnn | ResNet18 | MobileNetV2 | Transformers
Model = Annotated[AnyModel, Discriminator("name"), choice("cnn")]
