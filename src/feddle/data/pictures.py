"""Image files: only their names are in memory. Images are decoded when used, and kept if the memory limit allows."""

import io
import math
import mmap
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddle.core.errors import FeddleError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")


@dataclass(frozen=True, eq=False)
class Files:
    """Image files below a folder.

    Their names are one array of bytes: a million Python strings would be several times as large, and every worker would
    copy their pages when it touches them.
    """

    root: Path
    names: "np.ndarray[tuple[int], np.dtype[np.bytes_]]"

    @classmethod
    def of(cls, root: Path, names: Sequence[str]) -> "Files":
        """The files of these names, relative to the folder or absolute."""
        return cls(root, np.array([os.fsencode(name) for name in names], dtype=np.bytes_))

    def __len__(self) -> int:
        return len(self.names)

    def select(self, index: Tensor) -> "Files":
        """Some of them."""
        return Files(self.root, self.names[index.numpy()])

    def path(self, index: int) -> Path:
        """The path of one of them."""
        return self.root / os.fsdecode(self.names[index])

    def decode(self, index: int, size: int, channels: int) -> Tensor:
        """One of them as bytes (channels, size, size)."""
        path = self.path(index)
        return decode_picture(path, size, channels, str(path))

    def require(self) -> "Files":
        """The same files; a name without a regular file is an error, before a run starts."""
        root = os.fsencode(self.root)
        missing = [i for i, name in enumerate(self.names) if not os.path.isfile(os.path.join(root, name))]  # noqa: PTH113, PTH118
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise FeddleError(f"there is no image file {self.path(missing[0])}{more}; correct its path or leave it out")
        return self


@dataclass(frozen=True, eq=False)
class Stored:
    """Images inside a Hugging Face dataset, as the files that were put there."""

    dataset: Any
    column: str
    rows: Tensor
    name: str

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, index: Tensor) -> "Stored":
        """Some of them."""
        return Stored(self.dataset, self.column, self.rows[index], self.name)

    def decode(self, index: int, size: int, channels: int) -> Tensor:
        """One of them as bytes (channels, size, size)."""
        row = int(self.rows[index])
        held, title = self.dataset[row][self.column], f"in row {row} of {self.name}"
        if held is None:
            raise FeddleError(f"there is no image {title}; leave that row out")
        source = Path(held["path"]) if held["bytes"] is None else io.BytesIO(held["bytes"])
        return decode_picture(source, size, channels, title)


Pictures = Files | Stored  # images that stay on disk until they are used


def require_pillow(name: str) -> None:
    """Raise an error if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise FeddleError(f"{name} is made of image files, which need Pillow; pip install 'feddle[images]'") from error


def decode_picture(source: Path | io.BytesIO, size: int, channels: int, name: str) -> Tensor:
    """An image file as bytes (channels, size, size): grey or in colour, resized bilinearly with antialiasing."""
    from PIL import Image

    if isinstance(source, Path) and not source.is_file():  # opening a named pipe would block
        raise FeddleError(f"the image {name} is not a regular file, or it is missing; leave it out")
    try:
        # The warnings are about images that can still be decoded. An image that cannot be decoded is an error.
        with warnings.catch_warnings(action="ignore"), Image.open(source) as image:
            if image.mode[0] in "IF":
                raise ValueError("it has more than 8 bits per channel; save it with 8")
            mode = "L" if channels == 1 else "RGB"
            image.draft(mode, (2 * size, 2 * size))  # decodes a JPEG no larger than needed
            shown = image.convert(mode).resize((size, size), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(shown))
    except Exception as error:  # a broken file can make a decoder raise nearly anything
        reason = str(error).replace(f" {name!r}", "")
        raise FeddleError(f"cannot read the image {name} ({reason}); repair it or leave it out") from error
    return pixels.reshape(size, size, channels).permute(2, 0, 1)


@dataclass(frozen=True, eq=False)
class KeptPictures:
    """The bytes of pictures, indexed as a tensor (n, channels, size, size) would be.

    The first pictures are kept once they are decoded, as many as fit; the others are decoded each time. The memory is
    shared by all workers, and pages that were never written take no room.
    """

    pictures: Pictures
    kept: Tensor  # bytes (room, channels, size, size)
    there: Tensor  # (room,): whether each of these was decoded

    @classmethod
    def of(cls, pictures: Pictures, channels: int, size: int, limit: int) -> "KeptPictures":
        """Pictures of which at most `limit` bytes are kept."""
        shape = (channels, size, size)
        room = min(len(pictures), limit // math.prod(shape))
        return cls(pictures, _shared(room, *shape), _shared(room))

    def __getitem__(self, index: Tensor) -> Tensor:
        room, channels, size, _ = self.kept.shape
        known = index < room
        known[known.clone()] = self.there[index[known]].bool()
        pixels = torch.empty((len(index), channels, size, size), dtype=torch.uint8)
        pixels[known] = self.kept[index[known]]
        for row in (~known).nonzero().flatten().tolist():
            i = int(index[row])
            pixels[row] = self.pictures.decode(i, size, channels)
            if i < room:  # two workers may write the same image, with the same bytes
                self.kept[i] = pixels[row]
                self.there[i] = 1  # last, so that no worker reads half an image
        return pixels


def _shared(*shape: int) -> Tensor:
    size = math.prod(shape)
    return torch.frombuffer(mmap.mmap(-1, size + 1), dtype=torch.uint8)[:size].reshape(shape)  # mmap refuses 0 bytes
