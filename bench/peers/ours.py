"""feddle: `ours.py FOLDER OUT WORKERS`."""

import dataclasses
import sys

import torch
from settings import workload_config
from workload import Clock, Workload, load, write_result

from feddle.core.messages import Job
from feddle.run.problem import build_problem
from feddle.run.run import Run
from feddle.run.simulate import simulated
from feddle.runtimes.simulation import Simulation
from feddle.server import Server


def main() -> None:
    """Run the config; accuracy is measured after the clock has stopped."""
    folder, out, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    workload = load(folder)
    config = workload_config(workload.rounds, workers)
    run = simulated(config, dataclasses.replace(build_problem(config, quiet=True), test=None))
    trained: list[int] = []
    _record_clients(run.server, trained)
    _check_start(run, workload)
    with Clock() as clock:
        run.go()
    if trained != workload.sampled.flatten().tolist():
        raise SystemExit("feddle trained other clients than the workload names: prepare.py must sample as it does")
    note = f"{workers} worker process{'es' if workers > 1 else ''} of one thread; starting them is in the time"
    write_result(out, clock, workload.accuracy(run.problem.model), threads=workers, note=note)


def _record_clients(server: Server, clients: list[int]) -> None:
    """Record the client of each job when it is dispatched."""
    dispatch = server.dispatch

    def noted(client: int) -> Job:
        clients.append(client)
        return dispatch(client)

    server.dispatch = noted  # type: ignore[method-assign]


def _check_start(run: Run[Simulation], workload: Workload) -> None:
    """Refuse to run on other data or other initial weights than the peers."""
    weights = run.problem.model.state_dict()
    same = all(torch.equal(weights[name], tensor) for name, tensor in workload.weights.items())
    images, labels = run.problem.clients[0].take(torch.arange(2))
    expected, names = workload.client(0)
    if not (same and torch.equal(images, expected[:2]) and torch.equal(labels, names[:2])):
        raise SystemExit("feddle's data or initial weights differ from the workload's")


if __name__ == "__main__":
    main()
