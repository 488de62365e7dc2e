"""Two ways to merge adapters: average A and B separately, or average BA and cut it to the adapters' rank.

python bench/lora_merge.py experiments/vit-lora-cifar10.yaml

Every round averages the updates that arrived in time, so the two ways differ in nothing else.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from feddle.core.layout import Layout, Slot, Weights
from feddle.core.messages import Arrival, Merged
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.run.simulate import simulated


class Mean:
    """The mean of the arrivals' models. `products` averages the products BA instead of A and B."""

    max_staleness = 0

    def __init__(self, layout: Layout, *, products: bool) -> None:
        self.layout = layout
        self.products = products

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        if not arrivals:
            return Merged(model)
        ends = torch.stack([a.start.vector + a.update.delta for a in arrivals])
        mean = ends.mean(0)
        gaps, cuts = [], []
        for a, b in pairs(self.layout):
            exact = torch.stack([matrix(e, b) @ matrix(e, a) for e in ends]).mean(0)
            moved = (exact - matrix(model.vector, b) @ matrix(model.vector, a)).norm()
            gaps.append(float((matrix(mean, b) @ matrix(mean, a) - exact).norm() / moved))
            left, kept, right = truncated(exact, rank=a.shape[0])
            cuts.append(float((left * kept @ right - exact).norm() / moved))
            if self.products:
                mean[a.place] = (kept.sqrt()[:, None] * right).flatten()
                mean[b.place] = (left * kept.sqrt()).flatten()
        notes = {"gap": sum(gaps) / len(gaps), "cut": sum(cuts) / len(cuts)}
        return Merged(Weights(mean, model.buffers), notes)


def pairs(layout: Layout) -> Iterator[tuple[Slot, Slot]]:
    """A and B of every adapter."""
    slots = {slot.name: slot for slot in layout.parameters}
    for name, slot in slots.items():
        if "lora_A" in name:
            yield slot, slots[name.replace("lora_A", "lora_B")]


def matrix(vector: Tensor, slot: Slot) -> Tensor:
    """The matrix at this place in a flat vector."""
    return vector[slot.place].view(slot.shape)


def truncated(product: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best approximation of this rank, as U, S and V."""
    left, values, right = torch.linalg.svd(product, full_matrices=False)
    return left[:, :rank], values[:rank], right[:rank]


def main() -> None:
    """Run a config in both ways, and print one row for each."""
    print("| what is averaged | accuracy by round | mean gap | mean cut |\n|---|---|---|---|")
    for products in (False, True):
        config = load_config(Path(sys.argv[1]), ["delays.sigma=0", "method=fedavg", *sys.argv[2:]])
        problem = build_problem(config, quiet=True)
        run = simulated(config, problem, Mean(Layout.of(problem.model), products=products))
        run.go()
        accuracies = [f"{100 * line['accuracy']:.1f}" for line in run.history if "accuracy" in line]
        means = [sum(line[n] for line in run.history) / len(run.history) for n in ("gap", "cut")]
        name = "BA, cut to the rank" if products else "A and B"
        print(f"| {name} | {', '.join(accuracies)} | {means[0]:.2f} | {means[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
