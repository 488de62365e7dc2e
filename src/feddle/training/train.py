"""Local training and evaluation."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.batches import mini_batches
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Job, Update
from feddle.core.seeds import global_seed, torch_generator
from feddle.data.examples import Examples
from feddle.options import Count, NonNegative, Options, Positive
from feddle.training.kernels import Optimizer, make_optimizer

Loss = Callable[[Tensor, Tensor], Tensor]
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Recipe(Options):
    """What a client does with a job."""

    optimizer: Literal["adam", "sgd"] = Field("adam", description="`adam` or `sgd`, fresh for each job")
    lr: Positive = Field(1e-3, description="learning rate")
    epochs: Count = Field(5, description="passes over the client's data")
    batch_size: Count = Field(32, description="examples per batch")
    weight_decay: NonNegative = Field(0.0, description="weight decay, added to the gradient")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="`float32`, or `bfloat16` for the passes through the model (autocast); weights stay float32",
    )

    def lasting(self, epochs: int) -> "Recipe":
        """The same for another number of epochs."""
        return self.model_copy(update={"epochs": epochs})

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """A fresh optimiser over the trainable parameters."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        return make_optimizer(self.optimizer, parameters, lr=self.lr, weight_decay=self.weight_decay)

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        """What a forward pass runs in: bfloat16 is torch's autocast, the weights stay float32."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)


def train(
    model: nn.Module,
    examples: Examples,
    recipe: Recipe,
    seed: int,
    loss: Loss = F.cross_entropy,
    optimizer: Optimizer | None = None,
) -> float | None:
    """Train in place; return the mean loss of the last epoch, None if nothing could be trained.

    The optimiser is a fresh one of the recipe unless one is given. BatchNorm cannot be trained on one image: with such
    layers a last batch of one is left out.
    """
    model.train()
    optimizer = optimizer or recipe.make_optimizer(model)
    generator = torch_generator(seed)
    smallest = 2 if any(isinstance(m, _BATCH_NORMS) for m in model.modules()) else 1
    device = next(model.parameters()).device
    total, seen = 0.0, 0
    for _ in range(recipe.epochs):
        total, seen = 0.0, 0
        for index in mini_batches(len(examples), recipe.batch_size, generator):
            if len(index) < smallest:
                continue
            inputs, targets = examples.take(index)
            model.zero_grad(set_to_none=True)
            with recipe.arithmetic(device):
                value = loss(model(inputs.to(device)), targets.to(device))
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total, seen = total + value.item() * len(index), seen + len(index)
    return total / seen if seen else None


def train_client(
    model: nn.Module,
    layout: Layout,
    start: Weights,
    examples: Examples,
    recipe: Recipe,
    job: Job,
    seed: int,
    loss: Loss = F.cross_entropy,
) -> Update:
    """Train one job from its pinned start; `model` only provides the memory to compute in."""
    layout.write(model, start)
    with global_seed(seed):
        value = train(model, examples, recipe, seed, loss)
    end = layout.read(model)
    if value is not None and not math.isfinite(value):
        raise FeddleError(
            f"the training loss of client {job.client} became {value} (job from version {job.version}); "
            f"lower training.lr (now {recipe.lr:g})"
        )
    metrics = {} if value is None else {"loss": value}
    return Update(job, end.vector.sub_(start.vector), end.buffers, len(examples), metrics, layout.digest)


@dataclass(frozen=True)
class Score:
    """How a model does on examples: mean loss, and accuracy as a fraction."""

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(model: nn.Module, examples: Examples, loss: Loss = F.cross_entropy, batch_size: int = 250) -> Score:
    """Loss and accuracy of a classifier."""
    model.eval()
    device = next(model.parameters()).device
    total, correct = 0.0, 0
    for first in range(0, len(examples), batch_size):
        index = torch.arange(first, min(first + batch_size, len(examples)))
        inputs, targets = examples.take(index)
        targets = targets.to(device)
        outputs = model(inputs.to(device))
        total += loss(outputs, targets).item() * len(index)
        correct += int((outputs.argmax(1) == targets).sum())
    return Score(total / len(examples), correct / len(examples))
