"""The server's data: a small part guides the merge, the rest measures accuracy."""

import torch

from feddle.data import datasets
from feddle.data.examples import Examples, Images, Selection

_GUIDING = 100  # of the 359 test images; the others measure accuracy


def server_data() -> Examples:
    """The data that guides the merge."""
    return Selection(_images(), torch.arange(_GUIDING))


def held_out_data() -> Examples:
    """The data on which accuracy is measured."""
    images = _images()
    return Selection(images, torch.arange(_GUIDING, len(images)))


def _images() -> Images:
    digits = datasets.load("digits", quiet=True)
    return Images(digits.test_images, digits.test_labels, channels=1)
