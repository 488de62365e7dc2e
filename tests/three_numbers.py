"""Three-number models: small enough to work out every merge by hand."""

from collections.abc import Sequence

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Update


def weights(*vector: float, buffers: Sequence[float] = ()) -> Weights:
    return Weights(torch.tensor(vector), torch.tensor(buffers))


def arrival(
    *delta: float,
    staleness: int = 0,
    examples: int = 1,
    client: int = 0,
    number: int = 0,
    start: Weights | None = None,
    buffers: Sequence[float] = (),
) -> Arrival:
    job = Job(client, number, version=0)
    update = Update(job, torch.tensor(delta), torch.tensor(buffers), examples)
    return Arrival(update, staleness, start or weights(*([0.0] * len(delta))))


class Quadratic:
    """ℓ(w) = ½‖w − target‖², the same for each of its examples."""

    def __init__(self, *target: float, examples: int = 4) -> None:
        self.target = torch.tensor(target)
        self.examples = examples

    def __len__(self) -> int:
        return self.examples

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        assert len(examples)
        gradient = point.vector - self.target
        return float(gradient @ gradient / 2), gradient


def close(got: Tensor, *expected: float) -> bool:
    return torch.allclose(got, torch.tensor(expected), rtol=1e-5, atol=1e-6)
