"""Compare methods with pretrained networks and a server that has data of another domain (`experiments/outside-*.yaml`).

Runs are made one after the other, into a folder. Finished runs in the folder are not run again. Processes for
different settings may run side by side. For each setting, prints a table: accuracy in per cent (best of the last five
evaluations), last accuracy, accuracy at half of the rounds, and CPU time (with diagnostics) divided by that of the
first row. For Feddle, two more columns have the mean cosine of ∂ℓ/∂c on the guiding data and on the clients' own
domain (`signal_cosine`), and of the moves of both searches (`search_cosine`). For Feddle without its search, one column
has the mean cosine of ∂ℓ/∂c on two halves of the guiding data (`gate_cosine`). Values are means ± standard deviations:
over the seeds, and for cosines over all measurements of all seeds.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from time import process_time
from typing import Any

import torch

from feddle.core.durable import write_whole
from feddle.run.folder import run_config
from feddle.run.load import load_config
from feddle.version import source_digest

SETTINGS = [path.stem.removeprefix("outside-") for path in sorted(Path("experiments").glob("outside-*.yaml"))]
COSINES = {
    "signal_cosine": "gradient cosine",
    "search_cosine": "search cosine",
    "gate_cosine": "cosine of two halves",
}
# FedBuff's buffer has the size of that of Feddle's fallback. Other options are those of the paper's tables.
METHODS: Mapping[str, Sequence[str]] = {
    "fedbuff": ["method={{name: fedbuff, buffer_size: {per_round}}}"],
    "feddle": [],
    "feddle, never searches": ["method.gate=2"],
    "feddle+": ["method={{name: feddle+, search: {search}}}"],
    "feddle+, never searches": ["method={{name: feddle+, gate: 2}}"],
    "fedavg": ["method={{name: fedavg, late: average_models}}"],
    "feddf": ["method={{name: feddf, late: add_deltas, lr: 0.0001, epochs: 1}}"],
    "feddle, distil": ["method.objective=distil"],
    "feddle, distil, in-domain": ["method.objective=distil", "data.server={{samples: 1000}}"],
    "feddf, in-domain": [
        "method={{name: feddf, late: add_deltas, lr: 0.0001, epochs: 1}}",
        "data.server={{samples: 1000}}",
    ],
    "feddle, in-domain labels": ["data.server={{samples: 1000}}"],
}
COMPARED = ["fedbuff", "feddle", "feddle+", "fedavg", "feddf"]


def figures_file(setting: str, method: str, seed: int, out: Path) -> Path:
    """The file with the figures of a run."""
    return out / setting / f"{method.replace(',', '').replace(' ', '-')}-seed{seed}.json"


def make(setting: str, method: str, seed: int, out: Path) -> None:
    """Make a run, unless it is finished."""
    kept = figures_file(setting, method, seed, out)
    if kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    folder = kept.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    figures = _figures(Path(f"experiments/outside-{setting}.yaml"), method, seed, folder)
    write_whole(kept, json.dumps(figures).encode())


def _figures(config: Path, method: str, seed: int, folder: Path) -> dict[str, Any]:
    plan: Any = load_config(config)
    options = {"per_round": plan.clients.per_round, "search": plan.method.search.model_dump_json()}
    overrides = [override.format(**options) for override in METHODS[method]]
    if method != "feddle":  # they take as long as five rounds
        overrides.append("diagnostics=null")
    began = process_time()
    run = run_config(load_config(config, [*overrides, f"seed={seed}"]), folder, quiet=True)
    return {
        "source": source_digest(),
        "overrides": overrides,
        "seconds": process_time() - began,
        "accuracies": [100 * line["accuracy"] for line in run.history if "accuracy" in line],
        **{name: [line[name] for line in run.history if name in line] for name in COSINES},
    }


def main() -> None:
    """Make the missing runs and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"{', '.join(SETTINGS)}; by default all of them")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=COMPARED, metavar="METHOD", help="; ".join(METHODS)
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/outside"), help="a folder for the runs")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.settings) - set(SETTINGS)):
        parser.error(f"unknown setting {unknown[0]}; the known ones are {', '.join(SETTINGS)}")
    torch.set_num_threads(1)
    chosen = arguments.settings or SETTINGS
    for seed in arguments.seeds:  # whole rows first, so that an interrupted table has complete seeds
        for setting in chosen:
            for method in arguments.methods:
                make(setting, method, seed, arguments.out)
    for setting in chosen:
        _table(setting, arguments.methods, arguments.seeds, arguments.out)


def _table(setting: str, methods: Sequence[str], seeds: Sequence[int], out: Path) -> None:
    head = [setting, "accuracy", "last", "at half of the rounds", "CPU time", *COSINES.values()]
    print(f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|")
    unit = None
    for method in methods:
        files = [figures_file(setting, method, seed, out) for seed in seeds]
        runs: list[dict[str, Any]] = [json.loads(file.read_text()) for file in files]
        curves, seconds = [run["accuracies"] for run in runs], fmean(run["seconds"] for run in runs)
        unit = unit or seconds
        best, last, half = (
            [rule(curve) for curve in curves]
            for rule in (lambda c: max(c[-5:]), lambda c: c[-1], lambda c: c[len(c) // 2 - 1])
        )
        cosines = [_spread([value for run in runs for value in run.get(name, [])], 2) for name in COSINES]
        print(f"| {method} | {_spread(best)} | {_spread(last)} | {_spread(half)} | {seconds / unit:.2f} |", end="")
        print(f" {' | '.join(cosines)} |", flush=True)


def _spread(values: Sequence[float], digits: int = 1) -> str:
    if not values:
        return "–"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
