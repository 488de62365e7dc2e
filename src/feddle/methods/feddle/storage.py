"""How the atlas stores its anchors: exactly, or in less memory."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field

from feddle.core.errors import FeddleError
from feddle.core.rows import FloatRows, Rows
from feddle.options import Options, choice


class FloatStorage(Options):
    """Four bytes per number, exact."""

    name: Literal["float32"] = "float32"

    def build(self, capacity: int, dimension: int, device: str) -> Rows:
        """Empty rows for `capacity` anchors."""
        return FloatRows.empty(capacity, dimension, device)


class Int8Storage(Options):
    """One byte per number and one scale per anchor; CPU only."""

    name: Literal["int8"] = "int8"

    def build(self, capacity: int, dimension: int, device: str) -> Rows:
        """Empty rows for `capacity` anchors."""
        from feddle.core.packed import Int8Rows  # numba takes a second to import

        _require_cpu(self.name, device)
        return Int8Rows.empty(capacity, dimension)


class SparseStorage(Options):
    """Only the largest numbers of each anchor, with their positions, eight bytes each; CPU only."""

    name: Literal["sparse"] = "sparse"
    density: float = Field(0.1, gt=0, le=1, strict=True, description="share of each anchor's numbers that is kept")

    def build(self, capacity: int, dimension: int, device: str) -> Rows:
        """Empty rows for `capacity` anchors."""
        from feddle.core.packed import SparseRows  # numba takes a second to import

        _require_cpu(self.name, device)
        return SparseRows.empty(capacity, dimension, self.density)


AnyStorage = FloatStorage | Int8Storage | SparseStorage
StorageOptions = Annotated[
    AnyStorage, Discriminator("name"), choice("float32"), Field(description="how the atlas stores its anchors")
]


def _require_cpu(name: str, device: str) -> None:
    if device != "cpu":
        raise FeddleError(f"method.storage: {name} requires device: cpu, but the device is {device}; use float32")
