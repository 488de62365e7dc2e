"""Write the workload to a folder: `prepare.py FOLDER ROUNDS`."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from settings import workload_config

from feddle.core.seeds import numpy_generator, seed_for
from feddle.data import datasets
from feddle.data.collection import Labelled
from feddle.data.examples import resize
from feddle.run.problem import build_model


def main() -> None:
    """Make the data, the clients, their sampling and the initial weights as feddle makes them."""
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    config = workload_config(rounds, workers=0)
    images = datasets.load(config.data.name, quiet=True)
    count, size = config.clients.count, config.data.image_size
    rows = Labelled(images.train_images, images.train_labels)
    partition = config.data.partition.build(rows, count, seed_for(config.seed, "partition"))
    sampled = [numpy_generator(seed_for(config.seed, "sample", r)).permutation(count) for r in range(rounds)]
    data = {
        "train_images": resize(images.train_images, size),
        "train_labels": images.train_labels,
        "test_images": resize(images.test_images, size),
        "test_labels": images.test_labels,
        "clients": torch.stack([partition[client] for client in range(count)]),
        "sampled": torch.stack([torch.from_numpy(order[: config.clients.per_round]) for order in sampled]),
    }
    save_file(data, folder / "data.safetensors")
    save_file(
        build_model(config, datasets.named(config.data.name).read().classes).state_dict(), folder / "model.safetensors"
    )


if __name__ == "__main__":
    main()
