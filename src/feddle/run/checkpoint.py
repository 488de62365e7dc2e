"""A checkpoint: named tensors and a few values, on disk."""

import hashlib
import json
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from feddle.core.durable import sync_files, sync_folder, write_whole
from feddle.core.errors import FeddleError
from feddle.core.tensorfile import KEY, add_name, file_of, map_vector
from feddle.reading import read_mapping
from feddle.records import json_digest
from feddle.training.kernels import count_changes

MANIFEST = "manifest.json"
_SUFFIX = ".safetensors"
_MINUTE = 60.0
_SHARED_BELOW = 4096  # bytes; smaller tensors share one file


@dataclass
class Pace:
    """When a checkpoint is due: after `every` rounds, or by default a minute after the last one.

    The wait is at least 20 times as long as the last checkpoint took, so checkpoints take at most 5 % of the run.
    """

    every: int | None
    _last: float = field(default_factory=time.perf_counter)
    _took: float = 0.0

    def due(self, rounds: int) -> bool:
        """Whether a checkpoint is due after this many rounds."""
        if self.every is None:
            return time.perf_counter() - self._last >= max(_MINUTE, 20 * self._took)
        return self.every > 0 and rounds % self.every == 0

    @contextmanager
    def making(self) -> Iterator[None]:
        """Measure how long a checkpoint takes."""
        began = time.perf_counter()
        yield
        self._last = time.perf_counter()
        self._took = self._last - began


class Checkpoint:
    """The last state that was saved to a folder.

    A file of tensors is named after the SHA-256 of its content and never changes. `manifest.json` lists the file of
    each tensor. It is replaced after all files are on the disk, and files that it does not list are removed after that.
    So whenever the process stops, either the old or the new state is complete. A tensor that has not changed since the
    last save is not written again; most pinned versions and cached updates do not change. A tensor that has a file of
    its own (`core/tensorfile.py`) is not copied: its file gets a second name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[int, tuple[weakref.ref[Tensor], int, str]] = {}  # by id: tensor, changes, file

    def save(self, state: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the saved state. If that fails, the previous state remains and partial files are removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        before = {path.name for path in self.folder.iterdir()}
        try:
            small = {name: tensor for name, tensor in state.items() if tensor.nbytes < _SHARED_BELOW}
            own = {name: tensor for name, tensor in state.items() if name not in small}
            shared = self._write({name: tensor.clone() for name, tensor in small.items()})  # they may share memory
            inodes = {(self.folder / name).stat().st_ino: name for name in before if name.endswith(_SUFFIX)}
            written = {
                name: self._link_once(tensor, inodes) or self._write_once(tensor) for name, tensor in own.items()
            }
            files = {shared, *written.values()}
            sync_files(self.folder / file for file in files - before)
            sync_folder(self.folder)
            # the file of each tensor, and its name in that file
            places = {name: (shared, name) for name in small} | {n: (file, KEY) for n, file in written.items()}
            body = {"facts": facts, "tensors": places}
            write_whole(self.folder / MANIFEST, json.dumps({**body, "sha256": json_digest(body)}).encode())
            sync_folder(self.folder)
            self._written = {
                id(tensor): self._written[id(tensor)] for tensor in own.values() if file_of(tensor) is None
            }
            self.tidy()
        except BaseException:
            self._written = {}
            with suppress(OSError, FeddleError):
                self.tidy()  # reads the manifest on disk, which may already be the new one
            raise

    def tidy(self) -> None:
        """Remove files that the manifest does not list. Those of an interrupted save may be incomplete."""
        needed = {file for file, _ in self._manifest()["tensors"].values()}
        for path in self.folder.iterdir():
            if path.suffix in (_SUFFIX, ".partial") and path.name not in needed:
                path.unlink()

    def facts(self) -> dict[str, Any] | None:
        """The facts that were saved with the tensors; None if there is no checkpoint."""
        facts: dict[str, Any] | None = self._manifest()["facts"]
        return facts

    def state(self) -> dict[str, Tensor]:
        """The saved tensors, mapped from their files after a check of each file's digest."""
        places = self._manifest()["tensors"]
        contents = {file: self._read(file) for file in sorted({file for file, _ in places.values()})}
        return {name: contents[file][inside] for name, (file, inside) in places.items()}

    def clear(self) -> None:
        """Remove the checkpoint of a finished run."""
        (self.folder / MANIFEST).unlink(missing_ok=True)  # first: without a manifest there is no checkpoint
        shutil.rmtree(self.folder, ignore_errors=True)

    def _link_once(self, tensor: Tensor, inodes: Mapping[int, str]) -> str | None:
        """The second name of a tensor's own file; None if it has none. `inodes` are the files that are here already."""
        path = file_of(tensor)
        if path is None:
            return None
        if (known := inodes.get(path.stat().st_ino)) is not None:
            return known
        file = f"{sha256_of(path)}{_SUFFIX}"
        if not (self.folder / file).exists():
            add_name(path, self.folder / file)
        return file

    def _write_once(self, tensor: Tensor) -> str:
        known, changes, file = self._written.get(id(tensor), (None, 0, ""))
        if known is not None and known() is tensor and changes == count_changes(tensor):
            return file
        file = self._write({KEY: tensor})
        self._written[id(tensor)] = (weakref.ref(tensor), count_changes(tensor), file)
        return file

    def _write(self, tensors: Mapping[str, Tensor]) -> str:
        """Write a file with these tensors, unless it exists, and return its name."""
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        file = f"{hashlib.sha256(content).hexdigest()}{_SUFFIX}"
        if not (self.folder / file).exists():
            write_whole(self.folder / file, content, sync=False)
        return file

    def _manifest(self) -> dict[str, Any]:
        """The facts, and the place of each tensor; without a checkpoint, there are no facts and no tensors."""
        if not (self.folder / MANIFEST).exists():
            return {"facts": None, "tensors": {}}
        manifest = read_mapping(self.folder / MANIFEST)
        if manifest.pop("sha256", None) != json_digest(manifest):
            raise self._damaged(MANIFEST)
        return manifest

    def _read(self, file: str) -> dict[str, Tensor]:
        path = self.folder / file
        with suppress(FileNotFoundError, SafetensorError):
            if file == f"{sha256_of(path)}{_SUFFIX}":
                tensors = load_file(path)
                return {KEY: map_vector(path)} if tensors.keys() == {KEY} else tensors
        raise self._damaged(file)

    def _damaged(self, file: str) -> FeddleError:
        return FeddleError(
            f"{self.folder / file} is missing or damaged, so the run cannot continue from its checkpoint; "
            f"remove {self.folder} to start it from the beginning"
        )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
