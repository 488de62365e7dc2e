"""The cost of a coefficient search, compared with fine-tuning the same model on the same batches.

Both make one pass over the data. Fine-tuning takes an Adam step on every weight for each batch of 32. The search
projects the gradient onto M anchors and takes an Adam step on their coefficients, for batches of 32 or larger ones.
Prints the wall time of the search divided by that of fine-tuning, from interleaved repeats in one process with one
thread. Also prints the time of each part of a step, in per cent of a step of fine-tuning.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.atlas import FloatRows, Rows, SearchSpace
from feddle.core.blocks import Coefficients, make_blocks
from feddle.core.layout import Layout, Weights
from feddle.core.packed import Int8Rows
from feddle.data.examples import Images
from feddle.models.cnn import CNN
from feddle.models.resnet import ResNet18
from feddle.training.machine import one_thread
from feddle.training.objectives import TaskObjective
from feddle.training.search import PaperSearch, SearchTask
from feddle.training.train import Recipe, train

STORAGE: dict[str, Callable[[int, int], Rows]] = {
    "float32": FloatRows.empty,
    "int8": Int8Rows.empty,
}


def images(count: int, size: int) -> Images:
    """Random images; the time does not depend on their content."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.randint(0, 10, (count,), generator=generator), 3)


def filled(rows: Rows, dimension: int) -> Rows:
    """Fill all rows with small random anchors."""
    generator = torch.Generator().manual_seed(1)
    for row in range(len(rows)):
        rows.put(row, torch.randn(dimension, generator=generator) * 1e-4)
    return rows


VARIANTS: list[tuple[Coefficients, int]] = [("shared", 32), ("class", 32), ("class", 125), ("class", 250)]


def contestants(
    model: nn.Module, data: Images, anchors: int, storage: str, coefficients: Coefficients, batch_size: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """One pass over the data by the search, and one by fine-tuning."""
    layout = Layout.of(model)
    rows = filled(STORAGE[storage](anchors, layout.size), layout.size)
    space = SearchSpace(layout.read(model), rows, torch.ones(anchors), make_blocks(coefficients, layout))
    objective = TaskObjective(model, layout, data)
    search = PaperSearch(lr=1e-3, epochs=1, batch_size=batch_size)
    recipe = Recipe(lr=1e-5, epochs=1, batch_size=32)
    return (
        lambda: search(SearchTask(space, objective, space.in_every_block(torch.zeros(anchors)))),
        lambda: train(model, data, recipe, seed=0),
    )


def ratios(
    model: nn.Module, data: Images, anchors: int, repeats: int, storage: str, coefficients: Coefficients, batch: int
) -> list[float]:
    """Time of a search divided by time of fine-tuning, once per repeat."""
    search, tune = contestants(model, data, anchors, storage, coefficients, batch)

    def seconds(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    seconds(search), seconds(tune)
    return [seconds(search) / seconds(tune) for _ in range(repeats)]


def parts(model: nn.Module, data: Images, anchors: int, repeats: int, storage: str) -> dict[str, float]:
    """The median time of each part of a step, as a share of the median step of fine-tuning."""
    layout = Layout.of(model)
    rows = filled(STORAGE[storage](anchors, layout.size), layout.size)
    start, coefficients = layout.read(model), torch.zeros(anchors)
    optimizer = Recipe(lr=1e-5).make_optimizer(model)
    times: dict[str, list[float]] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        times.setdefault(name, []).append(time.perf_counter() - began)

    def differentiate(index: Tensor) -> None:
        inputs, targets = data.take(index)
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()

    batches = torch.arange(len(data)).split(32)
    for _ in range(repeats):
        for index in batches:
            with timed("search: form the point"):
                point = rows.combine(start.vector, coefficients)
            with timed("search: set the weights"):
                layout.write(model, Weights(point, start.buffers))
            with timed("search: forward and backward"):
                differentiate(index)
            with timed("search: gather the gradient"):
                gradient = layout.read_grad(model)
            with timed("search: project it"):
                rows.project(gradient)
        for index in batches:
            with timed("fine-tuning: forward and backward"):
                differentiate(index)
            with timed("fine-tuning: Adam's step"):
                optimizer.step()
    middle = {name: statistics.median(seconds) for name, seconds in times.items()}
    step = sum(seconds for name, seconds in middle.items() if name.startswith("fine-tuning"))
    return {name: seconds / step for name, seconds in middle.items()}


def main() -> None:
    """Print the ratios and the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    with one_thread():
        for name, model, size, count in [("CNN, 32×32", CNN(10), 32, 1000), ("ResNet-18, 64×64", ResNet18(10), 64, 64)]:
            for storage in STORAGE:
                for coefficients, batch in VARIANTS if count >= 250 else VARIANTS[:2]:
                    measured = ratios(model, images(count, size), 20, arguments.repeats, storage, coefficients, batch)
                    low, middle, high = min(measured), statistics.median(measured), max(measured)
                    print(
                        f"{name}, M = 20, {storage}, {coefficients}, batch {batch}: "
                        f"search / fine-tuning = {middle:.3f} (median; {low:.3f} to {high:.3f})"
                    )
                shares = parts(model, images(count, size), 20, arguments.repeats, storage).items()
                print("  of a step of fine-tuning: " + ", ".join(f"{part} {share:.1%}" for part, share in shares))


if __name__ == "__main__":
    main()
