"""Kinds of user data. The readers are elsewhere, because they import torch."""

from pathlib import Path
from typing import Literal, get_args

from feddle.core.errors import FeddleError

Kind = Literal["csv", "images", "npz", "huggingface"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDINGS: dict[str, Kind] = {".csv": "csv", ".tsv": "csv", ".npz": "npz"}


def kind_of(path: Path) -> Kind:
    """The kind of the data at a path, from its ending or from the content of the folder."""
    if path.is_dir():
        marks = ("dataset_dict.json", "dataset_info.json", "state.json")
        return "huggingface" if any((path / mark).is_file() for mark in marks) else "images"
    if not path.exists():
        raise FeddleError(f"there is no file or folder {path}; correct the path of your data")
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        usual = "a .csv or .npz file, a folder of images or a Hugging Face dataset on disk"
        raise FeddleError(
            f"{path} has {f'the file extension {ending}' if ending else 'no file extension'}; expected {usual}"
        )
    return ENDINGS[ending]
