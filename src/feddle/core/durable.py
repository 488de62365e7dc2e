"""Files that a stop at any moment leaves whole."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_AT_ONCE = 16  # a disk makes many files safe in the time that it takes for one


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write a file in one step: after a stop there is all of it or what was there before.

    With `sync` that holds also when the machine stops; without, only once `sync_files` was called.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(content)
        if sync:
            sync_file(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # on a full disk, room for what comes next
        raise


def sync_file(path: Path) -> None:
    """Have what was written to a file on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_files(paths: Iterable[Path]) -> None:
    """Have what was written to these files on the disk."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(sync_file, paths))


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk, not only the files' content."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
