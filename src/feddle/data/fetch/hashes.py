"""The SHA-256 of files that users bring, remembered in the cache folder."""

import hashlib
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from filelock import FileLock

from feddle.core.durable import write_whole
from feddle.data.source import cache_folder

_SETTLED = 2.0  # seconds; a file that was written just now may change once more without another time


@cache
def place_hash(place: Path) -> str:
    """SHA-256 of a file, or of all files in a folder."""
    if place.is_file():
        return files_hash(place.parent, [place])
    return files_hash(place, sorted(path for path in place.rglob("*") if path.is_file()))


def files_hash(base: Path, files: Sequence[Path]) -> str:
    """SHA-256 over paths relative to `base`, sizes and bytes; remembered until a size or time changes."""
    looks = [(os.path.relpath(path, base), path.stat()) for path in files]
    seen = hashlib.sha256(os.fsencode(base.resolve()))
    for name, look in looks:
        # ctime too: a copy may have the size and mtime of the file that it replaces
        seen.update(os.fsencode(f"\n{name} {look.st_size} {look.st_mtime_ns} {look.st_ctime_ns}"))
    known = cache_folder() / "hashes" / seen.hexdigest()
    settled = all(time.time() - look.st_mtime > _SETTLED for _, look in looks)
    try:
        known.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(known.with_suffix(".lock")):  # of the processes of a grid, one reads the files
            if known.is_file():
                return known.read_text()
            found = _read_all(files, looks)
            if settled:
                write_whole(known, found.encode())
            return found
    except OSError:  # the cache folder is not writable
        return _read_all(files, looks)


def _read_all(files: Sequence[Path], looks: Sequence[tuple[str, os.stat_result]]) -> str:
    digest = hashlib.sha256()
    for path, (name, look) in zip(files, looks, strict=True):
        digest.update(os.fsencode(f"{name} {look.st_size}\n"))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
