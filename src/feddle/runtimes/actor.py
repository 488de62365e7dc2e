"""The work of a worker on a node of a Ray cluster."""

import os
import sys
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from feddle.clients.work import Work
from feddle.core.layout import Weights
from feddle.core.messages import Job
from feddle.runtimes.backlog import Failed, attempt
from feddle.runtimes.packing import unpack
from feddle.training.machine import one_thread
from feddle.version import __version__

Reply = Failed | tuple[dict[str, Any], np.ndarray, np.ndarray]


class RayWorker:
    """The actor: trains jobs on one node."""

    def __init__(self, device: str, place: tuple[str, list[str]], packed: tuple[bytes, list[np.ndarray]]) -> None:
        folder, paths = place  # of the driver; if the node has them too, it finds the user's files there
        sys.path.extend(path for path in paths if path not in sys.path)
        with suppress(OSError):
            os.chdir(folder)
        self.work: Work
        model: nn.Module
        self.work, model = unpack(*packed)
        self.device = device
        model.to(device=device)

    def versions(self) -> dict[str, str]:
        """The versions that must be the same on all nodes."""
        return versions()

    def train(self, job: tuple[int, int, int], vector: np.ndarray, buffers: np.ndarray) -> Reply:
        """Train a job; the start is read in place."""
        with one_thread(), warnings.catch_warnings():  # in the thread of this call
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            start = Weights(*(torch.from_numpy(each).to(self.device) for each in (vector, buffers)))
            update = attempt(self.work, Job(*job), start)
        if isinstance(update, Failed):
            return update
        facts = {"num_examples": update.num_examples, "metrics": dict(update.metrics), "digest": update.digest}
        return facts, update.delta.cpu().numpy(), update.buffers.cpu().numpy()


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    return {"feddle": __version__, "torch": torch.__version__, "numpy": np.__version__}
