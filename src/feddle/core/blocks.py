"""Blocks of coordinates: each anchor has one coefficient per block."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

from pydantic import Field

from feddle.core.layout import Layout, Slot

Coefficients = Annotated[
    Literal["shared", "layer", "class"],
    Field(
        description="how many coefficients an anchor has: one (`shared`), one per layer (`layer`), or one per layer "
        "and per class of the model's head (`class`)"
    ),
]
_ADAPTER = re.compile(r"\.lora_.*$")  # peft's names of the two factors of an adapter
_WRAPPED = re.compile(r"(\.lora_.*|\.base_layer|\.parametrizations\..*)$")  # parts of one layer


@dataclass(frozen=True)
class Segment:
    """A range of the flat vector, read as a `rows` × `width` matrix; row k belongs to block `block` + k."""

    start: int
    rows: int
    width: int
    block: int

    @property
    def place(self) -> slice:
        """Its coordinates in the flat vector."""
        return slice(self.start, self.start + self.rows * self.width)

    @property
    def blocks(self) -> slice:
        """The blocks of its rows."""
        return slice(self.block, self.block + self.rows)

    def within(self, start: int, stop: int) -> Iterator["Segment"]:
        """Its part in a range of coordinates, which are then counted from `start`.

        If a border of the range cuts a row, the remaining part of that row becomes a separate segment.
        """
        first, last = max(start - self.start, 0), min(stop - self.start, self.rows * self.width)
        while first < last:
            row, column = divmod(first, self.width)
            rows = 1 if column or last - first < self.width else (last - first) // self.width
            end = min(last, (row + rows) * self.width)
            yield Segment(self.start + first - start, rows, (end - first) // rows, self.block + row)
            first = end


@dataclass(frozen=True)
class Blocks:
    """A partition of the d coordinates into named blocks, as segments that cover all coordinates in order."""

    names: tuple[str, ...]
    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        return len(self.names)

    def within(self, start: int, stop: int) -> "Blocks":
        """The same blocks with only a range of the coordinates, which are then counted from `start`."""
        return Blocks(self.names, tuple(part for whole in self.segments for part in whole.within(start, stop)))


def make_blocks(coefficients: Coefficients, layout: Layout) -> Blocks | None:
    """The blocks of a model; None if every anchor has one coefficient.

    With `layer`, there is one block per module; the two factors of a LoRA adapter belong to the module that they adapt.
    With `class`, each output row of the head is also a block with its bias, because a client knows few classes. If the
    head is a LoRA adapter, or its tensors differ in their first dimension, the head is one block.
    """
    if coefficients == "shared":
        return None
    head = [slot for slot in layout.parameters if slot.start >= layout.head_start]
    indivisible = any(_ADAPTER.search(slot.name) or slot.shape[:1] != head[0].shape[:1] for slot in head)
    by_row = head if coefficients == "class" and not indivisible else []
    whole = layout.parameters[: len(layout.parameters) - len(by_row)]
    modules = list(dict.fromkeys(_module(slot) for slot in whole))
    segments = [Segment(slot.start, 1, _size(slot), modules.index(_module(slot))) for slot in whole]
    rows = by_row[0].shape[0] if by_row else 0
    segments += [Segment(slot.start, rows, _size(slot) // rows, len(modules)) for slot in by_row]
    classes = [f"{_module(by_row[0])} {row}" for row in range(rows)]
    return Blocks((*modules, *classes), tuple(segments))


def _module(slot: Slot) -> str:
    return _WRAPPED.sub("", slot.name.rpartition(".")[0])


def _size(slot: Slot) -> int:
    return prod(slot.shape)
