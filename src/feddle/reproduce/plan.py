"""What of a grid can be run here: the config of each cell, or the reason why it is left out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from feddle.core.errors import FeddleError
from feddle.experiment import architectures
from feddle.experiment.config import Config
from feddle.experiment.load import parse_config
from feddle.learning import datasets, weights
from feddle.learning.official import place_of
from feddle.reproduce.grid import Cell

_HOW = ("seed", "workers", "checkpoint")  # what a config says of how it is run, not of what
_PLACES = ("folder", *_HOW)  # keys that do not make a cell another one
_TITLES = {"imagenet": "ImageNet"}


@dataclass(frozen=True)
class Planned:
    """A cell as it can be run here."""

    cell: Cell
    config: Config | None  # for seed 0
    reason: str = ""  # why it is left out
    substitute: str = ""  # what stands in for what the paper used, in words
    changed: tuple[str, ...] = ()  # what the user set to another value than the table's

    def with_seed(self, seed: int, workers: int | None) -> Config:
        """The config of one of its runs; the number of workers does not change what comes of it."""
        assert self.config is not None
        return self.config.model_copy(update={"seed": seed, "workers": workers})


def plan(cell: Cell, overrides: Sequence[str] = ()) -> Planned:
    """Ask the config loader and the data catalogue whether a cell can be had."""
    tree, guide = dict(cell.tree), None
    if cell.outside:
        guide = next((name for name in cell.outside if missing(name) is None), cell.outside[0])
        server = {k: v for k, v in tree["data"]["server"].items() if k != "samples"}
        # of ImageNet the paper takes 250,000 images, of what stands in for it all
        samples = {"samples": 250_000} if guide == "imagenet" else {}
        tree["data"] = {**tree["data"], "server": {**server, "name": guide, **samples}}
    try:
        config = parse_config(tree, overrides)
    except FeddleError as error:
        return Planned(cell, None, str(error).removeprefix("config: "))
    changed = tuple(text for text in overrides if not text.partition("=")[0].endswith(_PLACES))
    planned = Planned(cell, config, substitute=_substitute(cell, guide), changed=changed)
    reasons = [_missing_model(config.model), *(missing(name, folder) for name, folder in data_of(planned))]
    reason = next((reason for reason in reasons if reason), "")
    return Planned(cell, None, reason) if reason else planned


def data_of(planned: Planned) -> list[tuple[str, str | None]]:
    """The data sets of a cell, each with the folder that its files are said to be in."""
    if planned.config is None:
        return []
    data = planned.config.data
    guides = [] if data.server.name is None else [(data.server.name, data.server.folder)]
    return [(data.name, data.folder), *guides]


def get(name: str, folder: str | None, *, quiet: bool) -> None:
    """Have a data set here before runs begin, if it is one that can be fetched."""
    if any(entry.name == name for entry in datasets.catalogue()):
        datasets.fetch(name, folder=None if folder is None else Path(folder), quiet=quiet)


def _substitute(cell: Cell, guide: str | None) -> str:
    if guide is None or guide == cell.outside[0]:
        return ""
    return f"{title(guide)} guides in place of {title(cell.outside[0])}"


def missing(name: str, folder: str | None = None) -> str | None:
    """Why a data set cannot be had here, or None; files that users bring are looked for in the cache folder."""
    if any(entry.name == name for entry in datasets.catalogue()):
        return None
    place = _place(name, folder)
    if place.is_dir():
        return None
    return f"the data set {name} is not here: it cannot be fetched, and there is no folder {place}"


def _missing_model(model: architectures.AnyModel) -> str | None:
    """Why a model cannot be had here, or None; weights that can be fetched count as here."""
    match model:
        case architectures.Transformers(path=path) if (
            path not in weights.TRANSFORMERS and not Path(path).expanduser().is_dir()
        ):
            return f"the model {path} cannot be fetched, and there is no such folder; name one with -o model.path=DIR"
        case _:
            return None


def _place(name: str, folder: str | None) -> Path:
    return place_of(name, None if folder is None else Path(folder))


def title(name: str) -> str:
    """A data set's name as people write it."""
    for entry in datasets.catalogue():
        if entry.name == name:
            return entry.title.partition(":")[0]
    return _TITLES.get(name, name)


def config_hash(config: Config) -> str:
    """Over all that a config says of what is computed: the same for every seed and number of workers."""
    tree = {key: value for key, value in config.model_dump(mode="json").items() if key not in _HOW}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def data_hashes(config: Config) -> dict[str, str]:
    """The SHA-256 of each data set of a run: of its content, or of the files that its user brought."""
    data = config.data
    hashes = {data.name: _data_hash(data.name, data.folder)}
    if data.server.name is not None:
        hashes[data.server.name] = _data_hash(data.server.name, data.server.folder)
    return hashes


@cache
def _data_hash(name: str, folder: str | None) -> str:
    for entry in datasets.catalogue():
        if entry.name == name:
            return entry.sha256  # every load checks the content against it
    digest, place = hashlib.sha256(), _place(name, folder)
    for path in sorted(path for path in place.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(place)} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def described(planned: Planned) -> Mapping[str, Any]:
    """A planned cell for the grid's own record."""
    cell = planned.cell
    return {
        "name": cell.name,
        "key": dict(cell.key),
        "paper": list(cell.paper) if cell.paper else None,
        "server": cell.server,
        "substitute": planned.substitute,
        "changed": list(planned.changed),
        "waits": cell.waits,
        "config": config_hash(planned.config) if planned.config else None,
        "left_out": planned.reason,
    }
