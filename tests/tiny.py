"""The smallest run that has every part."""

from typing import Any

from feddle.run.load import parse_config
from feddle.run.plan import Config

TINY: dict[str, Any] = {
    "rounds": 4,
    "clients": {"count": 20, "per_round": 5},
    "data": {"name": "digits", "image_size": 28, "channels": 1, "server": {"samples": 100}},
    "model": {"name": "cnn", "channels": [4, 4, 4], "hidden": 16},
    "training": {"epochs": 1},
    "delays": {"sigma": 1.0},
    "evaluation": {"every": 2},
    "method": {"name": "feddle", "search": {"epochs": 1}},
}


def tiny(**changes: Any) -> Config:
    return parse_config({**TINY, **changes})
