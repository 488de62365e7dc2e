"""Compare Feddle's options in whole runs over several seeds with a small network.

Each grid varies options of `experiments/small.yaml`; `directions`, `batches` and `when` vary those of
`experiments/few-images.yaml`. Runs are made one after the other, into a folder. Finished runs in the folder are not
run again. Prints a table: accuracy in per cent (best of the last five evaluations), last accuracy, and accuracy after a
quarter of the rounds, each as mean ± standard deviation over the seeds. The last column is the CPU time of the server
and the clients together, divided by that of the first row. For runs with a gate, two more columns have the mean of
`gate_cosine` with its standard deviation over all merges, and the share of merges with a closed gate.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from time import process_time
from typing import Any

from feddle.run.folder import run_config
from feddle.run.load import load_config

CONFIG = Path("experiments/small.yaml")
FEW = Path("experiments/few-images.yaml")
CONFIGS = {"directions": FEW, "batches": FEW, "when": FEW}  # other grids use CONFIG
OUTSIDE = ["data.server.name=cifar-10", "data.server.samples=50000", "data.channels=3", "data.image_size=32"]
_SERVER = "method.server_anchor={epochs: 1, holdout: 0}"
_STEP = "method.fallback={{name: fedbuff, buffer_size: null, staleness: {}}}"
_WIDE = ["method.coefficients=class", "method.server_anchor={holdout: 0}"]
_STILL = ["method.server_anchor={holdout: 0}", "method.search.lr=1e-9"]
_SETTINGS = {  # what differs from 100 server images, Dir(0.1), σ = 10 and honest clients with correct labels
    "100 server images": [],
    "1000 server images": ["data.server.samples=1000"],
    "30 server images": ["data.server.samples=30"],
    "no delays": ["delays.sigma=0"],
    "σ = 20": ["delays.sigma=20"],
    "Dir(1)": ["data.partition.alpha=1"],
    "20 % random labels": ["data.label_noise=0.2"],
    "10 % hostile": ["attack={name: sign-flip, share: 0.1}"],
    "30 % hostile": ["attack={name: sign-flip, share: 0.3}"],
}
_PASSES = {"1000 server images": 1, "30 server images": 34}  # of fine-tuning: 1000 images per round, as in feddle+


def _rivals(setting: str) -> Mapping[str, Sequence[str]]:
    """The methods that are compared in a setting. Center depends only on the server's images, FedBuff not on them."""
    tuned = f"method={{name: fed+ft, base: fedbuff, epochs: {_PASSES.get(setting, 10)}}}"
    return {
        **({"center": ["method=center"]} if "server images" in setting else {}),
        **({"fedbuff": ["method=fedbuff"]} if setting not in _PASSES else {}),
        "fed+ft on FedBuff": [tuned],
        "feddle": [],
        "feddle+": ["method=feddle+"],
    }


GRIDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "searches": {
        "paper: Adam 1e-3, 1 pass": ["method.search={name: paper, lr: 0.001}"],
        "paper: Adam 3e-3, 1 pass": ["method.search={name: paper, lr: 0.003}"],
        "paper: Adam 1e-2, 1 pass": ["method.search={name: paper, lr: 0.01}"],
        "paper: Adam 3e-3, 5 passes": ["method.search={name: paper, lr: 0.003, epochs: 5}"],
        "annealed from 1e-2, 1 pass": ["method.search={name: annealed, lr: 0.01}"],
        "annealed from 1e-2, 3 passes": ["method.search={name: annealed, lr: 0.01, epochs: 3}"],
        "lbfgs, 2 steps": ["method.search={name: lbfgs, iterations: 2}"],
        "lbfgs, 5 steps": ["method.search={name: lbfgs, iterations: 5}"],
        "lbfgs, 10 steps": ["method.search={name: lbfgs, iterations: 10}"],
        "sgd, Lemma 1, 1 pass": ["method.search=sgd"],
    },
    "directions": {
        "FedBuff": ["method=fedbuff"],
        "Center": ["method=center"],
        "Fed+FT on FedBuff": ["method={name: fed+ft, base: fedbuff}"],
        "Fed+FT on FedBuff, 10 passes": ["method={name: fed+ft, base: fedbuff, epochs: 10}"],
        "feddle": [],
        "feddle, layer": ["method.coefficients=layer"],
        "feddle, class": ["method.coefficients=class"],
        "feddle, server anchor": [_SERVER],
        "feddle, class, server anchor": ["method.coefficients=class", _SERVER],
        "and 20 % held out": ["method.coefficients=class", "method.server_anchor={epochs: 1, holdout: 0.2}"],
        "and calibrated": ["method.coefficients=class", _SERVER, "method.anchors=calibrated"],
        "no search, server anchor": [*_STILL, _STEP.format("sqrt")],
        "no search, server anchor, no staleness weight": [*_STILL, _STEP.format("constant")],
        "and calibrated anchors": [*_STILL, _STEP.format("constant"), "method.anchors=calibrated"],
        "class, server anchor, no staleness weight": [*_WIDE, _STEP.format("constant")],
        "feddle+": ["method=feddle+"],
    },
    "batches": {
        name: ["data.server.samples=1000", f"method.search={{{options}}}"]
        for name, options in {
            "Adam 3e-3, batches of 32": "name: paper, lr: 0.003, batch_size: 32",
            "annealed from 1e-2, batches of 32": "name: annealed, lr: 0.01, batch_size: 32",
            "annealed from 1e-2, batches of 125": "name: annealed, lr: 0.01, batch_size: 125",
            "annealed from 3e-2, batches of 125": "name: annealed, lr: 0.03, batch_size: 125",
            "annealed from 3e-2, batches of 250": "name: annealed, lr: 0.03, batch_size: 250",
            "annealed from 6e-2, batches of 250": "name: annealed, lr: 0.06, batch_size: 250",
        }.items()
    },
    "when": {
        f"{setting}, {method}": [*where, *overrides]
        for setting, where in _SETTINGS.items()
        for method, overrides in _rivals(setting).items()
    },
    "storage": {
        "float32": ["method.storage=float32"],
        "int8": ["method.storage=int8"],
    },
    "objectives": {
        "FedBuff, no server data": [*OUTSIDE, "method=fedbuff"],
        "surrogate (labels)": [*OUTSIDE],
        "clusters": [*OUTSIDE, "method.objective=clusters"],
    },
    "gate": {
        f"{domain}, {name}": [*where, *overrides]
        for domain, where in (("out-of-domain", OUTSIDE), ("in-domain", []))
        for name, overrides in {
            "FedBuff": ["method=fedbuff"],
            "no gate": ["method.gate=-1"],  # the same as without, with the cosines in the history
            **{f"gate {threshold}": [f"method.gate={threshold}"] for threshold in (0.2, 0.5, 0.8)},
            "always closed": ["method.gate=2"],
        }.items()
    },
    "distil": {
        f"{domain}, {name}": [*where, *overrides]
        for domain, where in (("in-domain", []), ("out-of-domain", OUTSIDE))
        for name, overrides in {
            "FedBuff": ["method=fedbuff"],
            "FedDF": ["method={name: feddf, late: add_deltas}"],
            "clusters": ["method.objective=clusters"],
            **{f"distil, {m} teachers": [f"method.objective={{name: distil, teachers: {m}}}"] for m in (2, 5, 20)},
            "distil, feddle+": ["method={name: feddle+, objective: distil}"],
            "with labels": [],
        }.items()
    },
    "out-of-domain searches": {
        name: [*OUTSIDE, *overrides]
        for name, overrides in {
            "FedBuff, no server data": ["method=fedbuff"],
            "paper, Adam 3e-4": ["method.search={name: paper, lr: 0.0003}"],
            "paper, Adam 3e-3": ["method.search={name: paper, lr: 0.003}"],
            "paper, Adam 1e-2": ["method.search={name: paper, lr: 0.01}"],
            "paper, Adam 1e-2, λ = 1": ["method.search={name: paper, lr: 0.01}", "method.regularisation=1.0"],
            "lbfgs, 3 steps": ["method.search={name: lbfgs, iterations: 3}"],
            "sgd, Theorem 2": ["method.search=sgd"],
        }.items()
    },
    "fallbacks": {
        f"{fallback}, σ = {sigma}": [f"method.fallback={fallback}", f"delays.sigma={sigma}"]
        for sigma in (0, 5, 20)
        for fallback in ("fedbuff", "fedavg", "fedasync", "adaptive", "none")
    },
    "out-of-domain fallbacks": {
        name: [*OUTSIDE, *overrides]
        for name, overrides in {
            "fedbuff": [],
            "fedbuff, buffer_size 10": ["method.fallback={name: fedbuff, buffer_size: 10}"],
            "fedavg": ["method.fallback=fedavg"],
            "fedasync": ["method.fallback=fedasync"],
            "adaptive": ["method.fallback=adaptive"],
            "none": ["method.fallback=none"],
        }.items()
    },
}


def accuracies(config: Path, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """A run's evaluations in per cent and its CPU time. It is run first unless its folder holds a finished run."""
    kept = folder / "measured.json"
    if not kept.exists():
        shutil.rmtree(folder, ignore_errors=True)
        began = process_time()
        run = run_config(load_config(config, overrides), folder, quiet=True)
        found = [100 * line["accuracy"] for line in run.history if "accuracy" in line]
        gates = [(line["gate_cosine"], line["gate_closed"]) for line in run.history if "gate_cosine" in line]
        kept.write_text(json.dumps({"accuracies": found, "seconds": process_time() - began, "gates": gates}))
    measured: dict[str, Any] = json.loads(kept.read_text())
    return measured


def main() -> None:
    """Make the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", choices=GRIDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/variants"), help="a folder for the runs")
    arguments = parser.parse_args()
    gated = any("method.gate" in override for row in GRIDS[arguments.grid].values() for override in row)
    head = [arguments.grid, "accuracy", "last", "after a quarter", "CPU time", *["cosine", "closed"] * gated]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    unit = None
    for name, overrides in GRIDS[arguments.grid].items():
        config, folder = CONFIGS.get(arguments.grid, CONFIG), arguments.out / arguments.grid
        runs = [
            accuracies(config, folder / f"{name}-seed{seed}", [*overrides, f"seed={seed}", "workers=0"])
            for seed in arguments.seeds
        ]
        seconds = fmean(run["seconds"] for run in runs)
        unit = unit or seconds
        curves = [run["accuracies"] for run in runs]
        best, last, early = (
            [rule(curve) for curve in curves]
            for rule in (lambda c: max(c[-5:]), lambda c: c[-1], lambda c: c[len(c) // 4 - 1])
        )
        row = [name, _spread(best), _spread(last), _spread(early), f"{seconds / unit:.2f}", *_gates(runs) * gated]
        print(f"| {' | '.join(row)} |", flush=True)


def _gates(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [gate for run in runs for gate in run.get("gates", [])]
    if not found:
        return ["–", "–"]
    cosines, closed = zip(*found, strict=True)
    return [_spread(cosines, 2), f"{100 * fmean(closed):.0f} %"]


def _spread(values: Sequence[float], digits: int = 1) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
