"""Compare `feddle plan` with real runs: `python bench/plan.py`.

For each setting, `feddle plan --json` and then the run itself are started in new processes. The run reports its bytes,
the largest number of pinned versions, and the size of its checkpoint folder before old files are removed. The CPU time
and the memory of all its processes (PSS, so that shared pages count once) are read every tenth of a second.
Prints a table with estimate, real value and their ratio. The goal is a ratio between 2/3 and 4/3. Other processes on
the machine make the wall time longer, so compare the CPU time there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from feddle.core.messages import Job
from feddle.run.checkpoint import Checkpoint
from feddle.run.folder import run_config
from feddle.run.load import load_config
from feddle.server import Server

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
SETTINGS = {
    "small CNN, feddle, 20 rounds": ("small.yaml", "rounds=20", "checkpoint.every=5"),
    "small CNN, ca2fl, 80 rounds": ("small.yaml", "method=ca2fl", "checkpoint.every=20"),
    "the paper's CNN, feddle, 30 rounds": ("fashion-mnist-cnn.yaml", "rounds=30", "checkpoint.every=10"),
    "the paper's CNN, fedbuff, 40 rounds": ("fashion-mnist-cnn.yaml", "rounds=40", "method=fedbuff", "workers=0"),
    "the paper's CNN, feddle+, 30 rounds": ("demo.yaml", "rounds=30", "checkpoint.every=10"),
    "ResNet-18, feddle, 4 rounds": (
        *("resnet18-cifar10.yaml", "data.image_size=32", "rounds=4", "checkpoint.every=1"),
        *("model.pretrained=false", "evaluation.every=2"),
    ),
}
GOAL = (2 / 3, 4 / 3)
MEASURES = ("cpu s", "wall s", "memory MB", "MB up", "MB down", "pinned", "checkpoint MB")


def real_run(config: Path, overrides: Sequence[str], out: Path) -> None:
    """Run a config in this process, and print its bytes and its sizes."""
    largest = {"pinned": 0, "checkpoint": 0}
    dispatch, tidy = Server.dispatch, Checkpoint.tidy

    def counted_dispatch(self: Server, client: int) -> Job:
        job = dispatch(self, client)
        largest["pinned"] = max(largest["pinned"], len(self.state.pinned))
        return job

    def measured_tidy(self: Checkpoint) -> None:
        size = sum(file.stat().st_size for file in self.folder.iterdir())
        largest["checkpoint"] = max(largest["checkpoint"], size)
        tidy(self)

    Server.dispatch, Checkpoint.tidy = counted_dispatch, measured_tidy  # type: ignore[method-assign]
    result = run_config(load_config(config, overrides), out, quiet=True).result
    print(json.dumps({**largest, "up": result["bytes_up"], "down": result["bytes_down"]}))


def tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from tree(int(child))


def shared_size(pid: int) -> int:
    """The bytes of a process in memory; a page that several processes share counts by its share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def started(arguments: Sequence[str | Path]) -> dict[str, float]:
    """Run a command that prints JSON. Return that JSON, and the CPU time, wall time and memory of the command."""
    began, most = time.perf_counter(), 0
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([sys.executable, *map(str, arguments)], stdout=out)  # noqa: S603
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            most = max(most, sum(map(shared_size, tree(process.pid))))
            time.sleep(0.1)
        if status:
            raise SystemExit(f"{' '.join(map(str, arguments))} failed with status {status}")
        out.seek(0)
        printed = json.loads(out.read())
    wall = time.perf_counter() - began
    return {**printed, "cpu s": used.ru_utime + used.ru_stime, "wall s": wall, "memory": most}


def estimated(config: Path, overrides: Sequence[str]) -> tuple[dict[str, float], float]:
    """The estimate of `feddle plan`, and the seconds that it took."""
    options = [word for override in overrides for word in ("-o", override)]
    plan: Mapping[str, Mapping[str, float]] = started(["-m", "feddle", "plan", config, *options, "--json", "-q"])  # type: ignore[assignment]
    values = (
        *(plan["time"]["cpu"], plan["time"]["wall"], plan["space"]["run"] / 1e6),
        *(plan["network"]["bytes_up"] / 1e6, plan["network"]["bytes_down"] / 1e6, plan["network"]["pinned"]),
        plan["space"]["checkpoint"] / 1e6,
    )
    return dict(zip(MEASURES, values, strict=True)), plan["wall s"]  # type: ignore[return-value]


def real(config: Path, overrides: Sequence[str]) -> dict[str, float]:
    """The measurements of the run."""
    with tempfile.TemporaryDirectory() as folder:
        took = started([__file__, "--real", config, "--out", Path(folder, "run"), *overrides])
    values = (
        *(took["cpu s"], took["wall s"], took["memory"] / 1e6, took["up"] / 1e6, took["down"] / 1e6),
        *(took["pinned"], took["checkpoint"] / 1e6),
    )
    return dict(zip(MEASURES, values, strict=True))


def main() -> None:
    """Print the comparison of each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only settings whose name contains this part")
    parser.add_argument("--real", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.real:
        real_run(options.real, options.overrides, options.out)
        return
    print("| setting | | " + " | ".join(MEASURES) + " |")
    print("|---" * (len(MEASURES) + 2) + "|")
    missed = []
    for name, (file, *overrides) in SETTINGS.items():
        if options.only not in name:
            continue
        (plan, seconds), took = estimated(EXPERIMENTS / file, overrides), real(EXPERIMENTS / file, overrides)
        print(f"| {name} | estimate | " + " | ".join(f"{plan[m]:,.1f}" for m in MEASURES) + " |")
        print("| | real | " + " | ".join(f"{took[m]:,.1f}" for m in MEASURES) + " |")
        ratios = {m: plan[m] / took[m] if took[m] else float(not plan[m]) for m in MEASURES}
        print(f"| | ratio (planned in {seconds:.0f} s) | " + " | ".join(f"{ratios[m]:.2f}" for m in MEASURES) + " |")
        sys.stdout.flush()
        missed += [f"{name}: {m} {ratio:.2f}" for m, ratio in ratios.items() if not GOAL[0] <= ratio <= GOAL[1]]
    print("outside a third: " + ("; ".join(missed) or "none"))


if __name__ == "__main__":
    main()
