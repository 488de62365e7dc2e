"""Your own data: a CSV of image files, a folder of images, a NumPy archive, a Hugging Face dataset on disk."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.fetch.hashes import files_hash, place_hash
from feddle.data.kinds import KINDS, Kind
from feddle.data.pictures import Files
from feddle.data.readers.csv import Columns, read_csv
from feddle.data.readers.folder import read_folder
from feddle.data.readers.hf import read_huggingface
from feddle.data.readers.npz import read_npz


@final
@dataclass(frozen=True)
class Own:
    """A `Source` of your own data; image files stay on disk until they are used."""

    name: Kind
    place: Path
    columns: Columns

    def missing(self) -> str | None:
        """See `Source`."""
        if self.place.exists():
            return None
        return f"there is no file or folder {self.place} to read the data from; correct data.path"

    def fetch(self, *, quiet: bool = False) -> None:
        """Do nothing: the data cannot be downloaded."""

    def digest(self) -> str:
        """See `Source`; the digest of a table includes the images that it names."""
        return _table_hash(self.place, self.columns) if self.name == "csv" else place_hash(self.place)

    def read(self, *, quiet: bool = False) -> Collection:  # noqa: ARG002 - a Source's arguments
        """See `Source`."""
        path, kind = self.place, self.name
        if reason := self.missing():
            raise FeddleError(reason)
        if path.is_dir() != (kind in ("images", "huggingface")):
            expected, found = ("file", "folder") if path.is_dir() else ("folder", "file")
            wrong = f"data.name {kind} takes a {expected}, but {path} is a {found}"
            raise FeddleError(f"{wrong}; correct data.path, or set data.name to one of {', '.join(KINDS)}")
        match kind:
            case "csv":
                return read_csv(path, self.columns)
            case "images":
                return read_folder(path)
            case "npz":
                return read_npz(path)
            case "huggingface":
                return read_huggingface(path, self.columns)


@cache
def _table_hash(path: Path, columns: Columns) -> str:
    """SHA-256 of a table and of the images that it names."""
    read = read_csv(path, columns)
    named = {
        part.images.path(i)
        for part in (read.train, read.test, read.server)
        if part is not None and isinstance(part.images, Files)
        for i in range(len(part.images))
    }
    return files_hash(path.resolve().parent, [path.resolve(), *sorted(named)])
