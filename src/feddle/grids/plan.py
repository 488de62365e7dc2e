"""Plan the cells of a grid: the config of each, or the reason why it cannot be run on this machine."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feddle.core.errors import FeddleError
from feddle.data.datasets import named, title_of
from feddle.data.source import Source
from feddle.grids.grid import Cell
from feddle.records import CellEntry
from feddle.run.load import parse_config
from feddle.run.plan import Config

_HOW = ("seed", "workers", "checkpoint")  # keys that do not change what a config computes
_WAITS = "a server that waits has no delays, and its clock uses the σ of the table; leave out -o delays.sigma"


@dataclass(frozen=True)
class Planned:
    """A cell with the config for this machine."""

    cell: Cell
    config: Config | None  # for seed 0
    reason: str = ""  # why it is left out
    substitute: str = ""  # what replaces data that the paper used, in words
    changed: tuple[str, ...] = ()  # overrides of the user that change the setting of the table
    refused: bool = False  # left out because its config does not accept the overrides

    def with_seed(self, seed: int, workers: int | None) -> Config:
        """The config of one of its runs. The number of workers does not change the result."""
        assert self.config is not None
        return self.config.model_copy(update={"seed": seed, "workers": workers})

    @property
    def sources(self) -> list[Source[Any]]:
        """The data and weights that it reads."""
        return [] if self.config is None else self.config.sources()


def plan(cell: Cell, overrides: Sequence[str] = ()) -> Planned:
    """Check the config of a cell, and that its data and model are available."""
    tree = dict(cell.tree)
    if cell.outside:
        guide = _guide(cell, overrides)
        server = {k: v for k, v in tree["data"]["server"].items() if k != "samples"}
        # the paper uses 250,000 images of ImageNet; of a substitute, all images are used
        samples = {"samples": 250_000} if guide == "imagenet" else {}
        tree["data"] = {**tree["data"], "server": {**server, "name": guide, **samples}}
    elif not _last(overrides, "data.server.name"):  # the folder is for cells with out-of-domain data
        overrides = [text for text in overrides if text.partition("=")[0] != "data.server.folder"]
    try:
        config = parse_config(tree, overrides)
        reasons = [source.missing() for source in config.sources()]
    except FeddleError as error:
        return Planned(cell, None, str(error).removeprefix("config: "), refused=bool(overrides))
    if cell.waits is not None and config.delays.sigma:
        return Planned(cell, None, _WAITS, refused=True)
    if any(reasons):
        return Planned(cell, None, next(filter(None, reasons)))
    keys = {text: text.partition("=")[0] for text in overrides}
    # where files are and how a cell is run do not change its setting
    changed = [text for text, key in keys.items() if not key.endswith("folder") and key.partition(".")[0] not in _HOW]
    used, substitute = config.data.server.name, ""
    if used and cell.outside and used != cell.outside[0]:
        substitute = f"{title_of(used)} guides instead of {title_of(cell.outside[0])}"
    return Planned(cell, config, substitute=substitute, changed=tuple(changed))


def _guide(cell: Cell, overrides: Sequence[str]) -> str:
    """The out-of-domain data set: the user's choice, else the first that is available.

    A folder from the user belongs to the paper's data set. If that folder is wrong, there is no substitute.
    """
    if _last(overrides, "data.server.folder") or _last(overrides, "data.server.name"):
        return _last(overrides, "data.server.name") or cell.outside[0]
    return next((name for name in cell.outside if named(name).missing() is None), cell.outside[0])


def _last(overrides: Sequence[str], key: str) -> str:
    """The last value that the overrides give to a key; empty if there is none."""
    return next((text.partition("=")[2] for text in reversed(overrides) if text.partition("=")[0] == key), "")


def config_hash(config: Config) -> str:
    """The SHA-256 of a config without seed, workers and checkpoints."""
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
