"""Adam and SGD with torch's fused kernels.

The classes of `torch.optim` give bit-identical results, but their first step imports torch's compiler, which takes a
second in every process. Only L-BFGS (`search: lbfgs`, the surrogate head) requires it.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from feddle.core.errors import FeddleError

_STATE = ("step", "exp_avg", "exp_avg_sq")  # torch.optim's names


class Optimizer(Protocol):
    """Moves parameters against their gradients; parameters without a gradient do not move."""

    def step(self) -> None:
        """Take one step."""

    def state_dict(self) -> dict[str, Tensor]:
        """The state that is carried from one step to the next."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""


class Adam:
    """Adam (Kingma & Ba) with its usual moments; weight decay is added to the gradient."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self.weight_decay = weight_decay
        self._state: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """See `Optimizer`."""
        for places, parameters, gradients in _reached(self.parameters):
            for i, parameter in zip(places, parameters, strict=True):
                if i not in self._state:
                    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    self._state[i] = step, torch.zeros_like(parameter), torch.zeros_like(parameter)
            steps, means, squares = (list(kept) for kept in zip(*(self._state[i] for i in places), strict=True))
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                parameters,
                gradients,
                means,
                squares,
                [],
                steps,
                lr=self.lr,
                beta1=0.9,
                beta2=0.999,
                weight_decay=self.weight_decay,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )

    def state_dict(self) -> dict[str, Tensor]:
        """See `Optimizer`."""
        kept = self._state.items()
        return {f"{i}.{name}": tensor.clone() for i, state in kept for name, tensor in zip(_STATE, state, strict=True)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer`."""
        self._state = _read_state(self.parameters, state)


class SGD:
    """Gradient descent without momentum; weight decay is added to the gradient."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self) -> None:
        """See `Optimizer`."""
        for _, parameters, gradients in _reached(self.parameters):
            torch._fused_sgd_(
                parameters,
                gradients,
                [],
                lr=self.lr,
                weight_decay=self.weight_decay,
                momentum=0.0,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )

    def state_dict(self) -> dict[str, Tensor]:
        """SGD has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer`."""


class TorchOptimizer:
    """An optimiser of `torch.optim` whose state is that of `Adam` or `SGD`, so a run can continue with either."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        """See `Optimizer`."""
        self.optimizer.step()

    def state_dict(self) -> dict[str, Tensor]:
        """See `Optimizer`."""
        kept = self.optimizer.state_dict()["state"].items()
        return {f"{i}.{name}": state[name].clone() for i, state in kept for name in _STATE if name in state}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer`."""
        read = _read_state(self.optimizer.param_groups[0]["params"], state)
        kept = {i: dict(zip(_STATE, tensors, strict=True)) for i, tensors in read.items()}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": kept})


def _read_state(
    parameters: Iterable[nn.Parameter], state: Mapping[str, Tensor]
) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Adam's saved state by the number of the parameter, copied."""
    read = {}
    for i, parameter in enumerate(parameters):
        if f"{i}.{_STATE[0]}" in state:
            step, mean, square = (state[f"{i}.{name}"] for name in _STATE)
            like = torch.empty_like(parameter)  # in the parameter's memory format, which the kernel relies on
            read[i] = step.clone().to(like.device), like.copy_(mean), torch.empty_like(like).copy_(square)
    return read


def _reached(parameters: list[nn.Parameter]) -> Iterable[tuple[list[int], list[Tensor], list[Tensor]]]:
    """Indices, parameters and gradients of the parameters that have a gradient; one group per type, for the kernels."""
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
