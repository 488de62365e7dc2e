"""Three-number models: small enough to work out every merge by hand."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from feddle.core.layout import Layout, Weights
from feddle.core.messages import Arrival, Job, Update
from feddle.core.state import load, save
from feddle.data.examples import Examples, FromDataset
from feddle.methods.strategy import Strategy, state_of
from feddle.server import Server
from feddle.training.workbench import Workbench


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

    def begin(
        self, start: Weights, seed: int, among: Tensor | None = None, arrivals: Sequence[Arrival] = ()
    ) -> None: ...

    def __len__(self) -> int:
        return self.examples

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        assert len(examples)
        gradient = point.vector - self.target
        return float(gradient @ gradient / 2), gradient


class Played:
    """A strategy that is played round by round, as a server does: it is given the round's number."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.round = 0
        self.notes: Mapping[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.strategy, name)

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        self.round += 1
        merged = self.strategy.merge(model, arrivals, self.round)
        self.notes = merged.notes
        return merged.weights

    def state_dict(self) -> dict[str, Tensor]:
        return save(state_of(self.strategy))

    def continue_from(self, other: "Played") -> None:
        load(state_of(self.strategy), other.state_dict())
        self.round = other.round


def state(core: Server) -> Any:
    """Everything that a server holds except its record of refused updates, as values that can be compared."""
    held = {**vars(core), **vars(core.state)}
    return {name: _plain(value) for name, value in held.items() if name not in ("refused", "_refusals", "state")}


def _plain(value: Any) -> Any:
    match value:
        case Tensor():
            return value.dtype, tuple(value.shape), value.detach().clone().numpy().tobytes()
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple() | deque():
            return [_plain(each) for each in value]
        case set():
            return frozenset(value)
        case None | bool() | int() | float() | str() | Job():
            return value
        case _ if hasattr(value, "state_dict"):
            return _plain(value.state_dict())
        case _:
            return type(value).__name__, _plain(vars(value))


def close(got: Tensor, *expected: float) -> bool:
    return torch.allclose(got, torch.tensor(expected), rtol=1e-5, atol=1e-6)


class Numbers(nn.Module):
    """Three numbers and a running statistic; y = w₁·x, so that only the first number is trained."""

    level: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(3))
        self.register_buffer("level", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.numbers[:1] * inputs


class Scaled(Numbers):
    """A classifier with the three logits w·x."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.numbers


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def bench(model: Numbers | None = None, *, statistic: bool = False) -> Workbench:
    """A workbench with a three-number model; without its statistic unless asked for."""
    model = model or Numbers()
    layout = Layout.of(model)
    return Workbench(model, layout if statistic else replace(layout, buffers=()), squared)


def numbers() -> Examples:
    """One example, x = y = 2."""
    return FromDataset(TensorDataset(torch.tensor([[2.0]]), torch.tensor([[2.0]])))


class Targets:
    """ℓ(w) = mean over the examples of ½‖w − t_e‖²."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets

    def begin(
        self, start: Weights, seed: int, among: Tensor | None = None, arrivals: Sequence[Arrival] = ()
    ) -> None: ...

    def __len__(self) -> int:
        return len(self.targets)

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        away = point.vector - self.targets[examples]
        return float(away.square().sum(1).mean() / 2), away.mean(0)
