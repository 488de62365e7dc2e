"""What of a grid can be run here: the config of each cell, or the reason why it is left out."""

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

_HOW = ("seed", "workers", "checkpoint")  # what a config says of how it is run, not of what
_WAITS = "a server that waits meets no delay, and its clock has the table's σ; leave out -o delays.sigma"


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
    """Check the config of a cell, and that its data and model are available."""
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
        reasons = [source.missing() for source in config.sources()]
    except FeddleError as error:
        return Planned(cell, None, str(error).removeprefix("config: "), refused=bool(overrides))
    if cell.waits is not None and config.delays.sigma:
        return Planned(cell, None, _WAITS, refused=True)
    changed = tuple(text for text in overrides if not _is_place(text.partition("=")[0]))
    reason = next((reason for reason in reasons if reason), "")
    if reason:
        return Planned(cell, None, reason)
    return Planned(cell, config, substitute=_substitute(cell, config.data.server.name), changed=changed)


def _is_place(key: str) -> bool:
    """Whether a key does not make a cell another one: where files are, or how it is run."""
    return key.endswith("folder") or key.partition(".")[0] in _HOW


def _guide(cell: Cell, overrides: Sequence[str]) -> str:
    """What guides from another domain: what the user says, else the first that is here.

    A folder that the user names is the paper's set's: where it is not right, that is said, and nothing stands in.
    """
    if _last(overrides, "data.server.folder") or _last(overrides, "data.server.name"):
        return _last(overrides, "data.server.name") or cell.outside[0]
    return next((name for name in cell.outside if named(name).missing() is None), cell.outside[0])


def _last(overrides: Sequence[str], key: str) -> str:
    """What the overrides set a key to; empty if they do not."""
    return next((text.partition("=")[2] for text in reversed(overrides) if text.partition("=")[0] == key), "")


def sources_of(planned: Planned) -> list[Source[Any]]:
    """What a cell reads."""
    return [] if planned.config is None else planned.config.sources()


def _substitute(cell: Cell, guide: str | None) -> str:
    if not cell.outside or guide is None or guide == cell.outside[0]:
        return ""
    return f"{title_of(guide)} guides in place of {title_of(cell.outside[0])}"


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
