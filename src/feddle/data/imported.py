"""A custom source: a function that returns arrays, named by its import path."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np

from feddle.core.errors import FeddleError
from feddle.core.importing import called, check_arguments
from feddle.data.collection import Collection
from feddle.data.readers.npz import Array, from_arrays


@final
@dataclass(frozen=True)
class ImportedSource:
    """A `Source` whose content is what a function returns: the arrays that an .npz file would hold, by name.

    The function is called without arguments, or with `data.path` if that is set.
    """

    name: str
    path: str | None = None

    def missing(self) -> str | None:
        try:
            check_arguments(self.name, self._arguments)
        except FeddleError as error:
            return f"data.name: {error}"
        return None

    def fetch(self, *, quiet: bool = False) -> None:
        """Do nothing: the function fetches what it needs."""

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name, array in sorted(_arrays(self).items()):
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def read(self, *, quiet: bool = False) -> Collection:  # noqa: ARG002 - a Source's arguments
        if reason := self.missing():
            raise FeddleError(reason)
        return from_arrays(self.name, _arrays(self))

    @property
    def _arguments(self) -> dict[str, str]:
        return {} if self.path is None else {"path": self.path}


@cache
def _arrays(source: ImportedSource) -> dict[str, Array]:
    found = called(source.name, source._arguments)
    if not isinstance(found, Mapping):
        usual = "a dict of NumPy arrays (images, labels, and optionally clients and split)"
        raise FeddleError(f"{source.name}: expected {usual}, but it returned {type(found).__name__}")
    return {str(name): np.asarray(values) for name, values in found.items()}
