"""From a config to the objects that it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.atlas import Atlas
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.core.search import LbfgsSearch, PaperSearch, Search
from feddle.core.seeds import seed_for
from feddle.experiment import config as cfg
from feddle.learning import datasets
from feddle.learning.examples import Examples, Images, Selection, resize
from feddle.learning.models import CNN
from feddle.learning.objectives import TaskObjective
from feddle.learning.partition import Partition, add_label_noise, dirichlet, even, server_split
from feddle.learning.training import Loss
from feddle.strategies.fallback import Fallback, FedAsyncFallback, FedAvgFallback, FedBuffFallback, NoFallback
from feddle.strategies.fedavg import FedAvg
from feddle.strategies.fedbuff import FedBuff
from feddle.strategies.feddle import Feddle
from feddle.strategies.strategy import Strategy


@dataclass(frozen=True, eq=False)
class Federation:
    """A model and the data that it meets: the clients', the server's, and what measures accuracy."""

    model: nn.Module
    clients: Sequence[Examples]
    sizes: Tensor
    server: Examples | None
    test: Examples | None
    loss: Loss = F.cross_entropy


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
    server, test = server_split(len(images.test_labels), data.server.samples, seed_for(seed, "server split"))
    partition = build_partition(config, images.train_labels)
    labels = add_label_noise(images.train_labels, data.label_noise, images.num_classes, seed_for(seed, "label noise"))
    if images.train_images.shape[1] not in (1, data.channels):
        raise FeddleError(f"data.channels is {data.channels}, but the images of {data.name} have 3; set it to 3")
    train = Images(resize(images.train_images, data.image_size), labels, data.channels)
    held_out = Images(resize(images.test_images, data.image_size), images.test_labels, data.channels)
    return Federation(
        build_model(config, images.num_classes),
        PartitionedClients(train, partition),
        partition.sizes,
        Selection(held_out, server) if len(server) else None,
        Selection(held_out, test),
    )


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


def build_strategy(plan: cfg.Plan, federation: Federation, layout: Layout, device: str) -> Strategy:
    """The method that a config names."""
    match plan.method:
        case cfg.FedAvg() as method:
            return FedAvg(method.late)
        case cfg.FedBuff() as method:
            return FedBuff(method.buffer_size, method.lr, method.staleness)
        case cfg.Feddle() as method:
            return _build_feddle(method, plan, federation, layout, device)
        case _:
            assert_never(plan.method)


def _build_feddle(method: cfg.Feddle, plan: cfg.Plan, federation: Federation, layout: Layout, device: str) -> Feddle:
    if federation.server is None:
        raise FeddleError("feddle searches on the server's data, but there is none; set data.server.samples above 0")
    capacity = method.atlas_size or 2 * plan.clients.per_round
    return Feddle(
        TaskObjective(federation.model, layout, federation.server, federation.loss),
        Atlas(capacity, layout.size, eviction=method.eviction, device=device),
        build_search(method.search),
        build_fallback(method.fallback),
        normalise=method.normalise,
        regularisation=method.regularisation,
        seed=plan.seed,
    )


def build_search(search: cfg.AnySearch) -> Search:
    """The search that a config names."""
    match search:
        case cfg.PaperSearch():
            return PaperSearch(search.lr, search.epochs, search.batch_size)
        case cfg.AnnealedSearch():
            return PaperSearch(search.lr, search.epochs, search.batch_size, anneal=True)
        case cfg.LbfgsSearch():
            return LbfgsSearch(search.iterations)
        case _:
            assert_never(search)


def build_fallback(fallback: cfg.AnyFallback) -> Fallback:
    """The fallback that a config names."""
    match fallback:
        case cfg.FedBuffFallback():
            return FedBuffFallback(fallback.lr, fallback.staleness)
        case cfg.FedAvgFallback():
            return FedAvgFallback()
        case cfg.FedAsyncFallback():
            return FedAsyncFallback(fallback.alpha, fallback.exponent)
        case cfg.NoFallback():
            return NoFallback()
        case _:
            assert_never(fallback)
