"""The time of a round as a federation grows: `python bench/scale.py`.

Four sizes grow, one at a time, while the others stay at the base point: the clients per round (N), the anchors in the
atlas (M), the parameters of the CNN (d) and the clients in total (J). A client has 32 images and the server 256, a
fourth of the paper's numbers. Clients train one epoch, and the search makes one pass, both in batches of 32. Every
point is measured in its own process with one thread. The time is CPU time, which for one thread equals the wall time on
an idle machine. Only ratios to the base point are printed and drawn. The raw numbers are written to a JSON file.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peers import machine
from scale_plot import PANELS, draw

from feddle.data.examples import Images
from feddle.data.partition import Partition
from feddle.models.cnn import CNN, CnnOptions
from feddle.run.plan import SimulationPlan
from feddle.run.problem import PartitionedClients, Problem
from feddle.run.simulate import simulated

BENCH = Path(__file__).resolve().parent
RESULTS, PLOT = BENCH / "results" / "scale.json", BENCH.parent / "docs" / "scale.svg"
CLIENT_IMAGES, SERVER_IMAGES, POOL = 32, 256, 10_000
DELAYED = 8  # rounds until updates arrive nearly as fast as they are sent out, with delays of σ = 5

Result = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """The sizes of a federation. `hidden` is the width of the CNN's first linear layer and determines d."""

    per_round: int = 10
    atlas_size: int = 20
    hidden: int = 512
    clients: int = 500

    @property
    def parameters(self) -> int:
        """Number of parameters (d): three convolutions, and two linear layers for 1024 features and 10 classes."""
        return 56_320 + 1025 * self.hidden + 10 * (self.hidden + 1)

    @property
    def warm_up(self) -> int:
        """Number of rounds that are not timed. After them the atlas is full."""
        return DELAYED + -(-self.atlas_size // self.per_round)


BASE = Point()
GROWTH: dict[str, list[Point]] = {
    "N": [replace(BASE, per_round=n) for n in (5, 10, 20, 40)],
    "M": [replace(BASE, atlas_size=m) for m in (10, 20, 50, 100)],
    "d": [replace(BASE, hidden=h) for h in (64, 512, 1600, 4800)],
    "J": [replace(BASE, clients=j) for j in (500, 10_000, 100_000, 1_000_000)],
}


def images(count: int) -> Images:
    """Random images; the time does not depend on their content."""
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, 1, 32, 32), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.randint(0, 10, (count,), generator=generator), 3)


def federation(point: Point) -> Problem:
    """Clients of equal size that share one pool of images. Each has its own list of indices."""
    order = torch.randint(0, POOL, (point.clients * CLIENT_IMAGES,), generator=torch.Generator().manual_seed(0))
    partition = Partition(order, torch.arange(0, len(order) + 1, CLIENT_IMAGES))
    torch.manual_seed(0)
    model = CNN(10, CnnOptions(hidden=point.hidden))
    if sum(p.numel() for p in model.parameters()) != point.parameters:
        raise SystemExit("the CNN has another number of parameters than is drawn; mend Point.parameters")
    clients = PartitionedClients(images(POOL), partition)
    return Problem(model, clients, partition.sizes, server=images(SERVER_IMAGES), test=None)


def measure(point: Point, rounds: int) -> Result:
    """Seconds of each round after the warm-up, seconds until the first round could start, and peak memory in MB."""
    began = time.perf_counter()
    plan = SimulationPlan.model_validate(
        {
            "rounds": point.warm_up + rounds,
            "workers": 0,
            "device": "cpu",
            "clients": {"count": point.clients, "per_round": point.per_round},
            "training": {"epochs": 1},
            "delays": {"sigma": 5},
            "method": {"name": "feddle", "atlas_size": point.atlas_size, "search": {"name": "paper", "epochs": 1}},
        }
    )
    run = simulated(plan, federation(point))
    started = time.perf_counter() - began
    ends = [time.process_time()]
    run.go(lambda _: ends.append(time.process_time()))
    if len(run.history[-1]["coefficients"]) != point.atlas_size:
        raise SystemExit(f"the atlas of {point} is not full after the warm-up; raise DELAYED")
    seconds = [after - before for before, after in pairwise(ends)]
    return {"rounds": seconds[point.warm_up :], "start": started, "peak_mb": peak_memory()}


def peak_memory() -> float:
    """The peak memory of this process, in MB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def measure_apart(point: Point, rounds: int) -> Result:
    """Measure in a new process, so that memory and allocator start fresh."""
    command = [sys.executable, str(Path(__file__).resolve()), "--rounds", str(rounds)]
    done = subprocess.run(  # noqa: S603 — no user input
        [*command, "--point", json.dumps(asdict(point))], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{point} failed:\n{done.stderr[-3000:]}")
    result: Result = json.loads(done.stdout)
    return result


def measure_all(rounds: int, repeats: int) -> dict[Point, list[Result]]:
    """Measure every point once per repeat, so that drift of the machine affects all points."""
    points = list(dict.fromkeys(point for line in GROWTH.values() for point in line))
    results: dict[Point, list[Result]] = {point: [] for point in points}
    for repeat in range(repeats):
        for point in points:
            print(f"repeat {repeat + 1} of {repeats}: {point}", file=sys.stderr, flush=True)
            results[point].append(measure_apart(point, rounds))
    return results


def summary(point: Point, results: Sequence[Result], base: Sequence[Result]) -> Result:
    """The numbers of a point. `time` and `memory` are relative to the base point."""

    def seconds(which: Sequence[Result]) -> float:
        return float(median(second for result in which for second in result["rounds"]))

    def peak(which: Sequence[Result]) -> float:
        return float(median(result["peak_mb"] for result in which))

    each = [seconds([ours]) / seconds([theirs]) for ours, theirs in zip(results, base, strict=True)]
    return {
        **asdict(point),
        "parameters": point.parameters,
        "time": seconds(results) / seconds(base),
        "time_min": min(each),
        "time_max": max(each),
        "memory": peak(results) / peak(base),
        "seconds_per_round": seconds(results),
        "start_seconds": median(result["start"] for result in results),
        "peak_mb": peak(results),
        "index_mb": 8 * point.clients * (CLIENT_IMAGES + 1) / 1e6,
    }


def main() -> None:
    """Measure, then write, draw and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are timed, after the warm-up")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the raw numbers go")
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(Point(**json.loads(options.point)), options.rounds)))
        return
    results = measure_all(options.rounds, options.repeats)
    lines = {name: [summary(p, results[p], results[BASE]) for p in points] for name, points in GROWTH.items()}
    content = {"machine": machine(), "base": asdict(BASE), "rounds": options.rounds, "lines": lines}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    options.plot.write_text(draw(lines), encoding="utf-8")
    for name, line in lines.items():
        for point in line:
            span = f"{point['time_min']:.2f}–{point['time_max']:.2f}"
            print(f"{name} = {point[PANELS[name].key]:>9,}: time {point['time']:5.2f} ({span}), ", end="")
            print(f"memory {point['memory']:.2f} ({point['peak_mb']:.0f} MB, indices {point['index_mb']:.0f} MB)")


if __name__ == "__main__":
    main()
