"""FedLab's standalone simulation: `fedlab_sim.py FOLDER OUT`."""

import sys
import types
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from workload import ADAM, BATCH, LEARNING_RATE, Clock, Workload, load, write_result

# FedLab imports torchvision for data sets that are not used here; it has no build for this torch.
_STAND_IN = types.ModuleType("torchvision")
_STAND_IN.transforms = types.ModuleType("torchvision.transforms")  # type: ignore[attr-defined]
sys.modules.setdefault("torchvision", _STAND_IN)

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Clients(FedDataset):
    """The workload's clients; a batch is cut from tensors in one step."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.num = len(workload.clients)

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader[object]:  # noqa: A002, ARG002
        """A client's batches in a random order."""
        dataset = TensorDataset(*self.workload.client(id))
        batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
        return DataLoader(dataset, sampler=batches, batch_size=None)


class AdamTrainer(SGDSerialClientTrainer):
    """FedLab's serial trainer with a fresh Adam for each job."""

    def train(self, model_parameters: Tensor, train_loader: Iterable[object]) -> list[Tensor]:
        """One client's training."""
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr)
        return super().train(model_parameters, train_loader)


class Server(SyncServerHandler):
    """FedLab's synchronous FedAvg with a fixed schedule of clients."""

    schedule: list[list[int]]

    def sample_clients(self) -> list[int]:
        """The clients of this round."""
        return self.schedule[self.round]


class Pipeline(StandalonePipeline):
    """The standalone loop without an evaluation each round."""

    def evaluate(self) -> None:
        """Do nothing: accuracy is measured once, at the end."""


def main() -> None:
    """Run the standalone pipeline."""
    folder, out = sys.argv[1], sys.argv[2]
    torch.manual_seed(0)
    workload = load(folder)
    model = workload.model()
    total, per_round = len(workload.clients), workload.sampled.shape[1]
    trainer = AdamTrainer(model, total)
    trainer.setup_dataset(Clients(workload))
    trainer.setup_optim(epochs=1, batch_size=BATCH, lr=LEARNING_RATE)
    server = Server(model, global_round=workload.rounds, sample_ratio=per_round / total)
    server.schedule = workload.sampled.tolist()
    pipeline = Pipeline(server, trainer)
    with Clock() as clock:
        pipeline.main()
    threads = torch.get_num_threads()
    note = f"standalone mode: one process, torch's default of {threads} threads, {ADAM}"
    write_result(out, clock, workload.accuracy(server.model), threads=threads, note=note)


if __name__ == "__main__":
    main()
