"""The digits of UCI and scikit-learn: a table of text."""

from pathlib import Path

import numpy as np
from torch import Tensor

from feddle.data.readers.files import Arrays, Unusable, as_tensor, find_file, read_bytes

_FILES = ("optdigits.tes", "digits.csv", "digits.csv.gz")
_LEVELS = 16  # a pixel counts the dark points of a 4 × 4 block


def decode_digits(folder: Path) -> dict[str, Tensor]:
    """A line holds 64 pixels from 0 to 16 and the label; the last fifth of the lines is the test set."""
    path = find_file(folder, *_FILES)
    try:
        rows = [line.split(b",") for line in read_bytes(path).split()]
        table = np.array(rows, dtype=np.int64).reshape(-1, 65)
    except ValueError as error:
        raise Unusable(f"{path.name} is not a table of 65 whole numbers per line") from error
    images, labels = as_tensor(table[:, :64] * 255 // _LEVELS, 1, 8, 8), as_tensor(table[:, 64])
    split = round(0.8 * len(table))
    return Arrays(images[:split], labels[:split], images[split:], labels[split:])._asdict()
