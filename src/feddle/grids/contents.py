"""The SHA-256 of what a run reads: of data sets, of files that users bring, of a model of their own."""

import hashlib
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from filelock import FileLock

from feddle.core.durable import write_whole
from feddle.data import datasets, own_data
from feddle.data.kinds import KINDS
from feddle.data.official import place_of
from feddle.data.pictures import Files
from feddle.data.places import cache_folder, expanded
from feddle.data.readers.csv import Columns
from feddle.models import options as architectures
from feddle.models import weights
from feddle.run.data import is_outside
from feddle.run.models import local_folder
from feddle.run.plan import Config, Data, ServerData

_SETTLED = 2.0  # seconds; a file that was written just now may change once more without another time


def data_hashes(config: Config) -> dict[str, str]:
    """The SHA-256 of each data set of a run: of its content, or of the files that its user brought."""
    data, server = config.data, config.data.server
    hashes = {data.name: _data_hash(data)}
    if server.name is not None and is_outside(data):
        other = server.name if server.name != data.name else f"{server.name} of the server"
        hashes[other] = _data_hash(server)
    return hashes


def model_hash(config: Config) -> str | None:
    """The SHA-256 of the folder that a model comes from; None where the config and feddle say all of it."""
    match config.model:
        case architectures.Transformers(path=path) if path not in weights.TRANSFORMERS:
            return _hash_of(local_folder(path))
        case _:
            return None


def _data_hash(where: Data | ServerData) -> str:
    for entry in datasets.catalogue():
        if entry.name == where.name:
            return entry.sha256  # every load checks the content against it
    assert where.name is not None
    if where.name in KINDS:
        assert where.path is not None
        path = expanded(Path(where.path))
        return _table_hash(path, Columns(**where.columns.model_dump())) if where.name == "csv" else _hash_of(path)
    return _hash_of(place_of(where.name, None if where.folder is None else Path(where.folder)))


@cache
def _hash_of(place: Path) -> str:
    """Of a file, or of all files in a folder."""
    if place.is_file():
        return files_hash(place.parent, [place])
    return files_hash(place, sorted(path for path in place.rglob("*") if path.is_file()))


@cache
def _table_hash(path: Path, columns: Columns) -> str:
    """Of a table, and of the images that it names."""
    opened = own_data.read("csv", path, columns)
    named = {
        part.images.path(i)
        for part in (opened.train, opened.test, opened.server)
        if part is not None and isinstance(part.images, Files)
        for i in range(len(part.images))
    }
    return files_hash(path.resolve().parent, [path.resolve(), *sorted(named)])


def files_hash(base: Path, files: Sequence[Path]) -> str:
    """Over places below `base`, sizes and bytes; kept in the cache folder until a file's size or time is another."""
    looks = [(os.path.relpath(path, base), path.stat()) for path in files]
    seen = hashlib.sha256(os.fsencode(base.resolve()))
    for name, look in looks:
        # the time of the last change too: a copy may bring the size and time of what it takes the place of
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
    except OSError:  # a cache that may not be written to
        return _read_all(files, looks)


def _read_all(files: Sequence[Path], looks: Sequence[tuple[str, os.stat_result]]) -> str:
    digest = hashlib.sha256()
    for path, (name, look) in zip(files, looks, strict=True):
        digest.update(os.fsencode(f"{name} {look.st_size}\n"))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
