"""What a model needs to start from weights that were trained on other images."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.core.errors import FeddleError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Standardise(nn.Module):
    """Standardises images in [−1, 1] with a mean and a deviation that were measured on images in [0, 1].

    It has no parameters, and its numbers are not in the model's state.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, deviation: Sequence[float] = IMAGENET_STD) -> None:
        super().__init__()
        means, deviations = (torch.tensor(list(values)).view(-1, 1, 1) for values in (mean, deviation))
        self.register_buffer("scale", 0.5 / deviations, persistent=False)
        self.register_buffer("shift", (0.5 - means) / deviations, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Standardise images (n, C, H, W); the shape stays the same."""
        return images * self.scale + self.shift


class FixedBatchNorm2d(nn.Module):
    """BatchNorm that always uses the statistics it came with; its scale and shift are trained."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise features (n, C, H, W); the shape stays the same."""
        return F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def adopt(model: nn.Module, weights: Mapping[str, Tensor], head: str) -> None:
    """Load the weights except for the head, which belongs to another task."""
    body = {n: t for n, t in weights.items() if not n.startswith(f"{head}.")}
    own = model.state_dict()
    wanted = {n for n, t in own.items() if t.is_floating_point() and not n.startswith(f"{head}.")}
    wrong = sorted(wanted ^ body.keys()) or [n for n in sorted(wanted) if own[n].shape != body[n].shape]
    if wrong:
        raise FeddleError(
            f"the weights belong to another model: the tensor {wrong[0]} does not match; use weights of this model"
        )
    model.load_state_dict(body, strict=False)


def fix_statistics(model: nn.Module) -> None:
    """Replace every BatchNorm by one that keeps its statistics, in training too."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, FixedBatchNorm2d(module))
