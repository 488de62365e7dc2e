"""Keep one checked safetensors file for each data set, and fill it from the first source that answers."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from feddle.core.errors import FeddleError
from feddle.data.fetch import fetching
from feddle.data.fetch.fetching import Wanted, check_hash, tensors_hash
from feddle.data.fetch.progress import Teller
from feddle.data.fetch.sources import Source
from feddle.data.readers.decoders import JPEG_LIMIT, Arrays, Contents, jpeg_files, read_bytes


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
    if spec.jpeg and find_spec("PIL") is None and _read(spec, cache) is None:  # said before the download, not after it
        raise FeddleError(f"{spec.name} is made of JPEG files, which need Pillow; pip install 'feddle[images]'")
    return fetching.obtain(_wanted(spec, cache), folder, teller)


def _wanted(spec: Spec, cache: Path) -> Wanted[Arrays]:
    return Wanted(
        spec.name,
        file_of(spec, cache),
        spec.sources,
        read=partial(_read, spec, cache),
        decode=partial(_decode, spec),
        # Not save_file: it makes the file private, and a cache may be shared.
        pack=lambda arrays: save(arrays._asdict(), _label(spec, arrays)),
        folder_option="data.folder",
        archive=spec.archive,
        advice=spec.advice,
    )


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
    return tensors_hash(arrays._asdict())


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


def _decode(spec: Spec, files: Path) -> Arrays:
    """The arrays of one source, checked."""
    if spec.jpeg:  # checked before decoding: Pillow sees no file that is not known
        check_hash(files_hash(chain(*jpeg_files(files, spec.contents))), spec.sha256)
        return spec.decode(files, spec.contents)
    arrays = spec.decode(files, spec.contents)
    check_hash(content_hash(arrays), spec.sha256)
    return arrays
