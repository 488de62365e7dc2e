"""feddle compared with other simulators on the same work: `python bench/peers.py`.

Synchronous FedAvg on Fashion-MNIST: 500 clients with 120 images each, 10 clients per round, one local epoch in batches
of 32. Every peer trains the same clients from the same weights. Only ratios are printed. The raw numbers are written to
a JSON file.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
SCRIPTS = BENCH / "peers"
ENVIRONMENTS = ROOT / ".bench"
LIMIT = 3600  # seconds for one run of one peer
QUICK_ROUNDS = 2
TOLERANCE, QUICK_TOLERANCE = 0.03, 0.25  # in accuracy; after two rounds it still depends on the order of the batches

Result = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A script, and the packages of its own environment. Without packages it runs in feddle's environment."""

    script: str
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    without_dependencies: tuple[str, ...] = ()

    @property
    def constraints(self) -> Path:
        """The exact versions of its packages."""
        return SCRIPTS / f"constraints-{self.script}.txt"


_BASE = ("torch", "numpy", "safetensors")
PEERS = {
    "ours_2": Peer("ours", ("2",)),
    "ours_1": Peer("ours", ("1",)),
    "naive_loop": Peer("naive_loop"),
    "pfl_research": Peer("pfl_research", packages=(*_BASE, "pfl")),
    # FedLab requires torchvision, which has no build for this torch. These are its other dependencies.
    "fedlab_sim": Peer(
        "fedlab_sim",
        packages=(*_BASE, "pandas", "pillow", "pynvml", "scikit-learn", "tqdm"),
        without_dependencies=("fedlab",),
    ),
    "flower_sim": Peer("flower_sim", packages=(*_BASE, "flwr[simulation]")),
}
REFERENCE = "ours_2"


@dataclass
class Record:
    """The results of a peer's repeats. `errors` holds the end of the output of failed repeats."""

    runs: list[Result] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def middle(self, key: str) -> float:
        """The median over the repeats."""
        return float(median(run[key] for run in self.runs))


def main() -> None:
    """Prepare, run the peers in turn, and report."""
    options = parse()
    rounds = QUICK_ROUNDS if options.quick else options.rounds
    names = [REFERENCE, *(name for name in options.only if name != REFERENCE)]
    pythons = {name: environment(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="feddle-bench-") as folder:
        script(sys.executable, "prepare", folder, str(rounds))
        records = run_all(pythons, folder, 1 if options.quick else options.repeats)
    if not records[REFERENCE].runs:
        raise SystemExit(f"feddle itself failed:\n{records[REFERENCE].errors[-1]}")
    fractions = fractions_of_sgemm(records[REFERENCE])
    write(options.out or default_out(options), rounds, records, fractions)
    print(table(records))
    print(
        f"\nfeddle with 2 workers reaches {median(fractions):.0%} ({min(fractions):.0%} to {max(fractions):.0%}) of "
        "this machine's sgemm rate, measured before each repeat (fp32, 1024×1024, two processes of one thread; a "
        "multiply-add is two FLOPs, convolutions and matrix products of forward and backward only)."
    )
    if problems := faults(records, QUICK_TOLERANCE if options.quick else TOLERANCE):
        raise SystemExit("\n" + "\n".join(problems))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="feddle beside other simulators on the same work.")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each peer, interleaved")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds once: does everything run?")
    parser.add_argument("--only", type=_names, default=list(PEERS), metavar="NAME,...", help=", ".join(PEERS))
    parser.add_argument("--out", type=Path, help="where the raw numbers go")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"unknown peer {unknown[0]!r}; known are {', '.join(PEERS)}")
    return names


def default_out(options: argparse.Namespace) -> Path:
    """Only results of full runs go to the results folder, not those of quick or partial runs."""
    whole = not options.quick and set(options.only) >= set(PEERS)
    return BENCH / "results" / "peers.json" if whole else ENVIRONMENTS / "peers-partial.json"


def environment(name: str) -> str:
    """The Python of a peer's environment, which is created if it is missing or out of date."""
    peer = PEERS[name]
    if not peer.packages:
        return sys.executable
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "made-from.txt"
    recipe = "\n".join([*peer.packages, *peer.without_dependencies, peer.constraints.read_text(encoding="utf-8")])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == recipe:
        return str(python)
    say(f"making the environment of {name} in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(folder)])
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(peer.constraints)]
    call([*install, *peer.packages])
    if peer.without_dependencies:
        call([*install, "--no-deps", *peer.without_dependencies])
    stamp.write_text(recipe, encoding="utf-8")
    return str(python)


def call(command: Sequence[str]) -> None:
    """Run a command. If it fails, exit with its output."""
    done = subprocess.run(command, env=surroundings(), capture_output=True, text=True)  # noqa: S603 — no user input
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")


def script(python: str, name: str, *arguments: str) -> None:
    """Run one of the scripts in the peers' folder."""
    call([python, str(SCRIPTS / f"{name}.py"), *arguments])


