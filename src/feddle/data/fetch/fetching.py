"""Content that is fetched from the first origin that answers, checked, and kept in one file of the cache folder."""

import hashlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from filelock import FileLock, Timeout
from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.data.fetch.origins import Folder, Origin
from feddle.data.pictures import require_pillow
from feddle.data.source import Unusable, cache_folder, expanded

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Fetched(ABC):
    """Named tensors that are fetched once and then read from the cache: a data set, or the weights of a model."""

    folder_option: ClassVar[str]  # the config key for `folder`
    kept: ClassVar[str]  # the file in the cache folder, with {} for the name
    names: ClassVar[tuple[str, ...]] = ()  # of the tensors that are hashed first; the others follow, sorted

    name: str
    title: str
    sha256: str  # of the tensors, see `tensors_hash`; of the files if there is `files_hash`
    reader: Callable[[Path], Tensors]  # decodes a folder of official files; raises `Unusable`
    origins: tuple[Origin, ...]
    archive: str | None = None  # the official archive that a user's folder may hold instead of its files
    advice: str | None = None  # one more remedy when no origin answers
    files_hash: Callable[[Path], str] | None = None  # of JPEG or font files: decoders may differ in the last bit
    folder: Path | None = None  # a folder in which the user has the official files

    @property
    def file(self) -> Path:
        """The file in the cache folder."""
        return cache_folder() / self.kept.format(self.name)

    @abstractmethod
    def read(self, *, quiet: bool = False) -> object:
        """See `Source`."""

    @property
    def megabytes(self) -> float:
        """The size of the download, from the first origin that is not on this machine."""
        return next(origin.megabytes for origin in self.origins if not isinstance(origin, Folder))

    def missing(self) -> str | None:
        """See `Source`: what can be fetched is never missing."""
        return None

    def fetch(self, *, quiet: bool = False) -> None:
        """Fetch the content if the cache does not hold it."""
        self.read(quiet=quiet)

    def tensors(self, *, quiet: bool = False) -> Tensors:
        """The tensors from the cache, or from the first origin that has them; the user's folder comes first."""
        folder = self.folder and expanded(self.folder)
        if folder and not folder.is_dir():  # refused even when the cache has the content: it may be a typo
            option = f"{self.folder_option} (--folder)"
            raise FeddleError(f"there is no folder {self.folder} to read {self.name} from; correct or omit {option}")
        if (found := self.cached()) is not None:
            return found
        if self.files_hash:
            require_pillow(self.name)  # before the download, not after it
        cache, console = self.file.parent, Console(stderr=True, quiet=quiet, highlight=False)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _locked(FileLock(cache / f".{self.name}.lock"), self.name, console):
                # Another process may have filled the cache while this one waited.
                if (found := self.cached()) is None:
                    found = self._gather(folder, console)
                    # Not save_file: it makes the file private, and a cache may be shared.
                    write_whole(self.file, save(found, self.label(found)))
                return found
        except OSError as error:
            failed = f"cannot write {self.name} to the cache folder {cache} ({error})"
            raise FeddleError(f"{failed}; set FEDDLE_DATA to a writable folder with enough space") from error

    def is_here(self) -> bool:
        """Whether the cache holds the file; only the header and the length are checked."""
        try:
            with safe_open(self.file, framework="pt"):
                return True
        except (OSError, SafetensorError):
            return False

    def cached(self) -> Tensors | None:
        """The tensors in the cached file; None if it is missing, broken or holds something else."""
        try:
            tensors = self.ordered(load_file(self.file))
            with safe_open(self.file, framework="pt") as file:
                label = file.metadata()
        except (OSError, SafetensorError):
            return None
        whole = label == self.label(tensors) if self.files_hash else tensors_hash(tensors) == self.sha256
        return tensors if whole else None

    def _gather(self, folder: Path | None, console: Console) -> Tensors:
        """Try the origins in order, the user's folder first."""
        named = [Folder(folder, "the folder", self.archive)] if folder else []
        reasons = []
        workspace = self.file.parent / f".{self.name}.fetching"  # for the process that holds the lock
        for origin in (*named, *self.origins):
            shutil.rmtree(workspace, ignore_errors=True)  # a process that was killed may have left one
            workspace.mkdir()
            try:
                return self.decode(origin.collect(self.name, workspace, console))
            except Unusable as reason:
                reasons.append(f"{origin} ({reason})")
                if origin in named:
                    console.out(f"cannot use {origin} for {self.name}: {reason}; trying the next source")
            finally:
                shutil.rmtree(workspace, ignore_errors=True)
        found = f"the cached file {self.file} is broken and " if self.file.exists() else ""
        advice = f", or {self.advice}" if self.advice else ""
        raise FeddleError(
            f"{found}no source of {self.name} answered: {'; '.join(reasons)}. To continue, put the official files in a "
            f"folder and name it with {self.folder_option} or --folder{advice}"
        )

    def decode(self, files: Path) -> Tensors:
        """The tensors of official files in the order in which they are hashed, checked; raises `Unusable`."""
        if self.files_hash:  # checked before decoding: Pillow sees only known files
            check_hash(self.files_hash(files), self.sha256)
        tensors = self.ordered(self.reader(files))
        if not self.files_hash:
            check_hash(tensors_hash(tensors), self.sha256)
        return tensors

    def ordered(self, tensors: Tensors) -> Tensors:
        """The tensors in the order in which they are hashed."""
        first = [name for name in self.names if name in tensors]
        return {name: tensors[name].detach().contiguous() for name in (*first, *sorted(tensors.keys() - first))}

    def label(self, tensors: Tensors) -> dict[str, str]:
        """Metadata of the cached file: with `files_hash`, that hash and that of the decoded pixels."""
        # One key: safetensors writes several in any order, and the same content should give the same file.
        if self.files_hash:
            return {"sha256": f"files {self.sha256}, content {tensors_hash(tensors)}"}
        return {"format": "pt"}  # which transformers requires


def check_hash(found: str, expected: str) -> None:
    """Refuse content with another SHA-256."""
    if found != expected:
        raise Unusable(f"its content has the SHA-256 {found[:12]}… instead of {expected[:12]}…")


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, type, shape and bytes of tensors, in the order given."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        values = tensor.contiguous().numpy()
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {values.dtype.name} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()


def _locked(lock: FileLock, name: str, console: Console) -> AbstractContextManager[object]:
    """Let one process at a time fetch the content; the others wait and then find it in the cache."""
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        console.out(f"waiting for another process that fetches {name}")
        return lock.acquire()
