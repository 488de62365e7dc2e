"""Apple's pfl-research: `pfl_research.py FOLDER OUT`.

Two processes, as in its guide to distributed simulations: this script starts itself once for each rank.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from workload import ADAM, BATCH, CNN, LEARNING_RATE, Clock, Workload, load, write_result

RANKS = 2
RANK = "PFL_WORKER_RANK"


class LossCNN(CNN):
    """The network with the two methods that pfl requires."""

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """The training loss of a batch."""
        return F.cross_entropy(self(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, object]:  # noqa: ARG002
        """Return nothing; otherwise pfl measures the clients before and after the first round's training."""
        return {}


def main() -> None:
    """Train as a rank if the environment names one. Otherwise start the ranks and join their results."""
    folder, out = sys.argv[1], sys.argv[2]
    if RANK in os.environ:
        _train(folder, f"{out}.{os.environ[RANK]}")
        return
    addresses = ",".join(f"127.0.0.1:{port}" for port in _free_ports())
    environment = {**os.environ, "PFL_WORKER_ADDRESSES": addresses, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, folder, out]
    ranks = [
        subprocess.Popen(command, env={**environment, RANK: str(rank), "OMP_NUM_THREADS": "1"})  # noqa: S603 — this script
        for rank in range(RANKS)
    ]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit("a rank failed")
    _join(out)


def _free_ports() -> list[int]:
    """Free ports on the loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(RANKS)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _join(out: str) -> None:
    """Join the results of the ranks: the longest time, and the processor time of all."""
    results = [json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8")) for rank in range(RANKS)]
    joined = {
        **results[0],
        "seconds": max(r["seconds"] for r in results),
        "cpu_seconds": sum(r["cpu_seconds"] for r in results),
        "threads": sum(r["threads"] for r in results),
    }
    Path(out).write_text(json.dumps(joined), encoding="utf-8")


def _train(folder: str, out: str) -> None:
    """One rank's share of the simulation; importing pfl's model joins the ranks."""
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = load(folder)
    network = LossCNN()
    workload.start(network)
    model = PyTorchModel(network, torch.optim.Adam, torch.optim.SGD(network.parameters(), lr=1.0))
    plan = NNAlgorithmParams(
        central_num_iterations=workload.rounds,
        evaluation_frequency=workload.rounds,
        train_cohort_size=workload.sampled.shape[1],
        val_cohort_size=0,
    )
    recipe = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE)
    backend = _backend(workload)
    torch.distributed.barrier()
    with Clock() as clock:
        FederatedAveraging().run(plan, backend, model, recipe, send_metrics_to_platform=False)
    note = f"{RANKS} processes of one thread joined by gloo, in-memory tensors, {ADAM}"
    write_result(out, clock, workload.accuracy(network), threads=1, note=note)


def _backend(workload: Workload) -> object:
    """The simulated clients, sampled in the workload's order."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler

    def dataset(client: int) -> PyTorchTensorDataset:
        images, labels = workload.client(client)
        order = torch.randperm(len(labels))
        return PyTorchTensorDataset((images[order], labels[order]))

    clients = FederatedDataset(dataset, MinimizeReuseUserSampler(workload.sampled.flatten().tolist()))
    return SimulatedBackend(training_data=clients, val_data=None, postprocessors=[WeightByUser()])


if __name__ == "__main__":
    main()
