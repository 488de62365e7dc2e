"""Keep one checked safetensors file for each data set, and fill it from the first source that answers."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from feddle.core.errors import FeddleError
from feddle.learning.decoders import Arrays, Contents, Unusable
from feddle.learning.download_progress import Teller
from feddle.learning.sources import Folder, Source


@dataclass(frozen=True)
class Spec:
    """All there is to know about a data set: what it holds, its hash, and the sources in order."""

    name: str
    title: str
    contents: Contents
    sha256: str  # of the content, see content_hash
    megabytes: float  # of the download
    decode: Callable[[Path, Contents], Arrays]
    sources: tuple[Source, ...]
    archive: str | None = None  # the official archive that a user's folder may hold instead of its files
    advice: str | None = None  # one more way out when no source answers


def obtain(spec: Spec, cache: Path, folder: Path | None, teller: Teller) -> Arrays:
    """The arrays of a data set from the cache, or from the first source that agrees with the hash."""
    arrays = _read(spec, cache)
    if arrays is not None:
        return arrays
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(spec, cache, teller):
            # Another process may have filled the cache while this one waited.
            arrays = _read(spec, cache)
            if arrays is None:
                arrays = _gather(spec, cache, folder, teller)
                _write(spec, cache, arrays)
    except OSError as error:
        raise FeddleError(
            f"cannot write {spec.name} to the cache folder {cache} ({error}): "
            "set FEDDLE_DATA to a folder with room that you may write to"
        ) from error
    return arrays


def file_of(spec: Spec, cache: Path) -> Path:
    """Where the cache keeps a data set."""
    return cache / f"{spec.name}.safetensors"


def looks_whole(spec: Spec, cache: Path) -> bool:
    """Whether the cache holds a file of the right arrays; only the header and the length are checked."""
    try:
        with safe_open(file_of(spec, cache), framework="pt") as file:
            return set(file.keys()) == set(Arrays._fields)
    except (OSError, SafetensorError):
        return False


def content_hash(arrays: Arrays) -> str:
    """The SHA-256 over name, type, shape and bytes of the four arrays, in the order of Arrays."""
    digest = hashlib.sha256()
    for field, tensor in zip(Arrays._fields, arrays, strict=True):
        values = tensor.contiguous().numpy()
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{field} {values.dtype.name} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()


def _read(spec: Spec, cache: Path) -> Arrays | None:
    """The cached arrays, or None if the file is missing, broken or not what it should be."""
    try:
        arrays = Arrays(**load_file(file_of(spec, cache)))
    except (OSError, SafetensorError, TypeError):
        return None
    return arrays if content_hash(arrays) == spec.sha256 else None


def _write(spec: Spec, cache: Path, arrays: Arrays) -> None:
    """Put the arrays in the cache in one step, so that no reader ever sees half a file."""
    partial = cache / f".{spec.name}.partial"
    try:
        with partial.open("wb") as file:
            # Not save_file: it makes the file private, and a cache may be shared.
            file.write(save(arrays._asdict()))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(file_of(spec, cache))
    finally:
        partial.unlink(missing_ok=True)


def _gather(spec: Spec, cache: Path, folder: Path | None, teller: Teller) -> Arrays:
    """Try the sources in order, the user's folder first."""
    named = Folder(folder, "the folder", spec.archive) if folder else None
    reasons = []
    for source in (named, *spec.sources) if named else spec.sources:
        try:
            with _workspace(spec, cache) as workspace:
                return _collect(spec, source, workspace, teller)
        except Unusable as reason:
            reasons.append(f"{source.words} ({reason})")
            if source is named:
                teller.say(f"{source.words} is of no use for {spec.name}: {reason}; trying the next source")
    raise FeddleError(_no_answer(spec, cache, reasons))


def _collect(spec: Spec, source: Source, workspace: Path, teller: Teller) -> Arrays:
    """The arrays of one source, decoded and checked."""
    files = source.collect(spec.name, workspace, teller)
    arrays = spec.decode(files, spec.contents)
    found = content_hash(arrays)
    if found != spec.sha256:
        raise Unusable(f"its content has the SHA-256 {found[:12]}… instead of {spec.sha256[:12]}…")
    return arrays


def _no_answer(spec: Spec, cache: Path, reasons: list[str]) -> str:
    """The error when every source failed: each with its reason, and the ways out."""
    broken = file_of(spec, cache)
    found = f"the cached file {broken} is broken and " if broken.exists() else ""
    ways = ["put the official files in a folder and name it with data.folder or --folder"]
    ways += [spec.advice] if spec.advice else []
    return f"{found}no source of {spec.name} answered: {'; '.join(reasons)}. To go on, {', or '.join(ways)}"


@contextmanager
def _workspace(spec: Spec, cache: Path) -> Iterator[Path]:
    """An empty folder beside the cached file, for the holder of the lock; it goes whatever happens."""
    path = cache / f".{spec.name}.fetching"
    # A process that was killed may have left one.
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(spec: Spec, cache: Path, teller: Teller) -> Iterator[None]:
    """Let one process at a time fetch a data set; the others wait and then find it."""
    lock = FileLock(cache / f".{spec.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        teller.say(f"waiting for another process that fetches {spec.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
