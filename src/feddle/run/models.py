"""From a config to the model that it names."""

from pathlib import Path
from typing import assert_never

import torch
from torch import nn

from feddle.core.errors import FeddleError
from feddle.core.seeds import seed_for
from feddle.data.places import cache_folder
from feddle.models import options as architectures
from feddle.models import weights
from feddle.models.cnn import CNN
from feddle.models.mobilenet import MobileNetV2
from feddle.models.pretrained import Standardise, adopt, fix_statistics
from feddle.models.resnet import ResNet18
from feddle.run import plan as cfg


def build_model(config: cfg.Config, classes: int, *, quiet: bool = False) -> nn.Module:
    """The model that a config names; what is not pretrained is drawn from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, "model"))
        match config.model:
            case architectures.Cnn() as model:
                return _build_cnn(model, config.data, classes)
            case architectures.ResNet18() | architectures.MobileNetV2() as model:
                return _build_pretrained(model, config.data, classes, quiet=quiet)
            case architectures.Transformers() as model:
                return _build_transformer(model, config.data, classes, quiet=quiet)
            case _:
                assert_never(config.model)


def fetch_weights(model: architectures.AnyModel, *, quiet: bool = False) -> None:
    """Get the weights that a model starts from, if they are to be fetched."""
    match model:
        case architectures.ResNet18(pretrained=True) | architectures.MobileNetV2(pretrained=True):
            weights.fetch(model.name, folder=_folder(model), quiet=quiet)
        case architectures.Transformers(path=path) if path in weights.TRANSFORMERS:
            weights.fetch(path, quiet=quiet)


def local_folder(path: str) -> Path:
    """Where a model of your own is: the folder of this path, else the one of this name beside the fetched weights."""
    folder, kept = Path(path).expanduser(), kept_folder(path)
    return kept if kept.is_dir() and not folder.is_dir() else folder


def kept_folder(path: str) -> Path:
    """Where the cache folder may hold a model of your own."""
    return cache_folder() / "weights" / path


def _build_cnn(model: architectures.Cnn, data: cfg.Data, classes: int) -> nn.Module:
    return CNN(
        classes,
        image_size=data.image_size,
        in_channels=data.channels,
        channels=model.channels,
        hidden=model.hidden,
        padding=model.padding,
        pools=model.pools,
    )


def _build_pretrained(
    model: architectures.ResNet18 | architectures.MobileNetV2, data: cfg.Data, classes: int, *, quiet: bool
) -> nn.Module:
    if data.image_size < 32:
        raise FeddleError(f"{model.name} takes images from 32×32 up; raise data.image_size (now {data.image_size})")
    if model.pretrained and data.channels != 3:
        raise FeddleError(
            f"the weights of {model.name} are for 3 channels, got data.channels {data.channels}; set it to 3"
        )
    inputs = Standardise() if model.pretrained else None
    built: nn.Module
    match model:
        case architectures.ResNet18():
            built, head = ResNet18(classes, in_channels=data.channels, inputs=inputs), "fc"
        case architectures.MobileNetV2():
            built, head = MobileNetV2(classes, in_channels=data.channels, inputs=inputs), "classifier"
        case _:
            assert_never(model)
    if model.pretrained:
        adopt(built, weights.load(model.name, folder=_folder(model), quiet=quiet), head)
    if model.batchnorm == "fixed":
        fix_statistics(built)
    return built


def _build_transformer(model: architectures.Transformers, data: cfg.Data, classes: int, *, quiet: bool) -> nn.Module:
    from feddle.models.transformers import Adapters, load_classifier  # it takes seconds to import

    named = model.path in weights.TRANSFORMERS
    folder = weights.fetch(model.path, quiet=quiet) if named else local_folder(model.path)
    lora = model.lora
    adapters = None
    if lora is not None:
        adapters = Adapters(lora.rank, lora.alpha, lora.dropout, lora.target_modules, lora.options)
    return load_classifier(folder, classes, adapters, image_size=data.image_size, channels=data.channels)


def _folder(model: architectures.ResNet18 | architectures.MobileNetV2) -> Path | None:
    return None if model.folder is None else Path(model.folder)
