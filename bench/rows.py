"""Further rows for Feddle's search that were tried and are not in the package, in whole runs with a small network.

`shrink` is −w with the median norm of the anchors; its coefficient starts at 0. `head` is the change to a head that is
fitted again on the server's features, with a penalty on the distance to the old head; it starts at 1. `history` is the
model's last move; it starts at ½. The setting is that of `experiments/few-images.yaml`: accuracy is measured on
validation images. Prints a table like that of `bench/variants.py`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from variants import FEW, accuracies

from feddle.core.atlas import SearchSpace
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.data.examples import Selection
from feddle.methods.feddle.method import Feddle, FeddleOptions, FeddlePlusOptions
from feddle.methods.strategy import average_buffers
from feddle.training.parts import Parts
from feddle.training.search import PaperSearch, SearchTask
from feddle.training.workbench import Workbench

Row = Literal["none", "shrink", "head", "history"]


class Wider:
    """Options of a Feddle, or Feddle+ with `plus`, whose search has one more row."""

    def __init__(self, row: Row, *, plus: bool) -> None:
        self.row, self.plus = row, plus

    def build(self, parts: Parts) -> "WiderFeddle":
        """The method."""
        method = (FeddlePlusOptions() if self.plus else FeddleOptions(search=PaperSearch(lr=3e-3))).build(parts)
        return WiderFeddle(method, self.row, parts)


@dataclass(eq=False)
class WiderFeddle:
    """Feddle's merge with one more row, which is not in the atlas."""

    method: Feddle
    row: Row
    parts: Parts

    def __post_init__(self) -> None:
        self.state = self.method.state
        self.last: Tensor | None = None

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """As in `Feddle`, with the row appended last."""
        method, anchor = self.method, self.method.server_anchor
        fresh = method._insert(arrivals)
        origin = Weights(model.vector, average_buffers(model, arrivals))
        if not fresh and anchor is None:
            return Merged(origin)
        scales = method.atlas.row_scales()
        space, among = SearchSpace(origin, method.atlas.active(), scales, method.blocks), None
        start, seed = method._start(fresh, scales), seed_for(method.seed, "search", round)
        point = space.point(space.in_every_block(start))
        if anchor is not None:
            after = anchor.train(point, round)
            space = space.widened(Weights(model.vector, after.buffers), after.vector - point.vector)
            start, among, point = torch.cat([start, start.new_ones(1)]), anchor.split(round)[1], after
        kept = None if anchor is None else anchor.split(round)[0]
        row, first = self._row(model, point, float(space.lengths().median()) if len(scales) else 0.0, kept)
        space, start = space.widened(space.origin, row), torch.cat([start, start.new_full((1,), first)])
        start = space.in_every_block(start)
        method.objective.begin(space.point(start), seed, among, list(fresh.values()))
        found = method.search(SearchTask(space, method.objective, start, seed=seed))
        method.atlas.score(space.table(found.coefficients)[: len(method.atlas)])
        after = space.point(found.coefficients)
        self.last = after.vector - model.vector
        return Merged(after, {"row": float(space.table(found.coefficients)[-1].mean())})

    def _row(self, model: Weights, point: Weights, length: float, kept: Tensor | None) -> tuple[Tensor, float]:
        if self.row == "shrink":
            return -model.vector * (length / torch.linalg.vector_norm(model.vector)), 0.0
        if self.row == "history" and self.last is not None:
            return self.last, 0.5
        if self.row == "head":
            return refitted(self.parts, point, kept) - point.vector, 1.0
        return torch.zeros_like(model.vector), 0.0


def refitted(parts: Parts, point: Weights, kept: Tensor | None, penalty: float = 0.01, steps: int = 20) -> Tensor:
    """The point with a linear head that is fitted on the server's features, those with indices `kept`."""
    bench, data = parts.bench, parts.server_data()
    features, labels = features_of(bench, point, data if kept is None else Selection(data, kept))
    name = bench.layout.head_name
    assert name is not None
    head = bench.model.get_submodule(name)
    old = [parameter.detach().clone() for parameter in head.parameters()]
    new = [parameter.clone().requires_grad_() for parameter in old]
    optimizer = torch.optim.LBFGS(new, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        away = sum(((a - b).square().sum() for a, b in zip(new, old, strict=True)), torch.zeros(()))
        loss = F.cross_entropy(F.linear(features, *new), labels) + penalty / 2 * away
        loss.backward()
        return loss

    optimizer.step(closure)
    bench.layout.write(bench.model, point)
    with torch.no_grad():
        for parameter, value in zip(head.parameters(), new, strict=True):
            parameter.copy_(value)
    return bench.layout.read(bench.model).vector


@torch.no_grad()
def features_of(bench: Workbench, point: Weights, examples: Selection) -> tuple[Tensor, Tensor]:
    """The inputs of the head for all examples, and their labels."""
    bench.layout.write(bench.model, point)
    bench.model.eval()
    seen: list[Tensor] = []
    head = bench.model.get_submodule(str(bench.layout.head_name))
    hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    inputs, labels = examples.take(torch.arange(len(examples)))
    bench.model(inputs)
    hook.remove()
    return seen[0], labels


def main() -> None:
    """Make the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--out", type=Path, default=Path("runs/rows"), help="a folder for the runs")
    arguments = parser.parse_args()
    print(f"| method | {' | '.join(f'seed {seed} (last)' for seed in arguments.seeds)} |")
    print("|---" * (1 + len(arguments.seeds)) + "|")
    for plus in (False, True):
        for row in ("none", "shrink", "head", "history"):
            name = f"{'feddle+' if plus else 'feddle'}, {row}"
            method = [f"method={{name: 'rows:Wider', row: {row}, plus: {plus}}}", f"averaging={0.95 if plus else 0}"]
            cells = []
            for seed in arguments.seeds:
                folder = arguments.out / f"{name}-seed{seed}"
                curve = accuracies(FEW, folder, [*method, f"seed={seed}", "workers=0"])["accuracies"]
                cells.append(f"{max(curve[-5:]):.1f} ({curve[-1]:.1f})")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
