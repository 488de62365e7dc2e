"""From a config to a model and the data that it meets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.errors import FeddleError
from feddle.core.seeds import numpy_generator, seed_for
from feddle.experiment import config as cfg
from feddle.experiment.models import build_model
from feddle.learning import datasets
from feddle.learning.examples import Examples, Images, Selection, resize
from feddle.learning.partition import Partition, add_label_noise, dirichlet, even, server_split
from feddle.learning.training import Loss


@dataclass(frozen=True, eq=False)
class Federation:
    """A model and the data that it meets: the clients', the server's, and what measures accuracy."""

    model: nn.Module
    clients: Sequence[Examples]
    sizes: Tensor
    server: Examples | None
    test: Examples | None
    loss: Loss = F.cross_entropy
    out_of_domain: str | None = None  # the data set that the server's examples come from, if not the clients'
    server_classes: int | None = None  # of the server's labels, if they are not the clients'
    samples_per_round: int | None = None  # how many of the server's examples a round uses at most
    witness: Examples | None = None  # in-domain examples that only diagnostics look at


@dataclass(frozen=True, eq=False)
class PartitionedClients(Sequence[Examples]):
    """The clients' shares of one data set, cut when asked for."""

    examples: Examples
    partition: Partition

    def __len__(self) -> int:
        return len(self.partition)

    def __getitem__(self, client: int) -> Examples:  # type: ignore[override]  # no slices of clients
        return Selection(self.examples, self.partition[client])


def build_federation(config: cfg.Config, *, quiet: bool = False) -> Federation:
    """Load, split and partition the data, and initialise the model."""
    data, seed = config.data, config.seed
    folder = None if data.folder is None else Path(data.folder)
    images = datasets.load(data.name, folder=folder, quiet=quiet)
    outside = data.server.name if data.server.name != data.name else None
    samples = 1000 if data.server.samples is None else data.server.samples
    server, test = server_split(len(images.test_labels), 0 if outside else samples, seed_for(seed, "server split"))
    partition = build_partition(config, images.train_labels)
    labels = add_label_noise(images.train_labels, data.label_noise, images.num_classes, seed_for(seed, "label noise"))
    _require_channels(data, data.name, images)
    train = Images(resize(images.train_images, data.image_size), labels, data.channels)
    held_out = Images(resize(images.test_images, data.image_size), images.test_labels, data.channels)
    federation = Federation(
        build_model(config, images.num_classes, quiet=quiet),
        PartitionedClients(train, partition),
        partition.sizes,
        _server_share(held_out, server, config, images.num_classes) if len(server) else None,
        Selection(held_out, test),
        samples_per_round=data.server.samples_per_round,
    )
    return _guided_from_outside(federation, config, outside, quiet) if outside else federation


def _guided_from_outside(federation: Federation, config: cfg.Config, name: str, quiet: bool) -> Federation:
    """The same federation, with training images of another data set at the server; they stay as they are on disk."""
    data = config.data
    images = datasets.load(name, quiet=quiet)
    count = len(images.train_labels)
    samples = count if data.server.samples is None else data.server.samples
    if not 0 < samples <= count:
        raise FeddleError(f"data.server.samples must be from 1 to the {count} images of {name}, got {samples}")
    order = numpy_generator(seed_for(config.seed, "server split")).permutation(count)
    _require_channels(data, name, images)
    everything = Images(images.train_images, images.train_labels, data.channels, size=data.image_size)
    server = _server_share(everything, torch.from_numpy(order[:samples]), config, images.num_classes)
    return replace(
        federation, server=server, out_of_domain=name, server_classes=images.num_classes, witness=federation.test
    )


def _server_share(images: Images, share: Tensor, config: cfg.Config, classes: int) -> Examples:
    """What the server holds of the images, with the noise of its labels; the pixels are not copied."""
    labels, noise = images.labels.clone(), config.data.server.label_noise
    labels[share] = add_label_noise(labels[share], noise, classes, seed_for(config.seed, "server label noise"))
    return Selection(replace(images, labels=labels), share)


def _require_channels(data: cfg.Data, name: str, images: datasets.ImageSet) -> None:
    if images.train_images.shape[1] not in (1, data.channels):
        raise FeddleError(f"data.channels is {data.channels}, but the images of {name} have 3; set it to 3")


def build_partition(config: cfg.Config, labels: Tensor) -> Partition:
    """The partition that a config names."""
    clients, seed = config.clients.count, seed_for(config.seed, "partition")
    match config.data.partition:
        case cfg.Dirichlet(alpha=alpha):
            return dirichlet(labels, clients, alpha, seed)
        case cfg.Even():
            return even(len(labels), clients, seed)
        case _:
            assert_never(config.data.partition)
