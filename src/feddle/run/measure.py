"""A short measurement of a model on this machine: the time of a training step, and the memory that it takes."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from feddle.core.atlas import FloatRows, Rows
from feddle.core.blocks import Blocks
from feddle.core.layout import Layout
from feddle.core.messages import Job
from feddle.data.augmentation import Augment, Augmented
from feddle.data.examples import Examples, Selection
from feddle.training.machine import one_thread, release_freed_pages
from feddle.training.train import Loss, Recipe, evaluate, train_client

_ROWS = 4  # anchors in a measured search step
_EVALUATED = 250  # examples per batch of an evaluation
_ENOUGH = 0.5  # seconds after which a measurement is not repeated
_REPEATS = 5
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Memory:
    """Bytes that this process has in memory, and the largest number so far."""

    now: int
    peak: int


@dataclass(frozen=True)
class Speed:
    """Seconds of one core. A job takes job + batch × batches + example × examples."""

    job: float
    batch: float
    example: float
    evaluated: float  # to evaluate an example
    product: float  # to combine and to project one anchor in a search step

    def job_of(self, examples: int, recipe: Recipe) -> float:
        """The time to train a client that has this many examples."""
        batches = -(-examples // recipe.batch_size)
        return self.job + recipe.epochs * (batches * self.batch + examples * self.example)

    def trained(self, batch_size: int = 32) -> float:
        """The time per example in full batches."""
        return self.example + self.batch / batch_size


@dataclass(frozen=True)
class Measured:
    """The speed, and the bytes of memory that training and evaluation add; None where it cannot be measured."""

    speed: Speed
    training: int | None
    evaluation: int | None


@dataclass(frozen=True, eq=False)
class Subject:
    """What is measured: a model that trains on examples as a client does."""

    model: nn.Module
    examples: Examples  # at least one
    recipe: Recipe
    loss: Loss = F.cross_entropy
    augment: Augment | None = None
    rows: Rows | None = None  # some anchors, in the storage of the method; by default float32
    blocks: Blocks | None = None


def measure(subject: Subject) -> Measured:
    """Train a few batches, evaluate one and make a search step; takes seconds, and restores the model."""
    layout = Layout.of(subject.model)
    kept = layout.read(subject.model)
    with one_thread():
        try:
            training = _growth(partial(_train, subject, layout, 2 * subject.recipe.batch_size))
            evaluation = _growth(partial(_evaluate, subject))
            return Measured(_speed(subject, layout), training, evaluation)
        finally:
            layout.write(subject.model, kept)


def _speed(subject: Subject, layout: Layout) -> Speed:
    """Time jobs with a part of a batch, one batch and four batches, to separate the costs of job, batch and example."""
    size = subject.recipe.batch_size
    few = max(1, size // 4)
    part, one, four = (_seconds(partial(_train, subject, layout, count)) for count in (few, size, 4 * size))
    example = max(one - part, 0.0) / (size - few) if size > few else 0.0
    example = min(example, max(four - one, 0.0) / (3 * size))
    batch = max(four - one, 0.0) / 3 - size * example
    job = max(one - batch - size * example, 0.0)
    return Speed(job, batch, example, _seconds(partial(_evaluate, subject)) / _EVALUATED, _product(subject, layout))


def _train(subject: Subject, layout: Layout, count: int) -> None:
    """A client's job with this many examples and one pass over them."""
    examples, recipe = _several(subject.examples, count), subject.recipe.model_copy(update={"epochs": 1})
    if subject.augment is not None:
        examples = Augmented(examples, subject.augment, torch.Generator().manual_seed(0))
    start = layout.read(subject.model)
    train_client(subject.model, layout, start, examples, recipe, Job(0, 0, 0), 0, subject.loss)


def _evaluate(subject: Subject) -> None:
    evaluate(subject.model, _several(subject.examples, _EVALUATED), subject.loss, _EVALUATED)


def _product(subject: Subject, layout: Layout) -> float:
    rows = FloatRows.empty(_ROWS, layout.size) if subject.rows is None else subject.rows
    vector = torch.ones(layout.size, device=rows.matrix.device if isinstance(rows, FloatRows) else None)
    shape = (len(rows),) if subject.blocks is None else (len(rows), len(subject.blocks))
    coefficients = torch.ones(shape, device=vector.device)

    def step() -> None:
        rows.combine(vector, coefficients, subject.blocks)
        rows.project(vector, subject.blocks)

    return _seconds(step) / len(rows)


def _several(examples: Examples, count: int) -> Examples:
    """This many examples; if there are fewer, some are used again."""
    return Selection(examples, torch.arange(count) % len(examples))


def _seconds(work: Callable[[], object]) -> float:
    """The CPU time of a call: the shortest of a few, since other processes only make it longer."""
    taken: list[float] = []
    while not taken or (sum(taken) < _ENOUGH and len(taken) < _REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def _growth(work: Callable[[], object]) -> int | None:
    """The peak memory of a call in bytes, beyond the memory that the process had before."""
    release_freed_pages()
    before = memory(reset=True)
    work()
    after = memory()
    return None if before is None or after is None else max(after.peak - before.now, 0)


def memory(*, reset: bool = False) -> Memory | None:
    """The memory of this process, if the system reports it; `reset` then resets the peak."""
    try:
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        now, peak = (1024 * int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError, ValueError):  # not Linux
        return None
    if reset:
        with suppress(OSError):
            _CLEAR.write_text("5")
    return Memory(now, peak)
