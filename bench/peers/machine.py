"""The arithmetic rate of this machine, and the FLOPs of the workload: `machine.py FOLDER OUT SECONDS`.

FLOPs are counted by torch.utils.flop_counter: convolutions and matrix products only, a multiply-add is two.
"""

import json
import multiprocessing
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from workload import BATCH, Workload, load

SIZE = 1024
CORES = 2


def main() -> None:
    """Write the rate of single-precision matrix products on both cores and the workload's FLOPs."""
    folder, out, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    measured = {"sgemm_flops_per_second": sgemm_rate(seconds), "workload_flops": workload_flops(load(folder))}
    Path(out).write_text(json.dumps(measured), encoding="utf-8")


def workload_flops(workload: Workload) -> int:
    """FLOPs of forward and backward over every batch of every job."""
    size = workload.clients.shape[1]
    batches = [min(BATCH, size - first) for first in range(0, size, BATCH)]
    flops = {length: batch_flops(workload, length) for length in set(batches)}
    return workload.sampled.numel() * sum(flops[length] for length in batches)


def batch_flops(workload: Workload, length: int) -> int:
    """FLOPs of forward and backward over one batch."""
    images, labels = workload.client(0)
    model = workload.model()
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(images[:length]), labels[:length]).backward()
    return counter.get_total_flops()


def sgemm_rate(seconds: float) -> float:
    """FLOPs per second of one-thread processes, one per core, that multiply 1024×1024 matrices at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(CORES)
    queue = context.SimpleQueue()
    processes = [context.Process(target=_multiply, args=(barrier, queue, seconds)) for _ in range(CORES)]
    for process in processes:
        process.start()
    rates = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    return float(sum(rates))


def _multiply(barrier: Barrier, rates: "multiprocessing.SimpleQueue[float]", seconds: float) -> None:
    torch.set_num_threads(1)
    left, right, product = (torch.rand(SIZE, SIZE) for _ in range(3))
    for _ in range(5):
        torch.mm(left, right, out=product)
    barrier.wait()
    began, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        torch.mm(left, right, out=product)
        count += 1
    rates.put(count * 2 * SIZE**3 / spent)


if __name__ == "__main__":
    main()
