"""How a module maps to one flat vector."""

import hashlib
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from feddle.core.errors import FeddleError


@dataclass(frozen=True, eq=False)
class Weights:
    """A model as two flat vectors: `vector` (d,) is merged, `buffers` (b,) are running statistics."""

    vector: Tensor
    buffers: Tensor

    @property
    def num_bytes(self) -> int:
        """The size of a message with these weights."""
        return self.vector.nbytes + self.buffers.nbytes


@dataclass(frozen=True)
class Slot:
    """The position of one named tensor in a flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def place(self) -> slice:
        """The tensor's elements in the flat vector."""
        return slice(self.start, self.start + prod(self.shape))


@dataclass(frozen=True)
class Layout:
    """The flat vector of a module's trainable parameters, in model order, body before head.

    parameters: the name, shape and start of each trainable parameter in the vector (d,).
    buffers: the same for the floating-point buffers (BatchNorm statistics), which form a second vector (b,). Integer
        counters are not included.
    head_start: where the head begins; d if there is none.
    head_name: the name of the head's module.
    digest: two models have the same one if and only if their updates can be added.
    """

    parameters: tuple[Slot, ...]
    buffers: tuple[Slot, ...]
    head_start: int
    digest: str
    head_name: str | None = None

    @classmethod
    def of(cls, model: nn.Module, head: str | None = None) -> "Layout":
        """The layout of `model`; `head` is the name of its classifier, by default the last linear layer."""
        named = head is not None
        head = find_head(model) if head is None else head
        every: dict[str, Tensor] = dict(model.named_parameters())
        trainable = {n: p for n, p in every.items() if p.requires_grad and p.is_floating_point()}
        if not trainable:
            found = "every parameter is frozen; set requires_grad" if every else "the model has none; add a layer"
            raise FeddleError(f"expected trainable parameters, but {found}")
        in_head = {n for n in trainable if head is not None and n.startswith(f"{head}.")}
        if named and not in_head:
            raise FeddleError(f"the model has no trainable module named {head!r}; name one of its modules as the head")
        body = [n for n in trainable if n not in in_head]
        parameters = _slots({n: trainable[n] for n in [*body, *(n for n in trainable if n in in_head)]})
        saved = model.state_dict().keys()
        moving = {n: b for n, b in model.named_buffers() if b.is_floating_point() and n in saved}
        head_start = next((s.start for s in parameters if s.name in in_head), _total(parameters))
        return cls(parameters, _slots(moving), head_start, _digest(model, trainable, moving, head_start), head)

    @property
    def size(self) -> int:
        """The number of trainable parameters (d)."""
        return _total(self.parameters)

    def read(self, model: nn.Module) -> Weights:
        """A copy of the model's weights."""
        return Weights(
            _gather([model.get_parameter(s.name).detach() for s in self.parameters]),
            _gather([model.get_buffer(s.name) for s in self.buffers]),
        )

    def write(self, model: nn.Module, weights: Weights) -> None:
        """Set the model's weights in place."""
        with torch.no_grad():
            for slot in self.parameters:
                model.get_parameter(slot.name).copy_(weights.vector[slot.place].view(slot.shape))
            for slot in self.buffers:
                model.get_buffer(slot.name).copy_(weights.buffers[slot.place].view(slot.shape))

    def read_grad(self, model: nn.Module) -> Tensor:
        """The gradients as a vector (d,); a parameter without a gradient has gradient zero."""
        grads = [(p, p.grad) for p in (model.get_parameter(s.name) for s in self.parameters)]
        return _gather([torch.zeros_like(p) if grad is None else grad for p, grad in grads])


def find_head(model: nn.Module) -> str | None:
    """The name of the last linear submodule with trainable parameters, if there is one."""
    linear = [n for n, m in model.named_modules() if n and isinstance(m, nn.Linear) and m.weight.requires_grad]
    return linear[-1] if linear else None


def _slots(tensors: dict[str, Tensor]) -> tuple[Slot, ...]:
    slots, start = [], 0
    for name, tensor in tensors.items():
        slots.append(Slot(name, tuple(tensor.shape), start))
        start += tensor.numel()
    return tuple(slots)


def _total(slots: tuple[Slot, ...]) -> int:
    return slots[-1].place.stop if slots else 0


def _gather(tensors: list[Tensor]) -> Tensor:
    # reshape copies a channels_last tensor into the logical order
    return torch.cat([t.reshape(-1).float() for t in tensors]) if tensors else torch.zeros(0)


def _digest(model: nn.Module, trainable: dict[str, Tensor], moving: dict[str, Tensor], head_start: int) -> str:
    """The digest of names, shapes and dtypes, and of frozen values: an adapter fits only one base model."""
    digest = hashlib.sha256(f"head {head_start}".encode())
    for name, tensor in [*trainable.items(), *moving.items()]:
        digest.update(f"|{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
    for name, tensor in model.named_parameters():
        if name not in trainable:
            digest.update(f"|frozen {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
