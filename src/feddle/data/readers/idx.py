"""MNIST and Fashion-MNIST: four idx files."""

from pathlib import Path

import numpy as np
from torch import Tensor

from feddle.data.readers.files import Arrays, Unusable, as_tensor, find_file, read_bytes

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def decode_idx(folder: Path) -> dict[str, Tensor]:
    """The four idx files, gzipped or not."""
    return Arrays(*(_read_idx(find_file(folder, f"{name}.gz", name)) for name in IDX_FILES))._asdict()


def _read_idx(path: Path) -> Tensor:
    """Four bytes, the last of which is the number of dimensions; the dimensions, four bytes each; then the values."""
    content = read_bytes(path)
    try:
        _, *sizes = np.frombuffer(content, ">u4", count=1 + content[3]).tolist()
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes)
        return as_tensor(values, 1, *sizes[1:]) if sizes[1:] else as_tensor(values)
    except (IndexError, ValueError) as error:
        raise Unusable(f"{path.name} is not a complete idx file") from error
