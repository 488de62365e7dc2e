"""Anchors on disk: the time of a search step against the disk's read rate, and the peak memory against the setting.

    python bench/streamed.py --anchors 40 --folder /path/on/the/disk

Writes that many random anchors of 86 million numbers each (ViT-B/16, 344 MB per anchor). A step of a search reads all
of them twice: once to compute the point w + c·A, and once to project the gradient, A·g. Before a `cold` pass the files
are dropped from the system's memory. The read rate is that of a plain read of the same files, also cold. Memory is the
peak of the resident set during both passes, minus what was resident before. It includes the new point and its
gradient's products. Then measures a checkpoint of all anchors, and another one in which one anchor is new.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from feddle.core.atlas import Atlas
from feddle.core.messages import Job
from feddle.core.streamed import RowFiles, StreamedRows
from feddle.run.checkpoint import Checkpoint

_MB = 1e6


def seconds(work: Callable[[], object]) -> float:
    """How long a function takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drop(files: RowFiles) -> None:
    """Drop the rows from the system's memory."""
    for path in files.paths:
        with path.open("rb") as file:  # type: ignore[union-attr]
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(files: RowFiles) -> None:
    """Read all rows, one after the other, in pieces of 16 MB."""
    piece = bytearray(2**24)
    for path in files.paths:
        with path.open("rb", buffering=0) as file:  # type: ignore[union-attr]
            while file.readinto(piece):
                pass


def resident(which: str) -> float:
    """The resident set of this process in MB: now (`VmRSS`), or its peak (`VmHWM`)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{which}:")[1].split()[0]) / 1e3


def measure(files: RowFiles, dimension: int, memory: float) -> str:
    """A line of the table, for one setting of `memory` in MB."""
    count, total = len(files.paths), 4 * len(files.paths) * dimension / 1e9
    rows = StreamedRows.empty(files.folder, count, dimension, int(memory * _MB))
    rows.files.paths = files.paths
    origin, gradient, coefficients = torch.zeros(dimension), torch.ones(dimension), torch.ones(count)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    drop(files)
    cold = [seconds(lambda: rows.project(gradient))]
    drop(files)
    cold.append(seconds(lambda: rows.combine(origin, coefficients)))
    peak = resident("VmHWM") - before
    step = seconds(lambda: (rows.project(gradient), rows.combine(origin, coefficients)))
    return (
        f"| {memory:g} | {peak:.0f} | {total / cold[0]:.2f} | {total / cold[1]:.2f} | {2 * total / step:.2f} | "
        f"{sum(cold):.1f} | {step:.1f} |"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anchors", type=int, default=20)
    parser.add_argument("--numbers", type=int, default=86_000_000, help="numbers per anchor")
    parser.add_argument("--memory", type=float, nargs="+", default=[250.0, 1000.0, 2000.0], help="in MB")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count, dimension = arguments.anchors, arguments.numbers
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = StreamedRows.empty(Path(folder, "anchors"), count, dimension, int(1e9))
        atlas, generator = Atlas(count, dimension, rows=rows), torch.Generator().manual_seed(0)
        made = torch.randn(dimension, generator=generator)
        took = seconds(lambda: [atlas.insert(Job(n, 0, 0), made.mul_(0.999)) for n in range(count)])
        print(f"{count} anchors of {4 * dimension / _MB:.0f} MB; written at {4e-9 * count * dimension / took:.2f} GB/s")
        drop(rows.files)
        rate = 4e-9 * count * dimension / seconds(lambda: read_plainly(rows.files))
        print(f"a plain cold read: {rate:.2f} GB/s\n")
        print("| memory, MB | peak, MB | A·g cold, GB/s | c·A cold, GB/s | step, GB/s | cold step, s | step, s |")
        print("|---|---|---|---|---|---|---|")
        for memory in arguments.memory:
            print(measure(rows.files, dimension, memory), flush=True)
        checkpoint = Checkpoint(Path(folder, "checkpoint"))
        first = seconds(lambda: checkpoint.save(atlas.state_dict(), {"round": 1}))
        atlas.insert(Job(0, 1, 1), made)
        second = seconds(lambda: checkpoint.save(atlas.state_dict(), {"round": 2}))
        print(f"\na checkpoint: {first:.1f} s; with one new anchor: {second:.2f} s")


if __name__ == "__main__":
    main()
