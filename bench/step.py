"""feddle's kernels compared with torch's: convolutions, pooling with a ReLU, optimisers that import no compiler.

Prints feddle's time divided by torch's for four things: a training step of the CNN and one of ResNet-18 (two networks
take steps in turn, in one process with one thread); pooling and ReLU alone, forward and backward; and the first step in
a new process that has imported torch.
"""

import argparse
import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.models.cnn import CNN
from feddle.models.resnet import ResNet18
from feddle.training.kernels.pooling import PooledReLU
from feddle.training.kernels.winograd import WinogradConv2d
from feddle.training.machine import one_thread
from feddle.training.train import Recipe

FIRST_STEP = """
import time
import torch
from {module} import Adam
weights = torch.nn.Parameter(torch.ones(10))
weights.grad = torch.ones(10)
began = time.perf_counter()
Adam([weights], lr=0.1).step()
print(time.perf_counter() - began)
"""


def channels_last(*shape: int) -> Tensor:
    """Random numbers in the memory format of feddle's batches."""
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def plain(model: nn.Module) -> nn.Module:
    """The same network with torch's modules."""
    twin = copy.deepcopy(model)
    for name, module in model.named_modules():
        if isinstance(module, PooledReLU):
            twin.set_submodule(name, nn.Sequential(nn.MaxPool2d(2), nn.ReLU(inplace=True)))
        if isinstance(module, WinogradConv2d):
            channels = module.in_channels, module.out_channels
            twin.set_submodule(name, nn.Conv2d(*channels, 3, padding=1, bias=module.bias is not None))
    twin.load_state_dict(model.state_dict())
    return twin


def ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> str:
    """Median time of one divided by that of the other, measured in turn, and the quartiles of the single ratios."""
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repeats + 10)][10:]
    low, _, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    middle = statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
    return f"{middle:.3f} (half of the single ratios between {low:.2f} and {high:.2f})"


def seconds(work: Callable[[], object]) -> float:
    """The time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def step(model: nn.Module, size: int = 32) -> Callable[[], None]:
    """A training step on 32 images."""
    optimizer = Recipe(lr=1e-4).make_optimizer(model)
    images, labels = channels_last(32, 3, size, size), torch.randint(0, 10, (32,))

    def work() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return work


def pooling(pool: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """The three poolings of the CNN and their gradients."""
    images = [channels_last(32, *shape).requires_grad_() for shape in ((32, 32, 32), (64, 16, 16), (64, 8, 8))]
    slopes = [torch.ones_like(F.max_pool2d(x, 2)) for x in images]

    def work() -> None:
        for x, slope in zip(images, slopes, strict=True):
            torch.autograd.grad(pool(x), x, slope)

    return work


def first_step(module: str) -> float:
    """The seconds of an optimiser's first step in a new process."""
    code = FIRST_STEP.format(module=module)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)  # noqa: S603


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    repeats = parser.parse_args().repeats
    with one_thread():
        model = CNN(10)
        print(f"a training step of the CNN: {ratio(step(model), step(plain(model)), repeats)}")
        resnet = ResNet18(10)
        print(f"of ResNet-18, 64×64: {ratio(step(resnet, 64), step(plain(resnet), 64), repeats // 10)}")
        torch_pooling = pooling(lambda x: F.relu_(F.max_pool2d(x, 2)))
        print(f"pooling and ReLU: {ratio(pooling(PooledReLU()), torch_pooling, repeats)}")
    starts = [(first_step("feddle.training.kernels.optimizers"), first_step("torch.optim")) for _ in range(5)]
    middle = statistics.median(theirs - ours for ours, theirs in starts)
    share = statistics.median(ours / theirs for ours, theirs in starts)
    print(f"an optimiser's first step: {share:.3f} (median of five; {middle:.1f} s less)")


if __name__ == "__main__":
    main()
