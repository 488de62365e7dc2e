"""From a config to the model that it names."""

import torch
from torch import nn

from feddle.core.seeds import seed_for
from feddle.experiment import config as cfg
from feddle.learning.models import CNN


def build_model(config: cfg.Config, classes: int) -> nn.Module:
    """The model that a config names, its weights drawn from the run's seed."""
    model, data = config.model, config.data
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, "model"))
        return CNN(
            classes,
            image_size=data.image_size,
            in_channels=data.channels,
            channels=model.channels,
            hidden=model.hidden,
            padding=model.padding,
            pools=model.pools,
        )
