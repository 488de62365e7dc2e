"""A checkpoint: named tensors and a few facts, on disk."""

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
from feddle.training.kernels import count_changes

MANIFEST = "manifest.json"
_MINUTE = 60.0
_SHARED_BELOW = 4096  # bytes; a tensor that is smaller shares a file with others
_Place = tuple[str, str]  # the file, and the tensor's name in it


@dataclass
class Pace:
    """When a checkpoint is due: after `every` rounds, or by default a minute after the last one.

    One that took long is followed by a longer wait, so that all of them take no more than a twentieth of the run.
    """

    every: int | None
    _last: float = field(default_factory=time.perf_counter)
    _took: float = 0.0

    def due(self, rounds: int) -> bool:
        """Whether one is due after this many rounds."""
        if self.every is None:
            return time.perf_counter() - self._last >= max(_MINUTE, 20 * self._took)
        return self.every > 0 and rounds % self.every == 0

    @contextmanager
    def making(self) -> Iterator[None]:
        """One is being made."""
        began = time.perf_counter()
        yield
        self._last = time.perf_counter()
        self._took = self._last - began


class Checkpoint:
    """The last state that was saved to a folder.

    A file of tensors is named after the SHA-256 of its content and never changes. `manifest.json` says which file holds
    which tensor; it is replaced when all of them are on the disk, and only then are files removed that it does not
    name. So a stop at any moment leaves either the state before or the new one. Tensors that are the same objects as
    in the last save are not written again: of many pinned versions or cached updates, only the new ones are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[int, tuple[weakref.ref[Tensor], int, str]] = {}  # by id: the tensor, its changes, its file

    def save(self, state: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the saved state; if that fails, the one before stays, and nothing else."""
        self.folder.mkdir(parents=True, exist_ok=True)
        before = {path.name for path in self.folder.iterdir()}
        try:
            self._save(state, facts, before)
        except BaseException:
            self._written = {}
            with suppress(OSError, FeddleError):
                self.tidy()  # by the manifest that is there: the interrupt may have come just after the new one
            raise

    def _save(self, state: Mapping[str, Tensor], facts: Mapping[str, Any], before: set[str]) -> None:
        small = {name: tensor for name, tensor in state.items() if tensor.nbytes < _SHARED_BELOW}
        own = {name: tensor for name, tensor in state.items() if name not in small}
        shared = self._write({name: tensor.clone() for name, tensor in small.items()})  # no two may share memory
        written = {name: self._write_once(tensor) for name, tensor in own.items()}
        files = {shared, *written.values()}
        sync_files(self.folder / file for file in files - before)
        sync_folder(self.folder)
        places: dict[str, _Place] = {n: (shared, n) for n in small} | {n: (f, "tensor") for n, f in written.items()}
        body = {"facts": facts, "tensors": places}
        write_whole(self.folder / MANIFEST, json.dumps({**body, "sha256": _digest(body)}).encode())
        sync_folder(self.folder)
        self._written = {id(tensor): self._written[id(tensor)] for tensor in own.values()}
        self._sweep(files)

    def tidy(self) -> None:
        """Remove what a save that was stopped has left: it may not be whole."""
        manifest = self._manifest()
        self._sweep(set() if manifest is None else {file for file, _ in manifest["tensors"].values()})

    def facts(self) -> dict[str, Any] | None:
        """What was saved beside the tensors; None if nothing was saved."""
        return None if (manifest := self._manifest()) is None else manifest["facts"]

    def state(self) -> dict[str, Tensor]:
        """The saved tensors, mapped from their files, which are checked."""
        manifest = self._manifest()
        assert manifest is not None
        contents = {file: self._read(file) for file in sorted({file for file, _ in manifest["tensors"].values()})}
        return {name: contents[file][inside] for name, (file, inside) in manifest["tensors"].items()}

    def clear(self) -> None:
        """Remove it: the run is finished."""
        (self.folder / MANIFEST).unlink(missing_ok=True)  # first: without it, what is left is no checkpoint
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_once(self, tensor: Tensor) -> str:
        known, changes, file = self._written.get(id(tensor), (None, 0, ""))
        if known is not None and known() is tensor and changes == count_changes(tensor):
            return file
        file = self._write({"tensor": tensor})
        self._written[id(tensor)] = (weakref.ref(tensor), count_changes(tensor), file)
        return file

    def _write(self, tensors: Mapping[str, Tensor]) -> str:
        """The name of the file with these tensors, written unless it is there."""
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        file = f"{hashlib.sha256(content).hexdigest()}.safetensors"
        if not (self.folder / file).exists():
            write_whole(self.folder / file, content, sync=False)
        return file

    def _sweep(self, needed: set[str]) -> None:
        for path in self.folder.iterdir():
            if path.suffix in (".safetensors", ".partial") and path.name not in needed:
                path.unlink()

    def _manifest(self) -> dict[str, Any] | None:
        try:
            manifest: Any = json.loads((self.folder / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(MANIFEST) from error
        match manifest:
            case {"facts": dict(), "tensors": dict(), "sha256": str() as digest, **more} if not more:
                body = {"facts": manifest["facts"], "tensors": manifest["tensors"]}
                if digest == _digest(body):
                    return body
        raise self._damaged(MANIFEST)

    def _read(self, file: str) -> dict[str, Tensor]:
        try:
            with (self.folder / file).open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if file != f"{digest}.safetensors":
                raise self._damaged(file)
            return load_file(self.folder / file)
        except (FileNotFoundError, SafetensorError) as error:
            raise self._damaged(file) from error

    def _damaged(self, file: str) -> FeddleError:
        return FeddleError(
            f"{self.folder / file} is missing or damaged, so the run cannot go on from its checkpoint; "
            f"remove {self.folder} to have it start from the beginning"
        )


def _digest(body: Mapping[str, Any]) -> str:
    """Of what a manifest says, so that a change to it is noticed."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
