"""Further rows for Feddle's search, in whole runs with a small network.

`head` is `method.head_anchor`. The others were tried and are not in the package: `shrink` is −w with the median norm of
the anchors, and its coefficient starts at 0; `history` is the model's last move, which starts at ½. The setting is that
of `experiments/few-images.yaml`: accuracy is measured on validation images. Prints a table like that of
`bench/variants.py`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from variants import FEW, accuracies

from feddle.core.atlas import SearchSpace
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.methods.feddle.method import Feddle, FeddleOptions, FeddlePlusOptions
from feddle.methods.strategy import average_buffers
from feddle.training.parts import Parts
from feddle.training.search import PaperSearch, SearchTask

Row = Literal["shrink", "history"]


class Wider:
    """Options of a Feddle, or Feddle+ with `plus`, whose search has one more row."""

    def __init__(self, row: Row, *, plus: bool) -> None:
        self.row, self.plus = row, plus

    def build(self, parts: Parts) -> "WiderFeddle":
        """The method."""
        plus, plain = FeddlePlusOptions(head_anchor=None), FeddleOptions(search=PaperSearch(lr=3e-3))
        return WiderFeddle((plus if self.plus else plain).build(parts), self.row)


@dataclass(eq=False)
class WiderFeddle:
    """Feddle's merge with one more row, which is not in the atlas."""

    method: Feddle
    row: Row

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
        if anchor is not None:
            space, start = method._widened(space, start, round)
            among = anchor.split(round)[1]
        row, first = self._row(model, float(space.lengths().median()) if len(scales) else 0.0)
        space, start = space.widened(space.origin, row), torch.cat([start, start.new_full((1,), first)])
        start = space.in_every_block(start)
        method.objective.begin(space.point(start), seed, among, list(fresh.values()))
        found = method.search(SearchTask(space, method.objective, start, seed=seed))
        method.atlas.score(space.table(found.coefficients)[: len(method.atlas)])
        after = space.point(found.coefficients)
        self.last = after.vector - model.vector
        return Merged(after, {"row": float(space.table(found.coefficients)[-1].mean())})

    def _row(self, model: Weights, length: float) -> tuple[Tensor, float]:
        if self.row == "shrink":
            return -model.vector * (length / torch.linalg.vector_norm(model.vector)), 0.0
        if self.last is not None:
            return self.last, 0.5
        return torch.zeros_like(model.vector), 0.0


def main() -> None:
    """Make the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--out", type=Path, default=Path("runs/rows"), help="a folder for the runs")
    arguments = parser.parse_args()
    print(f"| method | {' | '.join(f'seed {seed} (last)' for seed in arguments.seeds)} |")
    print("|---" * (1 + len(arguments.seeds)) + "|")
    for plus in (False, True):
        base = "feddle+" if plus else "feddle"
        own = {"name": base} | ({} if plus else {"search": {"name": "paper", "lr": 3e-3}})
        rows: dict[str, dict[str, Any]] = {
            "none": own | {"head_anchor": None},
            "head": own | {"head_anchor": {}},
            **{row: {"name": "rows:Wider", "row": row, "plus": plus} for row in get_args(Row)},
        }
        for row, options in rows.items():
            name = f"{base}, {row}"
            method = [f"method={json.dumps(options)}", f"averaging={0.95 if plus else 0}"]
            cells = []
            for seed in arguments.seeds:
                folder = arguments.out / f"{name}-seed{seed}"
                curve = accuracies(FEW, folder, [*method, f"seed={seed}", "workers=0"])["accuracies"]
                cells.append(f"{max(curve[-5:]):.1f} ({curve[-1]:.1f})")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
