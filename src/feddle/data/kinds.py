"""The kinds of your own data; apart from the code that reads them, which imports torch."""

from pathlib import Path
from typing import Literal, get_args

from feddle.core.errors import FeddleError

Kind = Literal["csv", "images", "npz", "huggingface"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDINGS: dict[str, Kind] = {".csv": "csv", ".tsv": "csv", ".npz": "npz"}


def kind_of(path: Path) -> Kind:
    """What is at a path, by its ending or by what the folder holds."""
    if path.is_dir():
        marks = ("dataset_dict.json", "dataset_info.json", "state.json")
        return "huggingface" if any((path / mark).is_file() for mark in marks) else "images"
    if not path.exists():
        raise FeddleError(f"there is no file or folder {path}; correct the path of your data")
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise FeddleError(
            f"{path} ends in {ending or 'nothing'}; your own data is a .csv, a .npz, a folder of images or a "
            "Hugging Face dataset on disk"
        )
    return ENDINGS[ending]
