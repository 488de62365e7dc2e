"""The workload as a feddle config."""

from feddle.run.load import parse_config
from feddle.run.plan import Config


def workload_config(rounds: int, workers: int) -> Config:
    """Synchronous FedAvg, 500 clients of 120 images, 10 per round, one local epoch; accuracy is on all test images."""
    return parse_config(
        {
            "rounds": rounds,
            "workers": workers,
            "device": "cpu",
            "clients": {"count": 500, "per_round": 10},
            "data": {"name": "fashion-mnist", "partition": "even", "server": {"samples": 0}},
            "training": {"optimizer": "adam", "lr": 1e-3, "epochs": 1, "batch_size": 32},
            "delays": {"sigma": 0},
            "method": "fedavg",
        }
    )
