"""How the atlas stores its anchors: exactly, or in less memory."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from feddle.core.atlas import FloatRows, Rows
from feddle.core.errors import FeddleError


def _bare(value: Any) -> Any:
    """The name in `{name: int8}`, which is the same as `int8`."""
    return value["name"] if isinstance(value, dict) and value.keys() == {"name"} else value


Storage = Annotated[
    Literal["float32", "int8"],
    BeforeValidator(_bare),
    Field(
        description="how the atlas stores its anchors: `float32` is exact; `int8` takes a quarter of the memory, with "
        "one scale per anchor, and requires the CPU"
    ),
]


def empty_rows(storage: Storage, capacity: int, dimension: int, device: str) -> Rows:
    """Empty rows for `capacity` anchors."""
    if storage == "float32":
        return FloatRows.empty(capacity, dimension, device)
    if device != "cpu":
        raise FeddleError(f"method.storage: int8 requires device: cpu, but the device is {device}; use float32")
    from feddle.core.packed import Int8Rows  # numba takes a second to import

    return Int8Rows.empty(capacity, dimension)
