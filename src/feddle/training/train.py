"""Local training and evaluation."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.batches import in_order, mini_batches
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Job, Update
from feddle.core.seeds import global_seed, torch_generator
from feddle.data.examples import Examples, Inputs, are_finite
from feddle.options import Count, NonNegative, Options, Positive, is_none
from feddle.training.kernels import Optimizer, make_optimizer
from feddle.training.metrics import Task, is_right, measured, task_of

Loss = Callable[[Tensor, Tensor], Tensor]
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Recipe(Options):
    """What a client does with a job."""

    optimizer: Literal["adam", "sgd"] = Field("adam", description="`adam` or `sgd`, fresh for each job")
    lr: Positive = Field(1e-3, description="learning rate")
    epochs: Count = Field(5, description="passes over the client's data")
    batch_size: Count = Field(32, description="examples per batch")
    weight_decay: NonNegative = Field(0.0, description="weight decay, added to the gradient")
    proximal: NonNegative | None = Field(
        None,
        exclude_if=is_none,
        description="weight (μ) of FedProx's term μ/2·‖w − start of the job‖², which keeps a client near the server's "
        "model; `fedavg` with it is FedProx; by default 0",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="`float32`, or `bfloat16` for the passes through the model (autocast); weights stay float32",
    )

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """A fresh optimiser over the trainable parameters."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        return make_optimizer(self.optimizer, parameters, lr=self.lr, weight_decay=self.weight_decay)

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of a forward pass: for bfloat16 torch's autocast, which leaves the weights in float32."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)


def outputs_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """The outputs for a batch: model(inputs), model(*inputs) for a tuple or list, model(**inputs) for a dict."""
    device = next(model.parameters()).device
    if isinstance(inputs, dict):
        return model(**{name: part.to(device) for name, part in inputs.items()})  # type: ignore[no-any-return]
    several = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return model(*(part.to(device) for part in several))  # type: ignore[no-any-return]


def forget_batches(model: nn.Module) -> None:
    """Reset BatchNorm's count of batches. It is not sent, and with `momentum=None` it decides how a batch counts."""
    for module in model.modules():
        if isinstance(module, _BATCH_NORMS) and module.num_batches_tracked is not None:
            module.num_batches_tracked.zero_()


def train(
    model: nn.Module,
    examples: Examples,
    recipe: Recipe,
    seed: int,
    loss: Loss = F.cross_entropy,
    optimizer: Optimizer | None = None,
) -> float | None:
    """Train in place; return the mean loss of the last epoch, or None if no batch was large enough to train on.

    Without `optimizer`, the recipe makes a fresh one. BatchNorm cannot be trained on a single example, so a model with
    such layers skips a last batch of one.
    """
    model.train()
    *_, value = train_by_epoch(model, examples, recipe, seed, loss, optimizer)
    return value


def train_by_epoch(
    model: nn.Module,
    examples: Examples,
    recipe: Recipe,
    seed: int,
    loss: Loss,
    optimizer: Optimizer | None = None,
    negligible: float | None = None,
) -> Iterator[float | None]:
    """Train in place, in the model's current mode, and yield the mean loss of each epoch (see `train`).

    A batch whose loss is at most `negligible` makes no step. The loss does not include the proximal term.
    """
    optimizer = optimizer or recipe.make_optimizer(model)
    starts = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad] if recipe.proximal else []
    generator = torch_generator(seed)
    smallest = 2 if model.training and any(isinstance(m, _BATCH_NORMS) for m in model.modules()) else 1
    device = next(model.parameters()).device
    for _ in range(recipe.epochs):
        total, seen = 0.0, 0
        for index in mini_batches(len(examples), recipe.batch_size, generator):
            if len(index) < smallest:
                continue
            inputs, targets = examples.take(index)
            model.zero_grad(set_to_none=True)
            with recipe.arithmetic(device):
                value = loss(outputs_of(model, inputs), targets.to(device))
            if negligible is None or value.item() > negligible:
                value.backward()  # type: ignore[no-untyped-call]
                for parameter, start in starts:
                    if parameter.grad is not None:
                        parameter.grad.add_(parameter.detach() - start, alpha=recipe.proximal)
                optimizer.step()
            total, seen = total + value.item() * len(index), seen + len(index)
        yield total / seen if seen else None


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
    forget_batches(model)
    with global_seed(seed):
        value = train(model, examples, recipe, seed, loss)
    end = layout.read(model)
    if value is not None and not math.isfinite(value):
        if not are_finite(examples):
            raise FeddleError(f"the data of client {job.client} has values that are not finite; remove or replace them")
        raise FeddleError(
            f"the training loss of client {job.client} became {value} (job from version {job.version}); "
            f"lower training.lr (now {recipe.lr:g})"
        )
    metrics = {} if value is None else {"loss": value}
    return Update(job, end.vector.sub_(start.vector), end.buffers, len(examples), metrics, layout.digest)


def loss_and_gradient(
    model: nn.Module, layout: Layout, point: Weights, loss: Callable[[], Tensor]
) -> tuple[float, Tensor]:
    """The value of `loss()`, which runs the model, and its gradient (d,) at `point`; in eval mode."""
    layout.write(model, point)
    model.eval()
    model.zero_grad(set_to_none=True)
    value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    return value.item(), layout.read_grad(model)


@dataclass(frozen=True, eq=False)
class Score:
    """The quality of a model on examples: the mean loss, and the metrics of its task."""

    loss: float
    task: Task
    outputs: Tensor
    targets: Tensor

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics by name, and the loss."""
        return {**measured(self.task, self.outputs, self.targets), "test_loss": self.loss}

    @property
    def accuracy(self) -> float:
        """The accuracy of a classifier, as a fraction."""
        return self.metrics["accuracy"]

    @property
    def correct(self) -> Tensor | None:
        """Which examples a classifier predicts correctly (n,); None for other tasks and several classes per target."""
        right = is_right(self.outputs, self.targets) if self.task == "classes" else None
        return right if right is not None and right.ndim == 1 else None

    def of(self, rows: Tensor) -> "Score":
        """The score on some of the examples. The loss stays that of all."""
        return replace(self, outputs=self.outputs[rows], targets=self.targets[rows])


@torch.no_grad()
def evaluate(
    model: nn.Module,
    examples: Examples,
    loss: Loss = F.cross_entropy,
    batch_size: int = 250,
    task: Task | None = None,
) -> Score:
    """The score of a model. Without `task`, targets and loss show what it predicts."""
    model.eval()
    device = next(model.parameters()).device
    total, found = 0.0, []
    for index in in_order(len(examples), batch_size):
        inputs, targets = examples.take(index)
        targets, outputs = targets.to(device), outputs_of(model, inputs)
        total += loss(outputs, targets).item() * len(index)
        found.append((outputs.cpu(), targets.cpu()))
    outputs, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Score(total / len(examples), task or task_of(outputs, targets, loss), outputs, targets)
