"""What a coefficient search costs beside fine-tuning the same model on the same batches.

Both do the same forward and backward passes; fine-tuning then takes an Adam step on every weight, the search projects
the gradient on M anchors and takes an Adam step on M coefficients. Prints ratios of wall time, search over
fine-tuning, from interleaved repeats in one process of one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from feddle.core.layout import Layout
from feddle.core.packed import Int8Rows, SparseRows
from feddle.core.rows import FloatRows, Rows
from feddle.core.search import PaperSearch, SearchSpace
from feddle.learning.examples import Images
from feddle.learning.machine import one_thread
from feddle.learning.models import CNN
from feddle.learning.objectives import TaskObjective
from feddle.learning.resnet import ResNet18
from feddle.learning.training import Recipe, train

STORAGE: dict[str, Callable[[int, int], Rows]] = {
    "float32": FloatRows.empty,
    "int8": Int8Rows.empty,
    "sparse, a tenth": lambda capacity, dimension: SparseRows.empty(capacity, dimension, 0.1),
}


def images(count: int, size: int) -> Images:
    """Random images: the time does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.randint(0, 10, (count,), generator=generator), 3)


def contestants(
    model: nn.Module, data: Images, anchors: int, storage: str
) -> tuple[Callable[[], object], Callable[[], object]]:
    """One pass over the data by search, and one by fine-tuning."""
    layout = Layout.of(model)
    rows = STORAGE[storage](anchors, layout.size)
    generator = torch.Generator().manual_seed(1)
    for row in range(anchors):
        rows.put(row, torch.randn(layout.size, generator=generator) * 1e-4)
    space = SearchSpace(layout.read(model), rows, torch.ones(anchors))
    objective = TaskObjective(model, layout, data)
    search = PaperSearch(lr=1e-3, epochs=1, batch_size=32)
    recipe = Recipe(lr=1e-5, epochs=1, batch_size=32)
    return (
        lambda: search(space, objective, torch.zeros(anchors), regularisation=0.0, seed=0),
        lambda: train(model, data, recipe, seed=0),
    )


def ratios(model: nn.Module, data: Images, anchors: int, repeats: int, storage: str) -> list[float]:
    """Time of a search over time of fine-tuning, once a repeat."""
    search, tune = contestants(model, data, anchors, storage)

    def seconds(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    seconds(search), seconds(tune)
    return [seconds(search) / seconds(tune) for _ in range(repeats)]


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    with one_thread():
        for name, model, size, count in [("CNN, 32×32", CNN(10), 32, 640), ("ResNet-18, 64×64", ResNet18(10), 64, 64)]:
            for storage in STORAGE:
                measured = ratios(model, images(count, size), 20, arguments.repeats, storage)
                low, middle, high = min(measured), statistics.median(measured), max(measured)
                print(
                    f"{name}, M = 20, {storage}: search / fine-tuning = {middle:.3f} (median; {low:.3f} to {high:.3f})"
                )


if __name__ == "__main__":
    main()
