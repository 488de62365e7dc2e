"""Building the model and the data of a config."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.errors import FeddleError
from feddle.core.seeds import numpy_generator, seed_for
from feddle.data.augmentation import Augment, crop_flip
from feddle.data.collection import Collection, Labelled, Texts, among_drawn, drawn_split, held_out, validation_split
from feddle.data.examples import Examples, Images, Inputs, Selection, Tokens, resize
from feddle.data.options import read_data
from feddle.data.partition import Partition, add_label_noise, is_natural
from feddle.data.pictures import KeptPictures
from feddle.models.transformers import TransformersOptions
from feddle.run.plan import Config
from feddle.training.metrics import Task
from feddle.training.scorers import MetricFunction
from feddle.training.train import Loss


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, and the data of the clients, of the server and for the test."""

    model: nn.Module
    clients: Sequence[Examples]
    sizes: Tensor
    server: Examples | None
    test: Examples | None
    loss: Loss = F.cross_entropy
    out_of_domain: str | None = None  # name of the server's data set, if it is not the clients'
    server_classes: int | None = None  # number of the server's classes, if they are not the clients'
    samples_per_round: int | None = None  # largest number of the server's examples used per round
    witness: Examples | None = None  # in-domain examples, used only by diagnostics
    augment: Augment | None = None  # random changes of clients' training inputs
    task: Task | None = None  # what the model predicts; None: the targets and the loss show it
    test_owners: Tensor | None = None  # the client of each test example, or NOBODY, if the data says so
    classes: tuple[str, ...] = ()  # the names of the clients' classes, if they are known
    client_names: Sequence[str] = ()
    metrics: Sequence[MetricFunction] = ()  # further metrics; a plan selects others by name
    unused: tuple[str, ...] = ()  # columns of the data without a role, if the clients are simulated: one may name them
    server_from_test: bool = False  # whether the server's examples were taken from the held-out data
    digest: str | None = None  # of labels and partition, to detect changed data when a run is resumed

    @property
    def eligible(self) -> Tensor:
        """The clients that have data."""
        return self.sizes.nonzero().flatten()


@dataclass(frozen=True, eq=False)
class PartitionedClients(Sequence[Examples]):
    """The clients' shares of one data set; each is selected when it is used."""

    examples: Examples
    partition: Partition
    names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.partition)

    def __getitem__(self, client: int) -> Examples:  # type: ignore[override]  # no slices of clients
        return Selection(self.examples, self.partition[client])


@dataclass(frozen=True, eq=False)
class OwnedExamples:
    """Examples with their clients. `owners` has the index in `names` of each example's client, or NOBODY."""

    examples: Examples
    owners: Tensor
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        return self.examples.take(index)


