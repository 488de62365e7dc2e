"""How poisoned clients, wrong labels at the server, and private clients affect the methods.

Runs a grid of `experiments/small.yaml` into a folder, one run after the other in one process. Finished runs in the
folder are not run again. Prints the table of docs/robustness.md or docs/privacy.md.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import feddle

CONFIG = Path("experiments/small.yaml")
Overrides = Sequence[str]
METHODS: Mapping[str, Overrides] = {
    "feddle": [],
    "fedbuff": ["method=fedbuff"],
    "ca2fl": ["method=ca2fl"],
    "median": ["method=median"],
}
ATTACKS = ("sign-flip", "scale", "random", "label-flip")
SHARES = (0.1, 0.3)
NOISES = (0.01, 0.03, 0.1, 1.0)
CLIP = 1.0  # between the median and the upper quartile of the honest norms


def attacks() -> dict[tuple[str, str], Overrides]:
    """Overrides by (method, attack)."""
    settings: dict[str, Overrides] = {"none": []}
    for share in SHARES:
        settings |= {f"{name} {share:.0%}": [f"attack={{name: {name}, share: {share}}}"] for name in ATTACKS}
    grid = {(method, name): [*own, *o] for name, o in settings.items() for method, own in METHODS.items()}
    controls = {  # what the server's data achieves without help from the clients
        ("feddle", "random 100%"): ["attack={name: random, share: 1.0}"],
        ("center", "none"): ["method=center"],
    }
    return grid | {("feddle", "server labels 20% wrong"): ["data.server.label_noise=0.2"]} | controls


def privacy() -> dict[tuple[str, str], Overrides]:
    """Overrides by (method, noise multiplier)."""
    settings: dict[str, Overrides] = {"none": []}
    settings |= {f"z = {z:g}": [f"privacy={{clip: {CLIP}, noise_multiplier: {z}}}"] for z in NOISES}
    return {(method, name): [*METHODS[method], *o] for name, o in settings.items() for method in ("feddle", "fedbuff")}


def result_of(folder: Path, overrides: Overrides) -> dict[str, Any]:
    """The result of a run. It is run first unless its folder holds a finished run."""
    config = feddle.load_config(CONFIG, overrides)
    kept = folder / "result.json"
    if not (kept.exists() and feddle.load_config(folder / "config.yaml") == config and _read(kept)["finished"]):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(feddle.FeddleError):  # a model that became NaN; its result says in which round
            feddle.run_config(config, folder, quiet=True)
    return _read(kept)


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def cell(result: Mapping[str, Any]) -> str:
    """Accuracy and last accuracy in per cent, and the ε spent and the updates refused, if any."""
    if result["finished"]:
        text = f"{100 * result['accuracy']:.1f} ({100 * result['last_accuracy']:.1f})"
    else:
        text = f"not a number in round {result['rounds'] + 1}"
    if result["privacy"]:
        text += f", ε = {result['privacy']['epsilon']:.3g}, {result['privacy']['updates']} updates"
    return text + (f", refused {result['refused']}" if result["refused"] else "")


def main() -> None:
    """Run the missing cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", choices=["attacks", "privacy"])
    parser.add_argument("--out", type=Path, default=Path("runs/threats"), help="a folder for the runs")
    arguments = parser.parse_args()
    grid = attacks() if arguments.grid == "attacks" else privacy()
    cells = {}
    for (method, name), overrides in grid.items():
        folder = arguments.out / f"{''.join(c for c in name if c not in '=% ')}-{method}"
        cells[method, name] = cell(result_of(folder, overrides))
        print(f"{name}, {method}: {cells[method, name]}", flush=True)
    columns = list(dict.fromkeys(method for method, _ in grid))
    print(f"\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name in dict.fromkeys(name for _, name in grid):
        print(f"| {name} | {' | '.join(cells.get((method, name), '–') for method in columns)} |")


if __name__ == "__main__":
    main()
