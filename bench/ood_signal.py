"""Whether data of another domain gives the same direction as the clients' own, with and without the fallback.

Runs Feddle four times with Fashion-MNIST clients, guided by CIFAR-10: the fallback is fedbuff or none, and λ is 0.01 or
0. Finished runs in `--runs` are not run again. Writes docs/ood-signal.svg and prints the table of docs/results.md. The
figure shows the accuracy, and the cosine between the gradients ∂ℓ/∂c on the guiding and on in-domain data at c′.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from lines_plot import Panel, draw

from feddle.run.folder import run_config
from feddle.run.load import load_config

CASES = {
    "fedbuff, λ = 0.01": [],
    "fedbuff, λ = 0": ["method.regularisation=0.0"],
    "none, λ = 0.01": ["method.fallback=none"],
    "none, λ = 0": ["method.fallback=none", "method.regularisation=0.0"],
}
SETTING = [
    "data.server.name=cifar-10",
    "data.server.samples=50000",
    "rounds=60",
    "diagnostics.every=5",
    "diagnostics.clients=2",
]
DOCS = Path(__file__).parent.parent / "docs"


def history(folder: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """The history of a case. The case is run first if its history is missing."""
    if not (folder / "result.json").exists():
        run_config(load_config(Path("experiments/fashion-mnist-cnn.yaml"), [*SETTING, *overrides]), folder)
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def curve(lines: list[dict[str, Any]], key: str, factor: float = 1.0) -> list[tuple[float, float]]:
    """The values of a quantity, by the round in which it was measured."""
    return [(line["round"], factor * line[key]) for line in lines if key in line]


def main() -> None:
    """Run what is missing, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/ood-signal"))
    arguments = parser.parse_args()
    lines = {
        name: history(arguments.runs / name.replace(", λ = ", "-"), overrides) for name, overrides in CASES.items()
    }
    panels = [
        Panel("accuracy, %", {name: curve(h, "accuracy", 100) for name, h in lines.items()}),
        Panel("cosine at c′", {name: curve(h, "signal_cosine") for name, h in lines.items()}),
        Panel("cosine of ĉ − c′", {name: curve(h, "search_cosine") for name, h in lines.items()}),
    ]
    description = "Accuracy, and cosines between out-of-domain and in-domain directions, over the rounds"
    (DOCS / "ood-signal.svg").write_text(draw(panels, description))
    print("| fallback, λ | accuracy | last | mean cosine at c′ | mean cosine of ĉ − c′ |\n|---|---|---|---|---|")
    for name, h in lines.items():
        accuracies = [y for _, y in curve(h, "accuracy", 100)]
        cosines = [fmean(y for _, y in curve(h, key)) for key in ("signal_cosine", "search_cosine")]
        print(f"| {name} | {max(accuracies[-5:]):.1f} | {accuracies[-1]:.1f} | {cosines[0]:.2f} | {cosines[1]:.2f} |")


if __name__ == "__main__":
    main()
