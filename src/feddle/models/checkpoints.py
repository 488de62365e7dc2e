"""Read named tensors from checkpoint files without running anything that is in them."""

import io
import pickle
import re
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from feddle.data.fetch.fetching import Tensors
from feddle.data.readers.files import Unusable


def read_checkpoint(path: Path) -> Tensors:
    """The tensors of a .safetensors file, of torch's own format (.pth, .pt, .bin), or of a plain pickle (.pkl)."""
    try:
        match path.suffix:
            case ".safetensors":
                found: object = load_file(path)
            case ".pkl":
                with path.open("rb") as file:
                    found = TensorUnpickler(file).load()
            case _:
                found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise Unusable(f"{path.name} cannot be read ({error.strerror or error})") from error
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))  # torch's own message advises to load it unsafely
        reason = f"it refers to {named[1]}, which tensors do not need" if named else "it is not a table of tensors"
        raise Unusable(f"{path.name} is not read: {reason}") from error
    except Exception as error:  # a broken pickle can end in nearly any error
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise Unusable(f"{path.name} is broken ({type(error).__name__}: {reason})") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise Unusable(f"{path.name} holds {type(found).__name__}, not a table of tensors")
    return {str(name): tensor for name, tensor in found.items()}


class TensorUnpickler(pickle.Unpickler):
    """Unpickles a table of tensors; any other global is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """One of the three globals that tensors need."""
        if (module, name) not in _GLOBALS:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")
        return _GLOBALS[module, name]


def _load_storage(content: bytes) -> Any:
    # torch's own function of this name would unpickle the content freely
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file format has typed storages, which are deprecated
        return torch.empty(0, dtype=storage.dtype).set_(storage.untyped(), offset, size, stride)


_GLOBALS = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch.storage", "_load_from_bytes"): _load_storage,
}
