"""The workload as every peer sees it: data, clients, initial weights, the plain training loop, and the clock."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 32
LEARNING_RATE = 1e-3
CLASSES = 10
ADAM = "torch.optim.Adam with its defaults"


class CNN(nn.Module):
    """feddle's network with the same weights, in plain torch, for the peers. feddle runs its own implementation."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, out in ((3, 32), (32, 64), (64, 64)):
            # the ReLU after the pooling: the same as before it, at a quarter of the work
            layers += [nn.Conv2d(width, out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(inplace=True))
        self.head = nn.Linear(512, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, 32, 32) to logits (n, 10)."""
        logits: Tensor = self.head(self.hidden(self.features(images)))
        return logits


@dataclass(frozen=True, eq=False)
class Workload:
    """Images (n, 1, 32, 32) as bytes; `clients` (J, n_j) are indices, `sampled` (R, N) the clients of each round."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    clients: Tensor
    sampled: Tensor
    weights: dict[str, Tensor]

    @property
    def rounds(self) -> int:
        """R, the number of rounds."""
        return len(self.sampled)

    def model(self) -> CNN:
        """The network with its initial weights."""
        return self.start(CNN())

    def start(self, model: CNN) -> CNN:
        """The model, set to the initial weights."""
        model.load_state_dict(self.weights)
        return model

    def client(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's images (n_j, 3, 32, 32) as floats in [−1, 1], and its labels."""
        index = self.clients[client]
        return floats(self.train_images[index]), self.train_labels[index]

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """The share of the test images that the model classifies correctly."""
        model.eval()
        correct = 0
        for images, labels in zip(self.test_images.split(250), self.test_labels.split(250), strict=True):
            correct += int((model(floats(images)).argmax(1) == labels).sum())
        return correct / len(self.test_labels)


@cache
def load(folder: str) -> Workload:
    """The workload in a folder, read once per process."""
    return Workload(
        **load_file(Path(folder) / "data.safetensors"), weights=load_file(Path(folder) / "model.safetensors")
    )


@cache
def workbench(folder: str) -> CNN:
    """A model that a process keeps for its jobs."""
    return load(folder).model()


def floats(pixels: Tensor) -> Tensor:
    """Grey bytes (n, 1, H, W) as floats in [−1, 1], repeated to three channels."""
    return pixels.float().div_(127.5).sub_(1.0).repeat(1, 3, 1, 1)


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """One local epoch in batches of a random order, with a fresh Adam."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for index in torch.randperm(len(labels)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(images[index]), labels[index]).backward()
        optimizer.step()


class Clock:
    """Wall time, and processor time of this process and its descendants, during a `with` block."""

    seconds = 0.0
    cpu_seconds = 0.0

    def __enter__(self) -> Self:
        self._cpu = tree_cpu_seconds(os.getpid())
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu_seconds = tree_cpu_seconds(os.getpid()) - self._cpu


def tree_cpu_seconds(root: int) -> float:
    """User and system time of a process, its living descendants and the children that they waited for (Linux)."""
    parents, ticks = {}, {}
    for pid, fields in _processes():
        parents[pid] = int(fields[1])
        ticks[pid] = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    total = sum(spent for pid, spent in ticks.items() if _below(pid, root, parents))
    return total / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, list[str]]]:
    """The fields of /proc/PID/stat that follow the command's name, for each process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        yield int(stat.parent.name), text.rpartition(")")[2].split()


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root and pid in parents:
        pid = parents[pid]
    return pid == root


def write_result(out: str, clock: Clock, accuracy: float, *, threads: int, note: str) -> None:
    """Write a peer's result; `threads` counts the torch threads of all its processes."""
    result = {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds, "accuracy": accuracy}
    Path(out).write_text(json.dumps({**result, "threads": threads, "note": note}), encoding="utf-8")
