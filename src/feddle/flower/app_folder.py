"""The shipped app, and the settings of an app."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feddle.core.errors import FeddleError
from feddle.flower.plan import make_plan

APP = Path(__file__).parent / "app"


def check_settings(app: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a run of the app would refuse, before anything is started."""
    file = app / "pyproject.toml"
    try:
        known = dict(_flat(tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # not TOML, or without these tables
        raise FeddleError(
            f"{app} is not an app: expected [tool.flwr.app.config] in {file}, got {type(error).__name__}: {error}; "
            "`feddle federation new` makes one"
        ) from error
    for key in settings:
        if key not in known:
            raise FeddleError(f"{key} is not among the settings in {file}; add it to [tool.flwr.app.config] there")
    make_plan({key: value for key, value in {**known, **settings}.items() if key != "out"}, source="settings")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys that Flower makes from nested tables."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
