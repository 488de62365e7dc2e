"""Where content (a data set, or the weights of a model) comes from, where it is kept, and the hashes of files."""

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import platformdirs
from filelock import FileLock

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError, did_you_mean

Content = TypeVar("Content", covariant=True)
_SETTLED = 2.0  # seconds; a file that was just written may change again without a new timestamp


class Unusable(Exception):  # noqa: N818 - a reason to try the next origin, not yet an error
    """Files that cannot be used; the text is the short reason."""


class Source(Protocol[Content]):
    """Content that feddle fetches, official files that the user supplies, or the user's own data.

    No other code depends on which of the three it is.
    """

    def missing(self) -> str | None:
        """Why the content is not available on this machine and cannot be fetched; None if it is available."""

    def fetch(self, *, quiet: bool = False) -> None:
        """Download what can be downloaded, if it is not here yet."""

    def digest(self) -> str | None:
        """SHA-256 of the content; None if feddle's version and the config determine it."""

    def read(self, *, quiet: bool = False) -> Content:
        """The content; it is fetched if it is not here yet."""


def find_file(folder: Path, *names: str) -> Path:
    """The first of these files that is in the folder."""
    if not folder.is_dir():
        raise Unusable("no such folder")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise Unusable(f"it holds no {' or '.join(names)}")


def find_folder(place: Path, *names: str) -> Path:
    """The first of these folders that is in a place; the last name is the usual one."""
    for name in names:
        if (place / name).is_dir():
            return place / name
    raise Unusable(f"it holds no folder {names[-1]}")


def unknown_name(kind: str, name: str, known: Sequence[str]) -> FeddleError:
    """The error for a name that no source has."""
    hint = f"{did_you_mean(name.lower().replace('_', '-'), known)} The names are {', '.join(known)}".lstrip()
    return FeddleError(f"unknown {kind} {name!r}: {hint}")


def cache_folder() -> Path:
    """Where data sets are kept: $FEDDLE_DATA, or else the user's cache folder."""
    named = os.environ.get("FEDDLE_DATA")
    return expanded(Path(named)) if named else Path(platformdirs.user_cache_dir("feddle"))


def expanded(path: Path) -> Path:
    """The path with ~ written out."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise FeddleError(f"the path {path} refers to a user that does not exist; write the absolute path") from error


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
    with suppress(OSError):  # the cache folder may not be writable
        known.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(known.with_suffix(".lock")):  # of the processes of a grid, one reads the files
            if known.is_file():
                return known.read_text()
            found = _read_all(files, looks)
            if settled:
                write_whole(known, found.encode())
            return found
    return _read_all(files, looks)


def contents_hash(files: Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over name, length and bytes of files."""
    digest = hashlib.sha256()
    for name, content in files:
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read_all(files: Sequence[Path], looks: Sequence[tuple[str, os.stat_result]]) -> str:
    digest = hashlib.sha256()
    for path, (name, look) in zip(files, looks, strict=True):
        digest.update(os.fsencode(f"{name} {look.st_size}\n"))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
