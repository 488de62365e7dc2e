"""Estimate the time of a cell: a short measurement of its model, times the number of examples in its config."""

import math
import time
from collections.abc import Callable
from functools import cache, partial
from timeit import Timer

import torch
from torch.nn import functional as F

from feddle.data.datasets import contents_of
from feddle.methods.center import CenterOptions
from feddle.methods.convex import ConvexOptions
from feddle.methods.fedavg import FedAvgOptions
from feddle.methods.feddf import FedDFOptions
from feddle.methods.feddle.method import AtlasOptions
from feddle.methods.fedft import FedFTOptions
from feddle.methods.hfcl import HfclOptions
from feddle.methods.local import LocalOptions
from feddle.models.options import ModelOptions
from feddle.run.plan import Config
from feddle.training.machine import one_thread
from feddle.training.search import LbfgsSearch
from feddle.training.train import Recipe

_START = 3.0  # seconds until the first round, to start a process and read the data
_UNKNOWN = (50_000, 10_000, 10)  # assumed train and test images and classes of a data set that is not in the catalogue


def core_seconds(config: Config) -> float:
    """The approximate time of a run on one core."""
    held = contents_of(config.data.name)
    train, test, classes = _UNKNOWN if held is None else (held.train, held.test, held.num_classes)
    step, evaluation = _measured(config.model, classes, config.data.image_size, config.data.channels)
    evaluations = math.ceil(config.rounds / config.evaluation.every)
    outside = config.data.server.name is not None
    server = config.data.server.samples_per_round if outside else config.data.server.samples or 1000
    own = _server_passes(config) * min(server, config.data.server.samples_per_round)
    clients = _arrivals(config) * train / config.clients.count * config.training.epochs
    return _START + config.rounds * (clients + own) * step + evaluations * test * evaluation


def _arrivals(config: Config) -> float:
    """Mean number of updates per round. Late updates that a method discards are not trained."""
    method, sigma = config.method, config.delays.sigma
    if isinstance(method, CenterOptions):
        return 0.0
    if isinstance(method, LocalOptions):  # each client trains as much as in a federation, but not every client does
        return config.clients.per_round * min(1.0, method.clients / config.clients.count)
    base = method.base if isinstance(method, FedFTOptions) else method
    discards = isinstance(base, FedAvgOptions | HfclOptions | FedDFOptions) and base.late == "discard"
    return config.clients.per_round * (math.erf(1 / (sigma * math.sqrt(2))) if discards and sigma else 1.0)


def _server_passes(config: Config) -> float:
    """Passes over the server's data per round, each as expensive as training."""
    match config.method:
        case AtlasOptions(search=search, server_anchor=own):
            passes = 1.2 * search.iterations if isinstance(search, LbfgsSearch) else float(search.epochs)
            return passes + ((own.epochs or 1) if own else 0)
        case FedFTOptions(epochs=epochs) | ConvexOptions(epochs=epochs):
            return float(epochs)
        case FedDFOptions(epochs=epochs):
            return epochs + _arrivals(config) / 3  # each teacher evaluates once, which costs a third of a training pass
        case HfclOptions():
            return float(config.training.epochs)
        case CenterOptions(epochs=epochs):
            return epochs / config.rounds
        case _:
            return 0.0


@cache
def _measured(model: ModelOptions, classes: int, size: int, channels: int) -> tuple[float, float]:
    """Seconds that one core needs to train on an example, and to evaluate one."""
    built = model.build(classes, size, channels)
    count = 32 if size <= 64 else 4
    images = torch.zeros(count, channels, size, size).contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(count, dtype=torch.long)
    optimizer = Recipe().make_optimizer(built)

    def step() -> None:
        built.zero_grad(set_to_none=True)
        F.cross_entropy(built(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    with one_thread():
        return _processor_time(step) / count, _processor_time(torch.no_grad()(partial(built, images))) / count


def _processor_time(work: Callable[[], object]) -> float:
    """CPU time of one call, in seconds."""
    work()
    number, seconds = Timer(work, timer=time.process_time).autorange()
    return seconds / number
