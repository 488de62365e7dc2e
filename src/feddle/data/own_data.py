"""Data of your own: a CSV of image files, a folder of images, a NumPy archive, a Hugging Face dataset on disk."""

from pathlib import Path

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.kinds import KINDS, Kind
from feddle.data.readers.csv import Columns
from feddle.data.readers.folder import read_csv, read_folder
from feddle.data.readers.hf import read_huggingface
from feddle.data.readers.npz import read_npz


def read(kind: Kind, path: Path, columns: Columns) -> Collection:
    """Your own data, as an index where it is image files."""
    if not path.exists():
        raise FeddleError(f"there is no file or folder {path} to read the data from; correct data.path")
    if path.is_dir() != (kind in ("images", "huggingface")):
        raise FeddleError(
            f"data.name {kind} takes a {'file' if path.is_dir() else 'folder'}, but {path} is "
            f"{'a folder' if path.is_dir() else 'a file'}; correct data.path, or set data.name to one of "
            f"{', '.join(KINDS)}"
        )
    match kind:
        case "csv":
            return read_csv(path, columns)
        case "images":
            return read_folder(path)
        case "npz":
            return read_npz(path)
        case "huggingface":
            return read_huggingface(path, columns)
