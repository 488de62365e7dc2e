"""Writing files that are complete even if the process or the machine stops."""

import os
import shutil
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

_AT_ONCE = 16  # syncing many files at once takes about as long as one


def write_whole(
    path: Path, content: bytes, *, sync: bool = True, private: bool = False, contested: bool = False
) -> None:
    """Replace a file atomically: if the process stops, the file has either the old or the new content.

    With `sync` this also holds if the machine stops; without, only after a call of `sync_files`. A `private` file can
    only be read by its owner. A `contested` file may be written by several processes at once; the last one wins.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial" if contested else f"{path.name}.partial")
    try:
        if private:
            partial.unlink(missing_ok=True)
            partial.touch(0o600, exist_ok=False)  # set the mode before writing, so that nobody else can open it
        with partial.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # frees space on a full disk
        raise


def remove_with(owner: object, folder: Path) -> None:
    """Remove a folder when an object is freed or the process ends; not in a forked process, which has a copy of it."""
    weakref.finalize(owner, _remove, folder, os.getpid())


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


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
    if os.name != "posix":  # other systems cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
