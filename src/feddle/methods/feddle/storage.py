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

        if device != "cpu":
            raise FeddleError(f"method.storage: int8 requires device: cpu, but the device is {device}; use float32")
        return Int8Rows.empty(capacity, dimension)


AnyStorage = FloatStorage | Int8Storage
StorageOptions = Annotated[
    AnyStorage, Discriminator("name"), choice("float32"), Field(description="how the atlas stores its anchors")
]
