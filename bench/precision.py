"""Cost of bfloat16 in client training: `python bench/precision.py`.

Prints the CPU time of training one client with the CNN in bfloat16, divided by that in float32. The measurements are
interleaved, in one process with one thread. Then prints the accuracy of a short run of `experiments/demo.yaml` in both
precisions.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

# torch reads it at its first product. Without it, bfloat16 crashes some virtual machines; float32 uses AVX-512 anyway.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

from feddle.data.examples import Images
from feddle.models.cnn import CNN
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.run.simulate import simulated
from feddle.training.machine import one_thread, require_bfloat16
from feddle.training.train import Recipe, train

DEMO = Path(__file__).resolve().parent.parent / "experiments" / "demo.yaml"
FLOAT32, BFLOAT16 = Recipe(precision="float32"), Recipe(precision="bfloat16")


def client(count: int = 120) -> Images:
    """Random images; the time does not depend on their content."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 1, 32, 32), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.randint(0, 10, (count,), generator=generator), 3)


def ratios(repeats: int) -> list[float]:
    """CPU time of a job in bfloat16 divided by that in float32, once per repeat."""
    torch.manual_seed(0)
    model, data = CNN(10), client()

    def seconds(recipe: Recipe) -> float:
        began = time.process_time()
        train(model, data, recipe, seed=0)
        return time.process_time() - began

    seconds(FLOAT32), seconds(BFLOAT16)
    return [seconds(BFLOAT16) / seconds(FLOAT32) for _ in range(repeats)]


def accuracies(precision: str, rounds: int, seed: int) -> list[float]:
    """The accuracy at each evaluation of the demo."""
    changes = [f"training.precision={precision}", f"rounds={rounds}", f"seed={seed}", "workers=0", "device=cpu"]
    config = load_config(DEMO, changes)
    run = simulated(config, build_problem(config, quiet=True))
    run.go()
    return [line["accuracy"] for line in run.history if "accuracy" in line]


def main() -> None:
    """Print the ratio of CPU times and the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=20, help="of the runs that measure accuracy; 0: none")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each precision")
    options = parser.parse_args()
    require_bfloat16()
    with one_thread():
        measured = ratios(options.repeats)
    low, middle, high = min(measured), statistics.median(measured), max(measured)
    print(
        f"CPU time of client training, bfloat16 / float32: {middle:.2f} (median; {low:.2f} to {high:.2f})", flush=True
    )
    for seed in range(options.seeds if options.rounds else 0):
        for precision in ("float32", "bfloat16"):
            values = " ".join(f"{value:.1%}" for value in accuracies(precision, options.rounds, seed))
            print(f"seed {seed}, {precision}: accuracy {values}", flush=True)


if __name__ == "__main__":
    main()
