"""The chest X-rays: grey JPEG files in train/CLASS and test/CLASS."""

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddle.data.readers.files import Arrays, Contents, Unusable, read_bytes, times

CHEST_FOLDER = "sofiimg/datasets/pneumonia"
_LIMIT = 1 << 20  # bytes of one file; the largest has 12,433


def decode_jpegs(folder: Path, contents: Contents) -> Arrays:
    """Read the files; the classes are numbered in the order of their names."""
    train, test = jpeg_files(folder, contents)
    classes = sorted({path.parent.name for path in train})
    tensors = []
    for paths in (train, test):
        tensors.append(torch.stack([_read_jpeg(path, contents.shape) for path in paths]))
        tensors.append(torch.tensor([classes.index(path.parent.name) for path in paths]))
    return Arrays(*tensors)


def jpeg_files(folder: Path, contents: Contents) -> tuple[list[Path], list[Path]]:
    """The training files and the test files, in the order of class and name."""
    places = (folder, folder / Path(CHEST_FOLDER).name, folder / CHEST_FOLDER)
    root = next((place for place in places if (place / "train").is_dir()), None)
    if root is None:
        raise Unusable("it holds no folder train")
    # File browsers leave names that begin with a dot.
    classes = sorted(path.name for path in (root / "train").glob("[!.]*/"))
    if len(classes) != contents.num_classes:
        raise Unusable(f"train should hold {contents.num_classes} folders, one a class, but holds {len(classes)}")
    train, test = (
        [path for name in classes for path in sorted((root / split / name).glob("[!.]*.jpeg"), key=lambda p: p.name)]
        for split in ("train", "test")
    )
    for split, paths, count in (("train", train, contents.train), ("test", test, contents.test)):
        if len(paths) != count:
            raise Unusable(
                f"{split} should hold {count} .jpeg files in {' and '.join(classes)}, but holds {len(paths)}"
            )
    return train, test


def jpegs_hash(files: Iterable[Path]) -> str:
    """SHA-256 over place (train/CLASS/NAME), length and bytes of JPEG files, in the order given.

    Pixels are not hashed: the standard lets decoders differ in the last bit, and users have other versions.
    """
    digest = hashlib.sha256()
    for path in files:
        content = read_bytes(path, limit=_LIMIT)
        digest.update(f"{'/'.join(path.parts[-3:])} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _read_jpeg(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """The pixels (1, H, W) of a grey JPEG file."""
    from PIL import Image  # of the extra feddle[images], which most data sets do without

    content = read_bytes(path, limit=_LIMIT)
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            pixels = np.array(image)
    except OSError as error:
        raise Unusable(f"{path.name} is not a JPEG file that Pillow can read") from error
    if pixels.shape != shape[1:]:
        raise Unusable(f"{path.name} should hold {times(shape[1:])} grey pixels, not {times(pixels.shape)}")
    return torch.from_numpy(pixels).reshape(shape)
