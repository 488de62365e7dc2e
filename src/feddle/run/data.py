"""From a config to images: opened, split and partitioned."""

from pathlib import Path
from typing import assert_never

from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.core.seeds import seed_for
from feddle.data import datasets, official, own_data
from feddle.data.collection import Collection, Labelled, among_drawn, held_out
from feddle.data.examples import Images, resize
from feddle.data.kinds import KINDS
from feddle.data.partition import Partition, by_owner, dirichlet, even
from feddle.data.pictures import PictureExamples
from feddle.data.places import expanded
from feddle.data.readers.csv import Columns
from feddle.run import plan as cfg


def open_data(where: cfg.Data | cfg.ServerData, *, quiet: bool = False) -> Collection:
    """The data set that a config names: your own, one whose files you bring, or one that can be fetched."""
    name = where.name
    assert name is not None
    folder = None if where.folder is None else Path(where.folder)
    for kind in KINDS:
        if name == kind:
            assert where.path is not None
            return own_data.read(kind, expanded(Path(where.path)), Columns(**where.columns.model_dump()))
    if name in official.NAMES:
        return official.read_official(name, folder)
    images = datasets.load(name, folder=folder, quiet=quiet)
    halves = (Labelled(images.train_images, images.train_labels), Labelled(images.test_images, images.test_labels))
    return Collection(name, *halves, images.num_classes)


def is_outside(data: cfg.Data) -> bool:
    """Whether the server's images are of another data set than the clients'."""
    server = data.server
    return server.name is not None and (server.name, server.path) != (data.name, data.path)


def build_collection(config: cfg.Config, *, quiet: bool = False) -> Collection:
    """The clients' data set, only those who take part, with test images."""
    data, seed = config.data, config.seed
    collection = open_data(data, quiet=quiet)
    if is_natural(data, collection):
        collection = among_drawn(collection, config.clients.count, seed_for(seed, "clients"))
    if collection.test is None:
        collection = held_out(collection, data.test_share, seed_for(seed, "test split"))
    return collection


def is_natural(data: cfg.Data, collection: Collection) -> bool:
    """Whether every client has what is its own."""
    owned = collection.train.owners is not None
    if isinstance(data.partition, cfg.Natural) and not owned:
        raise FeddleError(
            f"data.partition is natural, but {collection.name} does not say which client an image belongs to; "
            "use dirichlet or even, or add a column for it (data.columns.client)"
        )
    return owned and isinstance(data.partition, cfg.Natural | cfg.Auto)


def build_partition(config: cfg.Config, train: Labelled) -> Partition:
    """The partition that a config names."""
    clients, seed = config.clients.count, seed_for(config.seed, "partition")
    kinds = train.labels if train.kinds is None else train.kinds
    match config.data.partition:
        case cfg.Natural() | cfg.Auto() if train.owners is not None:
            return by_owner(train.owners, int(train.owners.max()) + 1)
        case cfg.Natural() | cfg.Auto():
            return dirichlet(kinds, clients, cfg.Dirichlet().alpha, seed)
        case cfg.Dirichlet(alpha=alpha):
            return dirichlet(kinds, clients, alpha, seed)
        case cfg.Even():
            return even(len(train), clients, seed)
        case _:
            assert_never(config.data.partition)


def build_examples(
    rows: Labelled, labels: Tensor, data: cfg.Data, name: str, *, lazily: bool = False
) -> Images | PictureExamples:
    """Rows as examples of the size and channels that a config asks for.

    Pixels are resized now if that fits in `data.cache_mb`, else (or `lazily`) when they are taken: the same bits.
    """
    images, size, channels, room = rows.images, data.image_size, data.channels, data.cache_mb << 20
    if not isinstance(images, Tensor):
        return PictureExamples.of(images, labels, channels, size, room)
    if images.shape[1] not in (1, channels):
        raise FeddleError(f"data.channels is {channels}, but the images of {name} have 3; set it to 3")
    fits = images.shape[0] * images.shape[1] * size * size <= room
    if lazily or not fits:
        return Images(images, labels, channels, size)
    return Images(resize(images, size), labels, channels)
