"""The model of a finished run: loading it, and predicting with it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from feddle.core.batches import in_order
from feddle.core.errors import FeddleError, one_line
from feddle.data.collection import Inputs, Labelled
from feddle.data.kinds import ENDINGS
from feddle.data.pictures import ENDINGS as IMAGES
from feddle.data.pictures import Files, require_pillow
from feddle.data.readers.csv import read_image_paths, read_texts
from feddle.data.readers.folder import read_all_images
from feddle.data.readers.npz import read_images
from feddle.models.transformers import Classifier
from feddle.reading import read_result
from feddle.records import MODEL
from feddle.run.folder import RunFolder
from feddle.run.load import started_in
from feddle.run.problem import build_examples, build_model


@dataclass(frozen=True)
class Prediction:
    """The most probable class of an image or a text: its name, and its probability."""

    image: str  # its path, or its number in an array; of a text, the text
    class_name: str
    probability: float


def load_model(run: Path | str, model: nn.Module | None = None) -> nn.Module:
    """The trained model of the folder `run`, in eval mode. Its attribute `class_names` has the names of its classes.

    The folder of `feddle.simulate` or of a federation does not say how to make its model. For such a folder, pass a
    `model` of the same shape, which gets the weights.
    """
    path = Path(run)
    kind = started_in(path)
    if model is None and kind in ("simulation", "federation"):
        remedy = f"pass it in Python: feddle.load_model({str(path)!r}, model)"
        raise FeddleError(f"{path} holds a {kind}, which does not say how to make its model; {remedy}")
    if read_result(path).get("method") == "local":
        raise FeddleError(f"{path}: local trains one model per client and saves none; name a run of another method")
    state, names = read_weights(path / MODEL)
    if model is None:
        config = RunFolder(path).config()
        if not names:
            raise FeddleError(f"{path / MODEL} has no class names; run {path} again with this version of feddle")
        model = build_model(config, len(names), quiet=True)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = one_line(" ".join(str(error).split()), 200)
        raise FeddleError(
            f"the weights in {path} belong to another model ({reason}); pass a model with the same layers"
        ) from error
    model.class_names = tuple(names)  # type: ignore[assignment]
    return model.eval()


def read_weights(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The weights in a file, and the names of the classes; nothing is unpickled."""
    if not path.is_file():
        raise FeddleError(f"there is no model {path}; name a folder of `feddle run` that has one")
    try:
        with safe_open(path, framework="pt") as file:
            names = json.loads((file.metadata() or {}).get("classes", "[]"))
            return {name: file.get_tensor(name) for name in file.keys()}, [str(name) for name in names]  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise FeddleError(f"cannot read the model {path} ({one_line(str(error))}); run it again") from error


@torch.no_grad()
def predict(run: Path | str, path: Path | str, batch_size: int = 250) -> list[Prediction]:
    """The most probable class of each image or text at `path`, by the model of the folder `run`.

    `path` is an image file, a folder of images, a CSV file with a column of paths, or an .npz file with an array
    `images`. If the model is for text, it is a CSV file with a column of texts. `batch_size` images are in memory at a
    time.
    """
    model: Any = load_model(run)
    config = RunFolder(Path(run)).config()
    names: Sequence[str]
    images: Inputs
    if isinstance(model, Classifier) and model.inputs is None:  # it is for text
        images = read_texts(Path(path), config.data.columns.text)
        names = images.texts
    else:
        names, images = _open(Path(path), config.data.columns.image)
    labels = torch.zeros(len(names), dtype=torch.int64)
    examples = build_examples(Labelled(images, labels), labels, config, str(path), lazily=True)
    found: list[tuple[int, float]] = []
    for index in in_order(len(names), batch_size):
        best = model(examples.take(index)[0]).softmax(1).max(1)
        found += zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Prediction(name, model.class_names[at], value) for name, (at, value) in zip(names, found, strict=True)]


def _open(path: Path, column: str | None) -> tuple[Sequence[str], Tensor | Files]:
    """The names of the images at a path, and the images."""
    ending = path.suffix.lower()
    if path.is_dir():
        files = read_all_images(path)
    elif not path.is_file():
        raise FeddleError(f"there is no file or folder {path}; check the path of the images")
    elif ENDINGS.get(ending) == "npz":
        pixels = read_images(path)
        return [str(number) for number in range(len(pixels))], pixels
    elif ENDINGS.get(ending) == "csv":
        files = read_image_paths(path, column)
    elif ending in IMAGES:
        require_pillow(str(path))
        files = Files.of(path.resolve().parent, [path.name])
    else:
        found = f"the file extension {ending}" if ending else "no file extension"
        raise FeddleError(f"{path} has {found}; expected an image, a folder, a .csv or an .npz file")
    return [str(files.path(i)) for i in range(len(files))], files
