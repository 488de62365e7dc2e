"""Estimate the time of a cell: a short measurement of its model, times the number of examples in its config."""

from functools import cache

import torch

from feddle.data.datasets import Contents, contents_of
from feddle.data.examples import Examples, Images, Tokens
from feddle.methods.strategy import cost_of
from feddle.models.options import ModelOptions
from feddle.models.transformers import TransformersOptions
from feddle.run.estimate import Held, Sizes, diagnosis_seconds, expected_traffic, round_seconds, setting_of
from feddle.run.measure import Measured, Subject, measure
from feddle.run.plan import Config
from feddle.training.train import Recipe

_START = 3.0  # seconds until the first round, to start a process and read the data
_UNKNOWN = Contents((3, 32, 32), 50_000, 10_000, 10)  # assumed for a data set that is not in the catalogue
_SAMPLES = 1000  # of the server by default


def core_seconds(config: Config) -> float:
    """The approximate time of a run on one core. Its data is not read, so clients are assumed to be equally large."""
    contents = contents_of(config.data.name) or _UNKNOWN
    held, classes = _held(config, contents), len(config.data.classes or ()) or contents.num_classes
    size, measured = _measured(config.model, classes, config.data.image_size, config.data.channels, not contents.shape)
    sizes, speed = Sizes(size), measured.speed
    traffic = expected_traffic(config, sizes, held)
    setting = setting_of(config, traffic, sizes, held)
    merge = round_seconds(cost_of(config.method, setting), setting, speed)
    clients = traffic.used * held.client * config.training.epochs * speed.trained(config.training.batch_size)
    tests = sum(config.is_evaluated(number) for number in range(1, config.rounds + 1))
    checks = config.rounds // config.diagnostics.every if config.diagnostics else 0
    rest = tests * held.test * speed.evaluated + checks * diagnosis_seconds(config, setting, speed)
    return _START + clients + config.rounds * merge + rest


def _held(config: Config, contents: Contents) -> Held:
    """The estimated numbers of examples of clients, server and test; all classes are assumed to be equally frequent."""
    data = config.data
    share = len(data.classes) / contents.num_classes if data.classes else 1.0
    train, test = round(share * contents.train), round(share * contents.test)
    own = min(_SAMPLES, test // 2) if data.server.samples is None else data.server.samples
    server = data.server.samples or data.server.samples_per_round if data.outside else own
    return Held(config.clients.count, train / config.clients.count, server, test, data.outside)


@cache
def _measured(model: ModelOptions, classes: int, size: int, channels: int, text: bool) -> tuple[int, Measured]:
    """The number of trainable parameters, and the measurement on blank examples."""
    built = model.build(classes, size, channels)
    recipe = Recipe(batch_size=32 if size <= 64 else 4)
    parameters = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    return parameters, measure(Subject(built, _blank(model, size, channels, text), recipe))


def _blank(model: ModelOptions, size: int, channels: int, text: bool) -> Examples:
    labels = torch.zeros(1, dtype=torch.long)
    if text and isinstance(model, TransformersOptions):
        return Tokens(torch.ones(1, model.longest, dtype=torch.long), labels)
    return Images(torch.zeros(1, channels, size, size, dtype=torch.uint8), labels, channels)
