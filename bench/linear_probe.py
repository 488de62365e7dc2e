"""A linear probe of a config's model: the body as it starts, and a head fitted only on the server's data.

python bench/linear_probe.py experiments/resnet18-cifar10.yaml
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.layout import Layout
from feddle.data.examples import Examples
from feddle.run.load import load_config
from feddle.run.problem import build_problem
from feddle.training.machine import one_thread


@torch.no_grad()
def representations(model: nn.Module, head: nn.Module, examples: Examples) -> tuple[Tensor, Tensor]:
    """The head's inputs for the examples (n, width), and their labels."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    labels = []
    for index in torch.arange(len(examples)).split(250):
        inputs, targets = examples.take(index)
        model(inputs)
        labels.append(targets)
    hook.remove()
    return torch.cat(seen), torch.cat(labels)


def main() -> None:
    """Fit the head with L-BFGS and a little weight decay; print its accuracy on the test images."""
    federation = build_problem(load_config(Path(sys.argv[1]), sys.argv[2:]))
    assert federation.server is not None
    assert federation.test is not None
    model = federation.model.eval()
    head = model.get_submodule(Layout.of(model).head_name or "")
    with one_thread():
        features, labels = representations(model, head, federation.server)
        mean, deviation = features.mean(0), features.std(0) + 1e-6
        probe = nn.Linear(features.shape[1], int(labels.max()) + 1)
        optimiser = torch.optim.LBFGS(probe.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimiser.zero_grad()
            value = F.cross_entropy(probe((features - mean) / deviation), labels)
            value = value + 0.01 * probe.weight.square().sum() / 2
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimiser.step(loss)  # type: ignore[arg-type]
        features, labels = representations(model, head, federation.test)
        right = (probe((features - mean) / deviation).argmax(1) == labels).float().mean()
    print(f"linear probe on {len(federation.server)} server images: {right:.1%} of {len(labels)} test images")


if __name__ == "__main__":
    main()
