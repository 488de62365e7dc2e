"""Keep one checked safetensors file for each data set, and fill it from the first source that answers."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from feddle.core.errors import FeddleError
from feddle.learning.decoders import JPEG_LIMIT, Arrays, Contents, Unusable, jpeg_files, read_bytes
from feddle.learning.download_progress import Teller
from feddle.learning.sources import Folder, Source


@dataclass(frozen=True)
class Spec:
    """All there is to know about a data set: what it holds, its hash, and the sources in order."""

    name: str
    title: str
    contents: Contents
    sha256: str  # of the content, see content_hash; of JPEG files, see files_hash
    megabytes: float  # of the download
    decode: Callable[[Path, Contents], Arrays]
    sources: tuple[Source, ...]
    archive: str | None = None  # the official archive that a user's folder may hold instead of its files
    advice: str | None = None  # one more way out when no source answers
    jpeg: bool = False  # whether the images are JPEG files, which Pillow decodes


def obtain(spec: Spec, cache: Path, folder: Path | None, teller: Teller) -> Arrays:
    """The arrays of a data set from the cache, or from the first source that agrees with the hash."""
    arrays = _read(spec, cache)
    if arrays is not None:
        return arrays
    if spec.jpeg and find_spec("PIL") is None:  # said before the download, not after it
        raise FeddleError(f"{spec.name} is made of JPEG files, which need Pillow; pip install 'feddle[images]'")
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


def files_hash(files: Iterable[Path]) -> str:
    """The SHA-256 over place (train/CLASS/NAME), length and bytes of JPEG files, in the order given.

    Not over their pixels: the standard lets decoders differ in the last bit, and users have other versions.
    """
    digest = hashlib.sha256()
    for path in files:
        content = read_bytes(path, limit=JPEG_LIMIT)
        digest.update(f"{'/'.join(path.parts[-3:])} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _read(spec: Spec, cache: Path) -> Arrays | None:
    """The cached arrays, or None if the file is missing, broken or not what it should be."""
    try:
        arrays = Arrays(**load_file(file_of(spec, cache)))
        with safe_open(file_of(spec, cache), framework="pt") as file:
            label = file.metadata()
    except (OSError, SafetensorError, TypeError):
        return None
    whole = label == _label(spec, arrays) if spec.jpeg else content_hash(arrays) == spec.sha256
    return arrays if whole else None


def _label(spec: Spec, arrays: Arrays) -> dict[str, str] | None:
    """What the cache notes beside decoded JPEG files: the hash of the files, and that of the pixels they gave here."""
    # One key: safetensors writes several in any order, and the same content should give the same file.
    return {"sha256": f"files {spec.sha256}, content {content_hash(arrays)}"} if spec.jpeg else None


def _write(spec: Spec, cache: Path, arrays: Arrays) -> None:
    """Put the arrays in the cache in one step, so that no reader ever sees half a file."""
    partial = cache / f".{spec.name}.partial"
    try:
        with partial.open("wb") as file:
            # Not save_file: it makes the file private, and a cache may be shared.
            file.write(save(arrays._asdict(), _label(spec, arrays)))
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
    if spec.jpeg:  # checked before decoding: Pillow sees no file that is not known
        _check(spec, files_hash(chain(*jpeg_files(files, spec.contents))))
        return spec.decode(files, spec.contents)
    arrays = spec.decode(files, spec.contents)
    _check(spec, content_hash(arrays))
    return arrays


def _check(spec: Spec, found: str) -> None:
    if found != spec.sha256:
        raise Unusable(f"its content has the SHA-256 {found[:12]}… instead of {spec.sha256[:12]}…")


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
