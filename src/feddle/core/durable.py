"""Files that are complete whenever the process or the machine stops."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

_AT_ONCE = 16  # a disk syncs many files in the time of one


def write_whole(
    path: Path, content: bytes, *, sync: bool = True, private: bool = False, contested: bool = False
) -> None:
    """Replace a file in one step: after a stop it has all of the new content or all of the old.

    With `sync` this also holds when the machine stops; without, only after a call of `sync_files`. A `private` file can
    only be read by its owner. A `contested` file may be written by several processes at once; the last one wins.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial" if contested else f"{path.name}.partial")
    try:
        if private:
            partial.unlink(missing_ok=True)
            partial.touch(0o600, exist_ok=False)  # before the content: nobody else can open it in between
        with partial.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # on a full disk, room for the next file
        raise


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until the content of these files is on the disk."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(sync_file, paths))


def sync_folder(path: Path) -> None:
    """Wait until the names of the files in a folder are on the disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
