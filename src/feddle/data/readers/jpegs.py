"""The chest X-rays: grey JPEG files in train/CLASS and test/CLASS."""

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddle.data.readers.files import Arrays, Unusable, read_bytes

CHEST_FOLDER = "sofiimg/datasets/pneumonia"


def decode_jpegs(folder: Path) -> dict[str, Tensor]:
    """The images of files whose hash was checked; the classes are numbered in the order of their names."""
    files = jpeg_files(folder)
    classes = sorted({path.parent.name for path in files})
    tensors = []
    for split in ("train", "test"):
        paths = [path for path in files if path.parts[-3] == split]
        tensors.append(torch.stack([_read_jpeg(path) for path in paths]))
        tensors.append(torch.tensor([classes.index(path.parent.name) for path in paths]))
    return Arrays(*tensors)._asdict()


def jpeg_files(folder: Path) -> list[Path]:
    """The training files, then the test files, in the order of class and name."""
    places = (folder, folder / Path(CHEST_FOLDER).name, folder / CHEST_FOLDER)
    root = next((place for place in places if (place / "train").is_dir()), None)
    if root is None:
        raise Unusable("it holds no folder train")
    # File browsers leave names that begin with a dot.
    found = [path for split in ("train", "test") for path in (root / split).glob("[!.]*/[!.]*.jpeg")]
    return sorted(found, key=lambda path: (path.parts[-3] == "test", path.parts[-2:]))


def jpegs_hash(files: Iterable[Path]) -> str:
    """SHA-256 over place (train/CLASS/NAME), length and bytes of JPEG files, in the order given.

    Pixels are not hashed: the standard lets decoders differ in the last bit, and users have other versions.
    """
    digest = hashlib.sha256()
    for path in files:
        content = read_bytes(path)
        digest.update(f"{'/'.join(path.parts[-3:])} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _read_jpeg(path: Path) -> Tensor:
    """The pixels (1, H, W) of a grey JPEG file."""
    from PIL import Image  # of the extra feddle[images], which most data sets do not need

    try:
        with Image.open(io.BytesIO(read_bytes(path)), formats=["JPEG"]) as image:
            return torch.from_numpy(np.array(image))[None]
    except OSError as error:
        raise Unusable(f"{path.name} is not a JPEG file that Pillow can read") from error