def build_problem(config: Config, model: nn.Module | None = None, *, quiet: bool = False) -> Problem:
    """Load, split and partition the data, and initialise the model; `model` replaces that of the config."""
    data, seed = config.data, config.seed
    collection = build_collection(config, quiet=quiet)
    validation: Labelled | None = None
    if data.validation:
        collection, validation = validation_split(collection, data.validation, seed_for(seed, "validation split"))
    train, tested = collection.train, collection.test
    assert tested is not None
    samples = min(1000, len(tested) // 2) if data.server.samples is None else data.server.samples
    outside = read_data(data.server, quiet=quiet) if data.outside else None
    own = collection.server if outside is None else outside.train  # rows that are only the server's
    taken = samples if own is None else 0
    share, test = drawn_split("data.server.samples", len(tested), taken, seed_for(seed, "server split"))
    partition = data.partition.build(train, config.clients.count, seed_for(seed, "partition"))
    labels = add_label_noise(train.labels, data.label_noise, collection.classes, seed_for(seed, "label noise"))
    measured = build_examples(tested, tested.labels, config, collection.name)
    accuracy: Examples = Selection(measured, test)
    owners = None if tested.owners is None else tested.owners[test]
    if validation is not None:
        accuracy, owners = build_examples(validation, validation.labels, config, collection.name), validation.owners
    server = _server_share(measured, share, config, collection.classes) if len(share) else None
    names = collection.client_names if is_natural(data.partition, collection) else ()
    return Problem(
        build_model(config, collection.classes, quiet=quiet) if model is None else model,
        PartitionedClients(build_examples(train, labels, config, collection.name), partition, names),
        partition.sizes,
        server if own is None else _drawn(own, config, outside or collection),
        accuracy,
        out_of_domain=None if outside is None else outside.name,
        server_classes=None if outside is None else outside.classes,
        samples_per_round=data.server.samples_per_round,
        witness=accuracy if outside else None,
        augment=crop_flip if data.augmentation == "crop-flip" else None,
        test_owners=owners if is_natural(data.partition, collection) else None,
        classes=collection.names or tuple(map(str, range(collection.classes))),
        client_names=names,
        server_from_test=len(share) > 0,
        unused=collection.unused if train.owners is None else (),
        digest=_digest(train.labels, partition.order, partition.offsets, tested.labels),
    )


def build_model(config: Config, classes: int, *, quiet: bool = False) -> nn.Module:
    """The model of a config. Weights that are not pretrained are drawn from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, "model"))
        return config.model.build(classes, config.data.image_size, config.data.channels, quiet=quiet)


def build_collection(config: Config, *, quiet: bool = False) -> Collection:
    """The data of the clients that take part, and test images."""
    data, seed = config.data, config.seed
    collection = read_data(data, quiet=quiet)
    if is_natural(data.partition, collection):
        collection = among_drawn(collection, config.clients.count, seed_for(seed, "clients"))
    if collection.test is None:
        collection = held_out(collection, data.test_share, seed_for(seed, "test split"))
    return collection


def _drawn(rows: Labelled, config: Config, collection: Collection) -> Examples:
    """The server's examples: a random sample of the rows, of the size in the config, by default all.

    They may be many and large, so they are resized when they are used.
    """
    data, count = config.data, len(rows)
    samples = count if data.server.samples is None else data.server.samples
    if data.outside:  # a copy of ImageNet may be incomplete
        samples = min(samples, count)
    if not 0 < samples <= count:
        raise FeddleError(
            f"data.server.samples must be from 1 to the {count} images of {collection.name}, got {samples}"
        )
    share = torch.from_numpy(numpy_generator(seed_for(config.seed, "server split")).permutation(count)[:samples])
    if not isinstance(rows.images, Tensor):  # keep only the images in use in memory
        rows, share = rows.select(share), torch.arange(samples)
    examples = build_examples(rows, rows.labels, config, collection.name, lazily=True)
    return _server_share(examples, share, config, collection.classes)


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{len(tensor)} ".encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _server_share(images: Images | Tokens, share: Tensor, config: Config, classes: int) -> Examples:
    """The server's share of the images, with its label noise; the pixels are not copied."""
    labels, noise = images.labels.clone(), config.data.server.label_noise
    labels[share] = add_label_noise(labels[share], noise, classes, seed_for(config.seed, "server label noise"))
    return Selection(replace(images, labels=labels), share)


def build_examples(
    rows: Labelled, labels: Tensor, config: Config, name: str, *, lazily: bool = False
) -> Images | Tokens:
    """Rows as examples: texts as tokens, images with the size and channels of the config.

    Images are resized now if the result fits in `data.cache_mb`. Otherwise, or if `lazily`, they are resized when they
    are used. The results are bit-identical.
    """
    images, data = rows.images, config.data
    if isinstance(images, Texts):
        return Tokens(_tokens(images, config, name), labels)
    size, channels, room = data.image_size, data.channels, data.cache_mb << 20
    if not isinstance(images, Tensor):
        return Images(KeptPictures.of(images, channels, size, room), labels, channels)
    if images.shape[1] not in (1, channels):
        raise FeddleError(f"data.channels is {channels}, but the images of {name} have 3; set it to 3")
    fits = images.shape[0] * images.shape[1] * size * size <= room
    if lazily or not fits:
        return Images(images, labels, channels, size)
    return Images(resize(images, size), labels, channels)


def _tokens(texts: Texts, config: Config, name: str) -> Tensor:
    """Texts as the token ids of the config's model."""
    if not isinstance(config.model, TransformersOptions):
        raise FeddleError(
            f"{name} holds text, but the model is {config.model.name}; set model.name to transformers and model.path "
            "to a text model, such as minilm-l6"
        )
    if config.data.augmentation != "none":
        raise FeddleError(f"data.augmentation is for images, but {name} holds text; set it to none")
    return config.model.tokens(texts.texts)
