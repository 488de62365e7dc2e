"""The plan of a real federation, and the shipped app, whose settings it is made from."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from feddle.core.errors import FeddleError
from feddle.run.load import validated, with_value
from feddle.run.plan import Clients, Evaluation, Plan, SimulationPlan
from feddle.runtimes.flower.roster import Rules

APP = Path(__file__).parent / "app"
_SIMULATED = SimulationPlan.model_fields.keys() - Plan.model_fields.keys()


class FederationPlan(Plan):
    """A plan for a real federation.

    `clients.per_round` is the number of updates per merge (N); `clients.count` is the largest number of nodes.
    """

    clients: Clients = Clients(count=500, per_round=2)
    evaluation: Evaluation = Evaluation(every=1)
    federation: Rules = Rules()

    @model_validator(mode="before")
    @classmethod
    def _refuse_simulated(cls, data: Any) -> Any:
        simulated = sorted(_SIMULATED & data.keys()) if isinstance(data, dict) else []
        if simulated:
            raise ValueError(f"{simulated[0]} is for simulations; remove it from the settings of a real federation")
        return data


def make_plan(settings: Mapping[str, Any], *, source: str) -> FederationPlan:
    """A plan from settings: dotted keys, such as those of a Flower run config, or nested mappings."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        tree = with_value(tree, key.split("."), value)
    return validated(FederationPlan, tree, source=source)


def check_settings(app: Path, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a run of the app would refuse, before anything is started."""
    from flwr.common.config import flatten_dict

    file = app / "pyproject.toml"
    try:
        known = flatten_dict(tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # not TOML, or without these tables
        raise FeddleError(
            f"{app} is not an app: expected [tool.flwr.app.config] in {file}, got {type(error).__name__}: {error}; "
            "`feddle federation new` makes one"
        ) from error
    for key in settings:
        if key not in known:
            raise FeddleError(f"{key} is not among the settings in {file}; add it to [tool.flwr.app.config] there")
    make_plan({key: value for key, value in {**known, **settings}.items() if key != "out"}, source="settings")
