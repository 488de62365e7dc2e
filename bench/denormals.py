"""The cost of numbers below 1e-38 in training, kept or counted as zero: `python bench/denormals.py`.

The client has memorised its images: the CNN has such a large bias for one class that gradients are of the order of
e^-80. Prints the CPU time of training on these images divided by the CPU time of training on new images, with and
without counting such numbers as zero. The resulting weights must be bit-identical.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor

from feddle.core.layout import Layout
from feddle.data.examples import Images
from feddle.models.cnn import CNN
from feddle.training.machine import one_thread
from feddle.training.train import Recipe, train

BIAS = 80.0


def images(count: int = 320) -> Images:
    """Random images of one class."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.zeros(count, dtype=torch.int64), 3)


def trained(bias: float, *, flush: bool) -> tuple[float, Tensor]:
    """The CPU time of an epoch of a network with this bias for the first class, and the weights after it."""
    torch.manual_seed(0)
    model = CNN(10)
    layout = Layout.of(model)
    with torch.no_grad():
        model.get_parameter(f"{layout.head_name}.bias")[0] += bias
    torch.set_flush_denormal(flush)
    began = time.process_time()
    train(model, images(), Recipe(epochs=1), seed=0)
    return time.process_time() - began, layout.read(model).vector


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    slow, fast = [], []
    with one_thread():
        trained(0.0, flush=True)
        for _ in range(arguments.repeats):
            unit = trained(0.0, flush=True)[0]
            (kept, one), (flushed, other) = (trained(BIAS, flush=flush) for flush in (False, True))
            assert torch.equal(one, other), "the weights differ"
            slow.append(kept / unit)
            fast.append(flushed / unit)
    for name, ratios in (("kept", slow), ("taken for zero, as feddle does", fast)):
        print(f"the smallest numbers {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
