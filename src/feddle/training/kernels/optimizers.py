"""Adam and SGD with torch's fused kernels.

The classes of `torch.optim` give bit-identical results, but their first step imports torch's compiler, which takes a
second in every process. Only L-BFGS (`search: lbfgs`, the surrogate head) requires it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from feddle.core.errors import FeddleError

_STATE = ("step", "exp_avg", "exp_avg_sq")  # torch.optim's names
_ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}
_SGD: dict[str, Any] = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}


@dataclass(eq=False)
class Adam:
    """Adam (Kingma & Ba) with its usual moments; weight decay is added to the gradient."""

    parameters: Sequence[nn.Parameter]
    lr: float
    weight_decay: float = 0.0
    _state: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict, init=False)

    @torch.no_grad()
    def step(self) -> None:
        """Take one step."""
        for places, parameters, gradients in _reached(self.parameters):
            for i, parameter in zip(places, parameters, strict=True):
                if i not in self._state:
                    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    self._state[i] = step, torch.zeros_like(parameter), torch.zeros_like(parameter)
            steps, means, squares = (list(kept) for kept in zip(*(self._state[i] for i in places), strict=True))
            torch._foreach_add_(steps, 1)
            settings = {**_ADAM, "lr": self.lr, "weight_decay": self.weight_decay}
            torch._fused_adam_(parameters, gradients, means, squares, [], steps, **settings)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the moments of each parameter."""
        kept = self._state.items()
        return {f"{i}.{name}": tensor.clone() for i, state in kept for name, tensor in zip(_STATE, state, strict=True)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        self._state = _read_state(self.parameters, state)


@dataclass(frozen=True, eq=False)
class SGD:
    """Gradient descent without momentum; weight decay is added to the gradient."""

    parameters: Sequence[nn.Parameter]
    lr: float
    weight_decay: float = 0.0

    @torch.no_grad()
    def step(self) -> None:
        """Take one step."""
        for _, parameters, gradients in _reached(self.parameters):
            torch._fused_sgd_(parameters, gradients, [], lr=self.lr, weight_decay=self.weight_decay, **_SGD)

    def state_dict(self) -> dict[str, Tensor]:
        """SGD has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """SGD has no state."""


@dataclass(frozen=True, eq=False)
class TorchOptimizer:
    """An optimiser of `torch.optim`; its state has the format of `Adam` or `SGD`, so a run can switch between them."""

    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Take one step."""
        self.optimizer.step()

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the moments of each parameter."""
        kept = self.optimizer.state_dict()["state"].items()
        return {f"{i}.{name}": state[name].clone() for i, state in kept for name in _STATE if name in state}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
        read = _read_state(self.optimizer.param_groups[0]["params"], state)
        kept = {i: dict(zip(_STATE, tensors, strict=True)) for i, tensors in read.items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": kept})


Optimizer = Adam | SGD | TorchOptimizer  # parameters without a gradient do not move


def _read_state(
    parameters: Iterable[nn.Parameter], state: Mapping[str, Tensor]
) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """A copy of Adam's saved state, by index of the parameter."""
    read = {}
    for i, parameter in enumerate(parameters):
        if f"{i}.{_STATE[0]}" in state:
            step, mean, square = (state[f"{i}.{name}"] for name in _STATE)
            like = torch.empty_like(parameter)  # in the parameter's memory format, which the kernel relies on
            read[i] = step.clone().to(like.device), like.copy_(mean), torch.empty_like(like).copy_(square)
    return read


def _reached(parameters: Sequence[nn.Parameter]) -> Iterable[tuple[list[int], list[Tensor], list[Tensor]]]:
    """The parameters that have a gradient: indices, parameters and gradients, grouped by dtype for the kernels."""
    groups: dict[torch.dtype, tuple[list[int], list[Tensor], list[Tensor]]] = {}
    for i, parameter in enumerate(parameters):
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                raise FeddleError(
                    "expected dense gradients, but a parameter has a sparse one; build it with sparse=False"
                )
            places, moved, gradients = groups.setdefault(parameter.dtype, ([], [], []))
            places.append(i)
            moved.append(parameter)
            gradients.append(parameter.grad)
    return groups.values()
