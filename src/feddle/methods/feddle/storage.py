"""How the atlas stores its anchors: exactly, in less memory, or on disk."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, model_serializer

from feddle.core.atlas import FloatRows, Rows
from feddle.core.errors import FeddleError
from feddle.core.streamed import StreamedRows, window_width
from feddle.options import Options, Positive, choice
from feddle.records import CHECKPOINT
from feddle.training.parts import Parts

_FOLDER = "anchors"  # in the folder of the checkpoint, which is removed when a run is finished


class FloatStorage(Options):
    """Exact anchors in memory."""

    name: Literal["float32"] = "float32"

    @model_serializer
    def _as_name(self) -> str:
        """A bare name, so that configs keep their hash."""
        return self.name

    def empty(self, parts: Parts, capacity: int) -> Rows:
        """Empty rows for `capacity` anchors."""
        return FloatRows.empty(capacity, parts.bench.layout.size, parts.device)

    def in_memory(self, anchors: float, capacity: int, size: int) -> float:  # noqa: ARG002
        """The memory of anchors with `size` numbers each, as a number of float32 vectors."""
        return anchors


class Int8Storage(Options):
    """Anchors of 8-bit integers with one scale per anchor: a quarter of the memory; requires the CPU."""

    name: Literal["int8"] = "int8"

    @model_serializer
    def _as_name(self) -> str:
        return self.name

    def empty(self, parts: Parts, capacity: int) -> Rows:
        """Empty rows for `capacity` anchors."""
        if parts.device != "cpu":
            found = f"but the device is {parts.device}"
            raise FeddleError(f"method.storage: int8 requires device: cpu, {found}; use float32")
        from feddle.core.packed import Int8Rows  # numba takes a second to import

        return Int8Rows.empty(capacity, parts.bench.layout.size)

    def in_memory(self, anchors: float, capacity: int, size: int) -> float:  # noqa: ARG002
        """The memory of anchors with `size` numbers each, as a number of float32 vectors."""
        return anchors / 4


class DiskStorage(Options):
    """Exact anchors in files in the run folder; each step of a search reads them from there."""

    name: Literal["disk"] = "disk"
    memory: Positive = Field(1000.0, description="memory into which the anchors are read part by part, in MB")

    def empty(self, parts: Parts, capacity: int) -> Rows:
        """Empty rows for `capacity` anchors."""
        if parts.ranks is not None:
            raise FeddleError("method.storage: disk is for a single process, but there are several ranks; use float32")
        return files_of(parts, capacity, int(self.memory * 1e6))

    def in_memory(self, anchors: float, capacity: int, size: int) -> float:
        """The memory of anchors with `size` numbers each, as a number of float32 vectors."""
        window_width(capacity, size, int(self.memory * 1e6))  # refuses what a run refuses
        return min(anchors, self.memory * 1e6 / (4 * size))


AnyStorage = FloatStorage | Int8Storage | DiskStorage
StorageOptions = Annotated[
    AnyStorage, Discriminator("name"), choice("float32"), Field(description="how the atlas stores its anchors")
]


def files_of(parts: Parts, capacity: int, memory: int) -> StreamedRows:
    """Empty rows in files in the run folder, of which `memory` bytes are in memory at once."""
    if parts.scratch is None:
        raise FeddleError("method.storage: disk requires a folder for the anchors; in Python, pass out= or scratch=")
    folder = parts.scratch / CHECKPOINT / _FOLDER
    return StreamedRows.empty(folder, capacity, parts.bench.layout.size, memory)
