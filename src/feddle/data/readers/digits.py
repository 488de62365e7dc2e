"""The digits of UCI and scikit-learn: a table of text."""

from pathlib import Path

import numpy as np

from feddle.data.readers.files import Arrays, Contents, Unusable, as_images, as_labels, find_file, read_bytes, times

_FILES = ("optdigits.tes", "digits.csv", "digits.csv.gz")
_LEVELS = 16  # a pixel counts the dark points of a 4 × 4 block


def decode_digits(folder: Path, contents: Contents) -> Arrays:
    """Read the table: a line holds 64 pixels from 0 to 16 and the label; the last lines are the test set."""
    path = find_file(folder, *_FILES)
    count = contents.train + contents.test
    # A number takes at most three characters with its comma.
    text = read_bytes(path, limit=count * (64 + 1) * 3)
    try:
        table = np.array([line.split(b",") for line in text.split()], dtype=np.int64)
    except ValueError as error:
        raise Unusable(f"{path.name} is not a table of whole numbers") from error
    if table.shape != (count, 65):
        raise Unusable(f"{path.name} should hold a table of {times((count, 65))}, not {times(table.shape)}")
    pixels, labels = table[:, :64], as_labels(table[:, 64], contents.num_classes, path)
    if pixels.min() < 0 or pixels.max() > _LEVELS:
        raise Unusable(f"{path.name} should hold pixels from 0 to {_LEVELS}, not {pixels.max()}")
    images = as_images((pixels * 255 // _LEVELS).astype(np.uint8), contents.shape)
    split = contents.train
    return Arrays(images[:split], labels[:split], images[split:], labels[split:])
