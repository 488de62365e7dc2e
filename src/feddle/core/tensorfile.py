"""Vectors in separate files, in the format of safetensors. A part of a vector can be read.

A file is written once and never changed. A checkpoint gives it a second name (a hard link) instead of copying it.
"""

import json
import os
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

KEY = "tensor"  # the name of the vector in its file
_ALIGNED = 64  # bytes; numbers begin at a multiple of this


def write_vector(path: Path, vector: Tensor) -> None:
    """Write a float32 vector (d,) to a new file. If that fails, no file is left."""
    content = vector.detach().cpu().contiguous().numpy()
    try:
        with path.open("xb") as file:
            file.write(_header(len(vector)))
            file.write(content.data)
    except BaseException:
        path.unlink(missing_ok=True)  # frees space on a full disk
        raise


def read_part(path: Path, size: int, start: int, out: Tensor) -> None:
    """Fill `out`, which is contiguous, with the numbers from `start` on of a vector of this size."""
    with path.open("rb", buffering=0) as file:
        file.seek(len(_header(size)) + 4 * start)
        rest = out.numpy().data.cast("B")
        while rest:
            done = file.readinto(rest)
            if not done:
                raise OSError(f"{path} ends before its vector does")
            rest = rest[done:]


def map_vector(path: Path) -> Tensor:
    """The vector in a file. Its numbers are read when they are used, and `file_of` returns the path."""
    vector = load_file(path)[KEY]
    vector.feddle_file = path  # type: ignore[attr-defined]
    return vector


def file_of(tensor: Tensor) -> Path | None:
    """The file that holds exactly this tensor; None if it was not mapped from one."""
    path: Path | None = getattr(tensor, "feddle_file", None)
    return path


def add_name(path: Path, name: Path) -> None:
    """Give a file a second name (a hard link). On a file system without hard links, copy the file."""
    try:
        os.link(path, name)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        partial = name.with_name(f"{name.name}.partial")
        try:
            with path.open("rb") as source, partial.open("wb") as target:
                while piece := source.read(2**24):
                    target.write(piece)
            partial.replace(name)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _header(size: int) -> bytes:
    """The beginning of a safetensors file with one float32 vector: a length, and JSON padded with spaces."""
    about = {KEY: {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text
