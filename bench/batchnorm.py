"""Accuracy after a run with BatchNorm's running statistics as merged, computed again, or as pretrained.

python bench/batchnorm.py runs/resnet18-cifar10-fedbuff-seed0 ...
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from feddle.data.examples import Examples, draw
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.training.machine import one_thread
from feddle.training.train import evaluate

_TEST_IMAGES = 3000


@torch.no_grad()
def recompute_statistics(model: nn.Module, examples: Examples) -> None:
    """Compute the statistics again on the examples: the mean over batches of 250."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches
    model.train()
    for index in torch.arange(len(examples)).split(250):
        model(examples.take(index)[0])


def statistics(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The running means and variances in a model's state."""
    return {n: t.clone() for n, t in state.items() if "running_" in n}


def row(folder: Path) -> str:
    """One row of the table: the accuracy of the run's model with each kind of statistics."""
    federation = build_problem(load_config(folder / "config.yaml"), quiet=True)
    assert federation.server is not None
    assert federation.test is not None
    model, test = federation.model, draw(federation.test, _TEST_IMAGES, seed=0)
    pretrained = statistics(model.state_dict())
    model.load_state_dict(load_file(folder / "model.safetensors"))
    accuracies = [evaluate(model, test).accuracy]
    model.load_state_dict(pretrained, strict=False)
    accuracies.append(evaluate(model, test).accuracy)
    recompute_statistics(model, federation.server)
    accuracies.append(evaluate(model, test).accuracy)
    return f"| {folder.name} | " + " | ".join(f"{100 * a:.1f}" for a in accuracies) + " |"


if __name__ == "__main__":
    print("| run | merged | as pretrained | anew, on the server's images |\n|---|---|---|---|")
    with one_thread():
        for name in sys.argv[1:]:
            print(row(Path(name)), flush=True)
