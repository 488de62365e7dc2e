"""What of a grid can be run here: the config of each cell, or the reason why it is left out."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from feddle.core.errors import FeddleError
from feddle.data import datasets
from feddle.data.official import place_of
from feddle.data.places import expanded
from feddle.grids.grid import Cell
from feddle.models import options as architectures
from feddle.models import weights
from feddle.records import CellEntry
from feddle.run.load import parse_config
from feddle.run.models import kept_folder, local_folder
from feddle.run.plan import Config

_HOW = ("seed", "workers", "checkpoint")  # what a config says of how it is run, not of what
_WAITS = "a server that waits meets no delay, and its clock has the table's σ; leave out -o delays.sigma"
_TITLES = {"imagenet": "ImageNet"}


@dataclass(frozen=True)
class Planned:
    """A cell as it can be run here."""

    cell: Cell
    config: Config | None  # for seed 0
    reason: str = ""  # why it is left out
    substitute: str = ""  # what stands in for what the paper used, in words
    changed: tuple[str, ...] = ()  # what the user set to another value than the table's
    refused: bool = False  # left out since its config does not take what the user set

    def with_seed(self, seed: int, workers: int | None) -> Config:
        """The config of one of its runs; the number of workers does not change what comes of it."""
        assert self.config is not None
        return self.config.model_copy(update={"seed": seed, "workers": workers})


def plan(cell: Cell, overrides: Sequence[str] = ()) -> Planned:
    """Ask the config loader and the data catalogue whether a cell can be had."""
    tree = dict(cell.tree)
    if cell.outside:
        guide = _guide(cell, overrides)
        server = {k: v for k, v in tree["data"]["server"].items() if k != "samples"}
        # of ImageNet the paper takes 250,000 images, of what stands in for it all
        samples = {"samples": 250_000} if guide == "imagenet" else {}
        tree["data"] = {**tree["data"], "server": {**server, "name": guide, **samples}}
    elif not _last(overrides, "data.server.name"):  # the folder is meant for cells with data of another domain
        overrides = [text for text in overrides if text.partition("=")[0] != "data.server.folder"]
    try:
        config = parse_config(tree, overrides)
    except FeddleError as error:
        return Planned(cell, None, str(error).removeprefix("config: "), refused=bool(overrides))
    if cell.waits is not None and config.delays.sigma:
        return Planned(cell, None, _WAITS, refused=True)
    changed = tuple(text for text in overrides if not _is_place(text.partition("=")[0]))
    planned = Planned(cell, config, substitute=_substitute(cell, config.data.server.name), changed=changed)
    reasons = [_missing_model(config.model), *(missing(*wanted) for wanted in data_of(planned))]
    reason = next((reason for reason in reasons if reason), "")
    return Planned(cell, None, reason) if reason else planned


def _is_place(key: str) -> bool:
    """Whether a key does not make a cell another one: where files are, or how it is run."""
    return key.endswith("folder") or key.partition(".")[0] in _HOW


def _guide(cell: Cell, overrides: Sequence[str]) -> str:
    """What guides from another domain: what the user says, else the first that is here.

    A folder that the user names is the paper's set's: where it is not right, that is said, and nothing stands in.
    """
    if _last(overrides, "data.server.folder") or _last(overrides, "data.server.name"):
        return _last(overrides, "data.server.name") or cell.outside[0]
    return next((name for name in cell.outside if missing(name) is None), cell.outside[0])


def _last(overrides: Sequence[str], key: str) -> str:
    """What the overrides set a key to; empty if they do not."""
    return next((text.partition("=")[2] for text in reversed(overrides) if text.partition("=")[0] == key), "")


class Wanted(NamedTuple):
    """A data set that a cell needs, and where its files are said to be."""

    name: str
    folder: str | None = None
    path: str | None = None  # of data of the user's own


def data_of(planned: Planned) -> list[Wanted]:
    """The data sets of a cell."""
    if planned.config is None:
        return []
    data, server = planned.config.data, planned.config.data.server
    guides = [] if server.name is None else [Wanted(server.name, server.folder, server.path)]
    return [Wanted(data.name, data.folder, data.path), *guides]


def get(wanted: Wanted, *, quiet: bool) -> None:
    """Have a data set here before runs begin, if it is one that can be fetched."""
    if any(entry.name == wanted.name for entry in datasets.catalogue()):
        datasets.fetch(wanted.name, folder=None if wanted.folder is None else Path(wanted.folder), quiet=quiet)


def _substitute(cell: Cell, guide: str | None) -> str:
    if not cell.outside or guide is None or guide == cell.outside[0]:
        return ""
    return f"{title(guide)} guides in place of {title(cell.outside[0])}"


def missing(name: str, folder: str | None = None, path: str | None = None) -> str | None:
    """Why a data set cannot be had here, or None; files that users bring are looked for in the cache folder."""
    if path is not None:
        there = expanded(Path(path)).exists()
        return None if there else f"there is no file or folder {path} to read the data from; correct data.path"
    if any(entry.name == name for entry in datasets.catalogue()):
        return None
    place = place_of(name, None if folder is None else Path(folder))
    if place.is_dir():
        return None
    return f"the data set {name} is not here: it cannot be fetched, and there is no folder {place}"


def _missing_model(model: architectures.AnyModel) -> str | None:
    """Why a model cannot be had here, or None; weights that can be fetched count as here."""
    match model:
        case architectures.Transformers(path=path) if (
            path not in weights.TRANSFORMERS and not local_folder(path).is_dir()
        ):
            here, kept = Path(path).expanduser().absolute(), kept_folder(path)
            places = f"{here} nor {kept}" if here != kept else str(here)
            return (
                f"the model {path} cannot be fetched, and there is no folder {places}; name one with -o model.path=DIR"
            )
        case _:
            return None


def title(name: str) -> str:
    """A data set's name as people write it."""
    for entry in datasets.catalogue():
        if entry.name == name:
            return entry.title.partition(":")[0]
    return _TITLES.get(name, name)


def config_hash(config: Config) -> str:
    """The SHA-256 of a config without seed, workers and checkpoints, which do not change what is computed."""
    tree = {key: value for key, value in config.model_dump(mode="json").items() if key not in _HOW}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def described(planned: Planned) -> CellEntry:
    """A planned cell as an entry of the grid's record."""
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
