"""The server's data: a little that guides the merge, and some that measures accuracy."""

import torch

from feddle.data import datasets
from feddle.data.examples import Examples, Images, Selection

_GUIDING = 100  # of the 359 test images; the others measure accuracy


def server_data() -> Examples:
    """What guides the merge."""
    return Selection(_images(), torch.arange(_GUIDING))


def held_out_data() -> Examples:
    """What accuracy is measured on."""
    images = _images()
    return Selection(images, torch.arange(_GUIDING, len(images)))


def _images() -> Images:
    digits = datasets.load("digits", quiet=True)
    return Images(digits.test_images, digits.test_labels, channels=1)
