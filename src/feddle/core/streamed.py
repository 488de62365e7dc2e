"""Anchors on disk, for models whose atlas does not fit in memory.

A product reads the anchors window by window. A window is a range of columns of all rows that fits in memory. Windows
use the products of float32 rows (`FloatRows`), so an atlas that fits in one window gives bit-identical results.
"""

import errno
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feddle.core.atlas import FloatRows, row_in
from feddle.core.blocks import Blocks
from feddle.core.durable import remove_with
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.tensorfile import add_name, file_of, map_vector, read_part, write_vector

_READERS = 4  # threads; a disk is faster with several reads at once
_STEP = 1024  # columns; a window begins at a page of the file


def window_width(capacity: int, dimension: int, memory: int) -> int:
    """The columns of a window of `capacity` rows in `memory` bytes; refuses a memory that is too small for one."""
    fitting = memory // (4 * capacity)
    if fitting < min(_STEP, dimension):
        least = 4 * capacity * min(_STEP, dimension) / 1e6
        raise FeddleError(
            f"method.storage: {memory / 1e6:g} MB of memory is not enough for {capacity} anchors; "
            f"set memory to {least:.3g} or more"
        )
    return dimension if fitting >= dimension else fitting - fitting % _STEP


class RowFiles:
    """The files of the rows in a folder, and the memory into which windows are read.

    Each row is written to a new file, so a file to which a checkpoint has a link never changes. The folder belongs to
    this object: files that it finds there were left by a killed process, and are removed. The folder is made when
    the first row is written, and is removed with this object.
    """

    def __init__(self, folder: Path, capacity: int, dimension: int, memory: int) -> None:
        self.folder = folder
        self.dimension = dimension
        self.paths: list[Path | None] = [None] * capacity
        self.width = window_width(capacity, dimension, memory)
        self._window: Tensor | None = None
        self._written = 0

    def put(self, row: int, vector: Tensor) -> None:
        """Write a row. A vector that a checkpoint holds in a file gets a second name instead."""
        before, path = self.paths[row], self.folder / f"{self._written}.safetensors"
        held = file_of(vector)
        try:
            self._prepare()
            write_vector(path, vector) if held is None else add_name(held, path)
        except OSError as error:
            raise self._stopped(error) from error
        self.paths[row] = path
        self._written += 1
        if before is not None:
            before.unlink(missing_ok=True)

    def window(self, rows: Sequence[bool], start: int, stop: int) -> Tensor:
        """The columns from `start` to `stop` of the first rows (m, stop − start); rows that are False are zero."""
        if self._window is None:
            self._window = torch.empty(len(self.paths) * self.width)
        window = self._window[: len(rows) * (stop - start)].view(len(rows), stop - start)

        def read(row: int) -> None:
            path = self.paths[row]
            assert path is not None
            if rows[row]:
                read_part(path, self.dimension, start, window[row])
            else:
                window[row] = 0.0

        try:
            with ThreadPoolExecutor(_READERS) as readers:
                list(readers.map(read, range(len(rows))))
        except OSError as error:
            raise StoppedError(f"cannot read the anchors in {self.folder}: {error.strerror or error}") from error
        return window

    def _prepare(self) -> None:
        if not self._written:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            remove_with(self, self.folder)

    def _stopped(self, error: OSError) -> StoppedError:
        count, size = len(self.paths), f"{len(self.paths) * 4 * self.dimension / 1e9:,.3g} GB"
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the disk"
        return StoppedError(
            f"cannot write an anchor ({count} anchors take {size}) to {self.folder}: {error.strerror}; {remedy}"
        )


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """Exact anchors in files: the first `count` rows of `files`."""

    files: RowFiles
    count: int

    @classmethod
    def empty(cls, folder: Path, capacity: int, dimension: int, memory: int) -> "StreamedRows":
        """Empty rows for `capacity` anchors in a new folder; at most `memory` bytes of them are in memory at once."""
        return cls(RowFiles(folder, capacity, dimension, memory), capacity)

    def __len__(self) -> int:
        return self.count

    def put(self, row: int, anchor: Tensor) -> None:
        self.files.put(row, anchor)

    def first(self, count: int) -> "StreamedRows":
        return StreamedRows(self.files, count)

    def saved(self, count: int) -> dict[str, Tensor]:
        """One tensor per row, mapped from its file."""
        return {str(row): map_vector(path) for row, path in enumerate(self.files.paths[:count]) if path is not None}

    def load(self, count: int, saved: Mapping[str, Tensor]) -> None:
        for row in range(count):
            self.files.put(row, row_in(saved, row))

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None = None) -> Tensor:
        """See `Anchors`. Rows whose coefficients are all zero are not read.

        It begins with the last window. `project` has just read that window, so the system may still cache it.
        """
        out = torch.empty_like(origin)
        used = coefficients.view(self.count, -1 if self.count else 1).ne(0).any(1).tolist()
        for start, stop in reversed(list(self._windows())):
            rows = FloatRows(self.files.window(used, start, stop).to(origin.device))
            out[start:stop] = rows.combine(origin[start:stop], coefficients, blocks and blocks.within(start, stop))
        return out

    def project(self, vector: Tensor, blocks: Blocks | None = None) -> Tensor:
        """See `Anchors`. The sums over windows are added from the first to the last."""
        total: Tensor | None = None
        for start, stop in self._windows():
            rows = FloatRows(self.files.window([True] * self.count, start, stop).to(vector.device))
            part = rows.project(vector[start:stop], blocks and blocks.within(start, stop))
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def _windows(self) -> Iterator[tuple[int, int]]:
        size, width = self.files.dimension, self.files.width
        return ((start, min(start + width, size)) for start in range(0, size, width))