def surroundings() -> dict[str, str]:
    """The environment variables of every script: the workload on the path, torch's default threads, no telemetry."""
    threads = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    paths = [ROOT / "src", SCRIPTS]  # this checkout's feddle, even if another is installed
    return {
        **{name: value for name, value in os.environ.items() if name not in threads},
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def run_all(pythons: dict[str, str], folder: str, repeats: int) -> dict[str, Record]:
    """Run every peer once per repeat, so that drift affects all. Also measure the machine's rate each time."""
    records = {name: Record() for name in pythons}
    measured = Path(folder) / "machine.json"
    for repeat in range(repeats):
        script(sys.executable, "machine", folder, str(measured), "3")
        arithmetic = json.loads(measured.read_text(encoding="utf-8"))
        for name, python in pythons.items():
            say(f"repeat {repeat + 1} of {repeats}: {name}")
            run_one(name, python, folder, records[name], arithmetic)
    return records


def run_one(name: str, python: str, folder: str, record: Record, arithmetic: Result) -> None:
    """Run a peer once and record its result, with the machine's rate at that time."""
    peer, out = PEERS[name], Path(folder) / "result.json"
    out.unlink(missing_ok=True)
    command = [python, str(SCRIPTS / f"{peer.script}.py"), folder, str(out), *peer.arguments]
    try:
        done = subprocess.run(  # noqa: S603 — no user input
            command, env=surroundings(), capture_output=True, text=True, timeout=LIMIT, cwd=folder
        )
    except subprocess.TimeoutExpired:
        record.errors.append(f"not done after {LIMIT} s")
        return
    if done.returncode or not out.exists():
        record.errors.append((done.stderr or done.stdout)[-3000:])
    else:
        record.runs.append({**json.loads(out.read_text(encoding="utf-8")), **arithmetic})


def say(text: str) -> None:
    """Report the progress, separately from the results."""
    print(text, file=sys.stderr, flush=True)


def ratios(record: Record, reference: Record) -> list[float]:
    """A peer's time divided by feddle's, for each repeat."""
    pairs = zip(record.runs, reference.runs, strict=False)
    return [run["seconds"] / ours["seconds"] for run, ours in pairs]


def processor_time(record: Record) -> float:
    """Median processor time, or time × threads if it was not measured."""
    return float(median(run.get("cpu_seconds") or run["seconds"] * run["threads"] for run in record.runs))


def summary(record: Record, reference: Record) -> Result:
    """The numbers of a peer, relative to feddle's."""
    each = ratios(record, reference)
    return {
        "time": record.middle("seconds") / reference.middle("seconds"),
        "time_min": min(each),
        "time_max": max(each),
        "processor_time": processor_time(record) / processor_time(reference),
        "accuracy": record.middle("accuracy"),
    }


def table(records: dict[str, Record]) -> str:
    """The summary as text; times are relative to feddle with two workers."""
    reference = records[REFERENCE]
    lines = [f"{'':14}{'time':>6}  {'min–max':>13}  {'CPU time':>8}  {'accuracy':>8}  settings"]
    for name, record in records.items():
        if not record.runs:
            lines.append(f"{name:14}failed")
            continue
        s = summary(record, reference)
        span = f"{s['time_min']:.2f}–{s['time_max']:.2f}"
        lines.append(
            f"{name:14}{s['time']:6.2f}  {span:>13}  {s['processor_time']:8.2f}  {s['accuracy']:8.1%}  "
            f"{record.runs[0]['note']}"
        )
    return "\n".join(lines)


def fractions_of_sgemm(reference: Record) -> list[float]:
    """The share of the machine's matrix-product rate that feddle reaches, for each repeat."""
    return [run["workload_flops"] / run["seconds"] / run["sgemm_flops_per_second"] for run in reference.runs]


def faults(records: dict[str, Record], tolerance: float) -> list[str]:
    """Reasons why the comparison is invalid: peers that failed, or that learned something else."""
    expected = records[REFERENCE].middle("accuracy")
    problems = [f"{name} failed:\n{record.errors[-1]}" for name, record in records.items() if record.errors]
    for name, record in records.items():
        if record.runs and abs(record.middle("accuracy") - expected) > tolerance:
            problems.append(
                f"{name} ends at accuracy {record.middle('accuracy'):.1%}, feddle at {expected:.1%}: more than "
                f"{tolerance:.0%} apart, so it did not do the same work"
            )
    return problems


def write(out: Path, rounds: int, records: dict[str, Record], fractions: list[float]) -> None:
    """Write the raw numbers and a description of the machine."""
    reference = records[REFERENCE]
    content = {
        "machine": machine(),
        "rounds": rounds,
        "fractions_of_sgemm": fractions,
        "peers": {
            name: {
                "versions": versions(PEERS[name]),
                "relative": summary(record, reference) if record.runs else None,
                "runs": record.runs,
                "errors": record.errors,
            }
            for name, record in records.items()
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"raw numbers in {out}")


def machine() -> dict[str, Any]:
    """A description of the machine."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def versions(peer: Peer) -> dict[str, str]:
    """The pinned packages of a peer's own environment."""
    if not peer.packages:
        return {}
    lines = peer.constraints.read_text(encoding="utf-8").split()
    return dict(line.split("==") for line in lines)


if __name__ == "__main__":
    main()
