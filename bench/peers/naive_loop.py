"""A plain PyTorch loop over clients: `naive_loop.py FOLDER OUT`."""

import copy
import sys

import torch
from torch import Tensor
from workload import ADAM, Clock, Workload, load, train, write_result


def main() -> None:
    """Train one client after the other and average their weights."""
    folder, out = sys.argv[1], sys.argv[2]
    torch.manual_seed(0)
    workload = load(folder)
    model = workload.model()
    with Clock() as clock:
        for clients in workload.sampled.tolist():
            model.load_state_dict(_round(workload, model.state_dict(), clients))
    threads = torch.get_num_threads()
    note = f"one process, torch's default of {threads} threads, batches cut from tensors, {ADAM}"
    write_result(out, clock, workload.accuracy(model), threads=threads, note=note)


def _round(workload: Workload, start: dict[str, Tensor], clients: list[int]) -> dict[str, Tensor]:
    """The mean of the clients' weights; all clients have the same number of images."""
    local = workload.model()
    ends = []
    for client in clients:
        local.load_state_dict(start)
        train(local, *workload.client(client))
        ends.append(copy.deepcopy(local.state_dict()))
    return {name: torch.stack([end[name] for end in ends]).mean(0) for name in start}


if __name__ == "__main__":
    main()
