"""Local workers compared with Ray on this machine: `python bench/executors.py`.

The setting is the paper's for Fashion-MNIST, shortened. The same run is done in turn by two local workers, by two
workers on a Ray cluster with one node, and by two workers on a cluster with two nodes of one CPU each. Each run is a
separate process. Prints for each the wall time of the second half of the rounds, the CPU time of all processes in
it, both for the whole run with the start of the workers, and the largest sum of the processes' memory (PSS); and
whether all runs end with bit-identical weights. A cluster is started before its run, and the CPU time of its daemons
counts from the start of the run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "experiments" / "fashion-mnist-cnn.yaml"
GOAL = 1.15
sys.path.insert(0, str(ROOT / "tests"))

from clusters import ENVIRONMENT, cluster, family  # noqa: E402

ONE_RUN = """
import hashlib, json, sys, time
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.run.simulate import simulated
config = load_config(sys.argv[1], sys.argv[2:])
run = simulated(config, build_problem(config, quiet=True))
times, began = [], time.perf_counter()
def listen(line):
    times.append(time.perf_counter())
    if line["round"] in (config.rounds // 2, config.rounds):
        print("mark", flush=True)
        input()
run.go(listen)
whole = time.perf_counter() - began
digest = hashlib.sha256(run.server.model.vector.numpy().tobytes()).hexdigest()
print(json.dumps({"steady": times[-1] - times[config.rounds // 2 - 1], "whole": whole, "digest": digest}))
"""


@dataclass(frozen=True)
class Measured:
    """One run: seconds, the largest memory in bytes, and the digest of the last weights."""

    steady: float  # the second half of the rounds, when all workers have started
    steady_cpu: float  # of all processes in that time
    whole: float
    cpu: float
    memory: int
    digest: str


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process, without its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """The memory of a process in bytes; a page that several processes share counts by its share."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def measure(overrides: Sequence[str], roots: Sequence[int]) -> Measured:
    """Run once in a new process; `roots` are the processes of the cluster that it uses."""
    environment = {**os.environ, **ENVIRONMENT}
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", ONE_RUN, str(CONFIG), *overrides],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    before = {pid: cpu_seconds(pid) for pid in family(roots)}
    seen: dict[int, float] = {}
    peak, marks, ended = 0, list[float](), threading.Event()

    def look() -> list[int]:
        pids = family([process.pid, *roots])
        seen.update({pid: cpu_seconds(pid) - before.get(pid, 0.0) for pid in pids})
        return pids

    def watch() -> None:
        nonlocal peak
        while not ended.wait(1.0):
            peak = max(peak, sum(memory(pid) for pid in look()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    while len(marks) < 2 and process.stdout.readline() == "mark\n":
        look()
        marks.append(sum(seen.values()))
        process.stdin.write("\n")
        process.stdin.flush()
    result = json.loads(process.communicate()[0])
    ended.set()
    watcher.join()
    assert process.returncode == 0
    return Measured(result["steady"], marks[1] - marks[0], result["whole"], sum(seen.values()), peak, result["digest"])


def main() -> None:
    """Measure all executors in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    common = [f"rounds={arguments.rounds}", "device=cpu", "workers=2"]
    found: dict[str, list[Measured]] = {"local": [], "ray, 1 node": [], "ray, 2 nodes": []}
    for _ in range(arguments.repeats):
        for name, runs in found.items():
            with ExitStack() as stack:
                overrides, roots = [*common], list[int]()
                if name != "local":
                    nodes = (2,) if name == "ray, 1 node" else (1, 1)
                    running = stack.enter_context(cluster(*nodes, store=512 << 20))
                    overrides += [f"executor={{name: ray, address: '{running.address}'}}"]
                    roots = [node.process.pid for node in running.nodes]
                runs.append(measure(overrides, roots))
            last = runs[-1]
            print(f"{name}: {last.steady:.1f} s, CPU {last.steady_cpu:.1f} s, whole {last.whole:.1f} s", flush=True)
    report(found)


def report(found: dict[str, list[Measured]]) -> None:
    """Print the medians, and the ratios to local workers."""
    print("executor | second half, s | ratio | its CPU, s | ratio | whole run, s | its CPU, s | memory, MB")
    base = found["local"]
    for name, runs in found.items():
        pairs = list(zip(runs, base, strict=True))
        wall = statistics.median(run.steady / other.steady for run, other in pairs)
        cpu = statistics.median(run.steady_cpu / other.steady_cpu for run, other in pairs)
        keys = ("steady", "steady_cpu", "whole", "cpu")
        steady, used, whole, total = (statistics.median(getattr(run, key) for run in runs) for key in keys)
        size = max(run.memory for run in runs) / 2**20
        figures = f"{steady:.1f} | {wall:.2f} | {used:.1f} | {cpu:.2f} | {whole:.1f} | {total:.1f} | {size:.0f}"
        print(f"{name} | {figures}")
    digests = {run.digest for runs in found.values() for run in runs}
    print("weights bit-identical:", len(digests) == 1, f"; goal: a ratio of at most {GOAL}")


if __name__ == "__main__":
    main()
