"""The work of the clients as bytes and arrays, for processes that are not forked.

The arrays are read in place, so that all processes of a machine share one copy of the data.
"""

import io
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from feddle.core.errors import FeddleError, one_line
from feddle.data.examples import FromDataset, Images, Relabelled, Selection, Tokens
from feddle.data.partition import Partition
from feddle.runtimes.cluster import load_ray

_READ_ONLY = (Images, Tokens, Relabelled, Selection, Partition)  # feddle never writes to their tensors


@dataclass(frozen=True, eq=False)
class Packed:
    """An object as bytes, and the arrays that are kept out of them."""

    content: bytes
    arrays: Sequence[np.ndarray]

    @property
    def num_bytes(self) -> int:
        """The size in memory."""
        return len(self.content) + sum(array.nbytes for array in self.arrays)


def pack(content: object) -> Packed:
    """Pack any object, also one with lambdas and with classes of the main script."""
    pickler: Any = load_ray().cloudpickle.Pickler

    class Packer(pickler):  # type: ignore[misc]  # its base is not known without Ray
        """Pickles tensors as arrays: torch's own way copies the whole memory that a slice is part of."""

        def __init__(self, file: io.BytesIO) -> None:
            self.arrays: list[np.ndarray] = []
            self.shared: dict[int, Tensor] = {}  # by id
            super().__init__(file, protocol=5, buffer_callback=self._keep)

        def _keep(self, buffer: pickle.PickleBuffer) -> None:
            self.arrays.append(np.frombuffer(buffer.raw(), np.uint8))

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is np.ndarray:
                return obj.__reduce_ex__(4)  # within the bytes, so that it can be changed, as in a forked process
            if type(obj) is Tensor and obj.numel() and obj.layout is torch.strided and not obj.requires_grad:
                return _reduced(obj, shared=id(obj) in self.shared)
            self.shared |= {id(tensor): tensor for tensor in _read_only(obj)}
            return super().reducer_override(obj)

    file = io.BytesIO()
    packer = Packer(file)
    try:
        packer.dump(content)
    except Exception as error:  # whatever the pickling of a user's class raises
        reason = one_line(f"{type(error).__name__}: {error}")
        remedy = "remove open files and locks from the data set and the model, or use executor: local"
        raise FeddleError(f"executor: ray cannot send the model or the data ({reason}); {remedy}") from error
    return Packed(file.getvalue(), packer.arrays)


def unpack(content: bytes, arrays: Sequence[np.ndarray]) -> Any:
    """The packed object. Shared tensors are views of the arrays, which must not be changed."""
    return pickle.loads(content, buffers=arrays)  # noqa: S301  # from our own driver, through its cluster


def _read_only(obj: object) -> list[Tensor]:
    """The tensors of an object that can be shared, because only feddle's own code reads them."""
    if isinstance(obj, FromDataset):
        inner = obj.dataset
        while type(inner) is Subset:
            inner = inner.dataset
        return list(inner.tensors) if type(inner) is TensorDataset else []
    return [value for value in vars(obj).values() if type(value) is Tensor] if isinstance(obj, _READ_ONLY) else []


def _reduced(tensor: Tensor, *, shared: bool) -> tuple[Any, ...]:
    """How to rebuild a tensor. It keeps its memory format, such as channels_last."""
    tensor = tensor.cpu()
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        compact: tuple[Any, ...] = tensor.clone().__reduce_ex__(5)  # type: ignore[no-untyped-call]
        return compact
    content = pickle.PickleBuffer(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return view if shared else copy, (content, tensor.dtype, tuple(tensor.shape))


def view(content: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor on an array's memory, which may be read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(content).view(dtype).reshape(shape)


def copy(content: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor with its own memory."""
    return view(content, dtype, shape).clone()
