"""ISIC 2019: photos of skin lesions, and a CSV table of diagnoses."""

from pathlib import Path

import numpy as np
import torch

from feddle.data.collection import Collection, Labelled, divided
from feddle.data.pictures import Files, require_pillow
from feddle.data.readers.csv import read_table
from feddle.data.readers.files import Unusable, find_file


def read_isic(place: Path) -> Collection:
    """A line of the table has a 1 for its diagnosis; a diagnosis without images (UNK) is no class."""
    require_pillow("isic-2019")
    table = find_file(place, "ISIC_2019_Training_GroundTruth.csv")
    header, lines = read_table(table)
    rows = [row for _, row in lines]
    try:
        truth = np.array([[float(value) for value in row[1:]] for row in rows])
    except ValueError as error:
        raise Unusable(f"{table.name} should hold numbers after the image's name") from error
    if header[0] != "image" or truth.shape[1] < 2:
        raise Unusable(f"{table.name} should have a column image, then one for each diagnosis")
    named = (truth == 1).sum(axis=1)
    if not (named == 1).all():
        raise Unusable(f"{table.name} should name one diagnosis for {rows[int((named != 1).argmax())][0]}")
    used = truth.any(axis=0)
    labels = torch.from_numpy(truth[:, used].argmax(axis=1))
    inside = place / "ISIC_2019_Training_Input"
    folder = inside / inside.name if (inside / inside.name).is_dir() else inside
    files = Files.of(folder.resolve(), [f"{row[0]}.jpg" for row in rows])
    files.require()
    return divided("isic-2019", Labelled(files, labels), None, int(used.sum()))
