"""Fill one file of a cache from the first source that answers: one process at a time, and in one step."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import FileLock, Timeout
from torch import Tensor

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.data.fetch.progress import Teller
from feddle.data.fetch.sources import Folder, Source
from feddle.data.readers.decoders import Unusable

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Wanted(Generic[T]):
    """What is to be had: its file in the cache, the sources in order, and how their files are understood."""

    name: str
    file: Path
    sources: tuple[Source, ...]
    read: Callable[[], T | None]  # from the cached file; None if it is missing, broken or not what it should be
    decode: Callable[[Path], T]  # from a source's folder, checked; Unusable if it is not what it should be
    pack: Callable[[T], bytes]  # the content of the cached file
    folder_option: str  # how the user names a folder
    archive: str | None = None  # the official archive that a user's folder may hold instead of its files
    advice: str | None = None  # one more way out when no source answers


def obtain(wanted: Wanted[T], folder: Path | None, teller: Teller) -> T:
    """What is wanted, from the cache or from the first source that gives it; the user's folder comes first."""
    found = wanted.read()
    if found is not None:
        return found
    cache = wanted.file.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(wanted, teller):
            # Another process may have filled the cache while this one waited.
            found = wanted.read()
            if found is None:
                found = _gather(wanted, folder, teller)
                write_whole(wanted.file, wanted.pack(found))
    except OSError as error:
        raise FeddleError(
            f"cannot write {wanted.name} to the cache folder {cache} ({error}): "
            "set FEDDLE_DATA to a folder with room that you may write to"
        ) from error
    return found


def check_hash(found: str, expected: str) -> None:
    """Refuse content that is not what it should be."""
    if found != expected:
        raise Unusable(f"its content has the SHA-256 {found[:12]}… instead of {expected[:12]}…")


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 over name, type, shape and bytes of tensors, in the order given."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        values = tensor.contiguous().numpy()
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {values.dtype.name} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()


def _gather(wanted: Wanted[T], folder: Path | None, teller: Teller) -> T:
    """Try the sources in order, the user's folder first."""
    named = Folder(folder, "the folder", wanted.archive) if folder else None
    reasons = []
    for source in (named, *wanted.sources) if named else wanted.sources:
        try:
            with _workspace(wanted) as workspace:
                return wanted.decode(source.collect(wanted.name, workspace, teller))
        except Unusable as reason:
            reasons.append(f"{source.words} ({reason})")
            if source is named:
                teller.say(f"{source.words} is of no use for {wanted.name}: {reason}; trying the next source")
    raise FeddleError(_no_answer(wanted, reasons))


def _no_answer(wanted: Wanted[Any], reasons: list[str]) -> str:
    """The error when every source failed: each with its reason, and the ways out."""
    found = f"the cached file {wanted.file} is broken and " if wanted.file.exists() else ""
    ways = [f"put the official files in a folder and name it with {wanted.folder_option} or --folder"]
    ways += [wanted.advice] if wanted.advice else []
    return f"{found}no source of {wanted.name} answered: {'; '.join(reasons)}. To go on, {', or '.join(ways)}"


@contextmanager
def _workspace(wanted: Wanted[Any]) -> Iterator[Path]:
    """An empty folder beside the cached file, for the holder of the lock; it goes whatever happens."""
    path = wanted.file.parent / f".{wanted.name}.fetching"
    # A process that was killed may have left one.
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(wanted: Wanted[Any], teller: Teller) -> Iterator[None]:
    """Let one process at a time fetch it; the others wait and then find it."""
    lock = FileLock(wanted.file.parent / f".{wanted.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        teller.say(f"waiting for another process that fetches {wanted.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
