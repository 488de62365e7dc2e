"""A search that 1, 2 and 4 ranks share on this machine: time, memory per rank, and how far the coefficients differ.

    python bench/ranks.py

The model is a ResNet-18 with 11 million weights, the atlas has 40 random anchors (1.8 GB), and the search is one pass
over 256 random images of 64×64 pixels in batches of 64. Each rank uses one thread, so the time can fall only while
there are idle cores. Prints the shortest of the searches, the CPU time of rank 0 for it, which does not depend on other
work of the machine, the resident memory of the ranks after it beyond torch and the model (which includes 1/R of the
anchors), and the largest difference of a coefficient from one rank.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from feddle.core.atlas import FloatRows, SearchSpace
from feddle.core.layout import Layout, Weights
from feddle.core.ranks import EndError, Ranks
from feddle.core.streamed import StreamedRows
from feddle.data.examples import Images
from feddle.models.resnet import ResNet18
from feddle.training.machine import one_thread
from feddle.training.objectives import TaskObjective
from feddle.training.ranked import Member, ShardedRows, SharedObjective, follow
from feddle.training.search import PaperSearch, SearchTask


def images(count: int) -> Images:
    """Random images; the time does not depend on their content."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.randint(0, 10, (count,), generator=generator), 3)


def resident() -> float:
    """The resident memory of this process, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def search(anchors: int, count: int, repeats: int, ranks: Ranks | None) -> dict[str, Any]:
    """Search at this rank, and return its measurements."""
    torch.manual_seed(0)
    model = ResNet18(10)
    layout, rank, size = Layout.of(model), ranks.rank if ranks else 0, ranks.size if ranks else 1
    base, objective = resident(), TaskObjective(model, layout, images(count))
    mine = range(rank, anchors, size)
    own = FloatRows.empty(len(mine), layout.size)
    for place, row in enumerate(mine):
        own.put(place, torch.randn(layout.size, generator=torch.Generator().manual_seed(row)) * 1e-4)
    start, seconds, found = layout.read(model), [], torch.zeros(0)
    rows: Any = own
    guide: Any = objective
    if ranks is not None:
        member = Member(ranks, own, objective, None, Weights(start.vector.clone(), start.buffers.clone()))
        rows = ShardedRows(member, StreamedRows.empty(Path(), anchors, layout.size, 2**40), anchors)  # writes nothing
        guide = SharedObjective(member)
        ranks.agree({})
        if rank:
            try:
                follow(member)
            except EndError:
                return {"resident": resident() - base}
    space = SearchSpace(start, rows, torch.ones(anchors))
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        guide.begin(start, 0)
        found = PaperSearch(batch_size=64)(SearchTask(space, guide, torch.zeros(anchors))).coefficients
        seconds.append((time.perf_counter() - began, time.process_time() - used))
    wall, cpu = (min(each) for each in zip(*seconds, strict=True))
    measured = {"resident": resident() - base, "seconds": wall, "cpu": cpu, "coefficients": found.tolist()}
    if ranks is not None:
        ranks.end(0)
    return measured


def measured(count: int, options: list[str]) -> list[dict[str, Any]]:
    """Start this many ranks, and return what each of them measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(count)}
    command = [sys.executable, __file__, "--one-rank", *options]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(rank)) for rank in range(count)]
        processes = []
        for rank, output in enumerate(outputs):
            with output.open("wb") as file:
                env = {**os.environ, **address, "RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=env, stdout=file))  # noqa: S603
        try:
            assert all(process.wait() == 0 for process in processes)
        finally:
            for process in processes:
                process.kill()
        return [json.loads(output.read_text()) for output in outputs]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anchors", type=int, default=40)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_rank:
        ranks = Ranks.join() if int(os.environ["WORLD_SIZE"]) > 1 else None
        with one_thread():
            print(json.dumps(search(arguments.anchors, arguments.images, arguments.repeats, ranks)))
        return
    options = [f"--{name}={getattr(arguments, name)}" for name in ("anchors", "images", "repeats")]
    print("| ranks | search, s | CPU time of rank 0, s | MB per rank, beyond torch and the model | difference of ĉ |")
    print("|---|---|---|---|---|")
    alone: torch.Tensor | None = None
    for count in (1, 2, 4):
        first, *others = measured(count, options)
        found = torch.tensor(first["coefficients"])
        alone = found if alone is None else alone
        memory = ", ".join(f"{each['resident']:.0f}" for each in (first, *others))
        difference = float((found - alone).abs().max())
        print(f"| {count} | {first['seconds']:.1f} | {first['cpu']:.1f} | {memory} | {difference:.1e} |", flush=True)


if __name__ == "__main__":
    main()
