"""Files that a stop at any moment leaves whole."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one step: after a stop, also of the machine, there is all of it or what was there before."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # on a full disk, room for what comes next
        raise


def sync_file(path: Path) -> None:
    """Have what was written to a file on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk, not only the files' content."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
