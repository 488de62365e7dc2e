"""The cost of preparing a batch, compared with training on it: `python bench/preprocessing.py`.

Prints the CPU time of preparing batches of 32, divided by the CPU time of the forward, backward and optimiser passes on
them (one thread, interleaved). "in memory" converts bytes to floats. "crop-flip" also augments the images. "resized"
also resizes them when they are used. "decoded" reads JPEG files each time (`data.cache_mb: 0`). "kept" uses JPEG files
that were decoded before.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.data.augmentation import Augmented, crop_flip
from feddle.data.examples import Examples, Images
from feddle.data.pictures import Files, KeptPictures
from feddle.models.cnn import CNN
from feddle.models.resnet import ResNet18
from feddle.training.machine import one_thread
from feddle.training.train import Recipe

BATCH, BATCHES = 32, 4


def files(folder: Path, count: int, width: int, height: int) -> Files:
    """JPEG files of smooth noise, with about the file size of photos of these dimensions."""
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        coarse = torch.rand(1, 3, height // 8, width // 8, generator=generator)
        fine = F.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1)[0]
        Image.fromarray((fine * 255).byte().permute(1, 2, 0).numpy()).save(folder / f"{i}.jpg", quality=90)
    return Files.of(folder, [f"{i}.jpg" for i in range(count)])


def ways(folder: Path, size: int) -> dict[str, Examples]:
    """The same number of images for each way to prepare them."""
    count = BATCH * BATCHES
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (count,), generator=generator)
    small = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    other = torch.randint(0, 256, (count, 3, size + 8, size + 8), dtype=torch.uint8, generator=generator)
    pictures = files(folder, count, 178, 218)  # the size of CelebA's
    memory = Images(small, labels, 3)
    return {
        "in memory": memory,
        "crop-flip": Augmented(memory, crop_flip, torch.Generator().manual_seed(1)),
        "resized": Images(other, labels, 3, size),
        "kept": Images(KeptPictures.of(pictures, 3, size, 1 << 30), labels, 3),
        "decoded": Images(KeptPictures.of(pictures, 3, size, 0), labels, 3),
    }


def step(model: nn.Module) -> Callable[[Tensor, Tensor], None]:
    """A training step of a client."""
    optimizer = Recipe().make_optimizer(model)

    def train(inputs: Tensor, targets: Tensor) -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return train


def seconds(work: Callable[[Tensor], object]) -> float:
    """CPU time of doing `work` on every batch."""
    began = time.process_time()
    for first in range(0, BATCH * BATCHES, BATCH):
        work(torch.arange(first, first + BATCH))
    return time.process_time() - began


def shares(model: nn.Module, prepared: dict[str, Examples], repeats: int) -> dict[str, list[float]]:
    """Time of preparing divided by time of training, once per repeat, for each way."""
    train = step(model)
    ready = [prepared["in memory"].take(torch.arange(i, i + BATCH)) for i in range(0, BATCH * BATCHES, BATCH)]
    found: dict[str, list[float]] = {name: [] for name in prepared}
    for repeat in range(repeats + 1):
        training = seconds(lambda index: train(*ready[int(index[0]) // BATCH]))
        for name, examples in prepared.items():
            share = seconds(examples.take) / training
            if repeat:  # the first is a warm-up, and decodes the files to keep
                found[name].append(share)
    return found


@contextmanager
def setting() -> Iterator[Path]:
    """One thread, and a folder for the files."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        yield Path(folder)


def main() -> None:
    """Print the median share for each network, size and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    models: list[tuple[str, int, Callable[[], nn.Module]]] = [
        ("CNN, 32×32", 32, lambda: CNN(10)),
        ("ResNet-18, 64×64", 64, lambda: ResNet18(10)),
    ]
    for title, size, make in models:
        torch.manual_seed(0)
        with setting() as folder:
            found = shares(make().to(memory_format=torch.channels_last), ways(folder, size), repeats)
        for name, values in found.items():
            low, high = min(values), max(values)
            print(f"{title}: {name}: {statistics.median(values):.1%} of a training step ({low:.1%} to {high:.1%})")


if __name__ == "__main__":
    main()
