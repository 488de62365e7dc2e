"""The plan of a real federation."""

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from feddle.run.load import validated, with_value
from feddle.run.plan import Clients, Evaluation, Plan, SimulationPlan
from feddle.runtimes.flower.rules import Rules

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
        if isinstance(data, dict):
            if data.get("privacy") is not None:
                raise ValueError(
                    "privacy is for simulations: its noise comes from a seed that the server knows; remove it"
                )
            simulated = [key for key in data if key in _SIMULATED and key != "privacy"]
            if simulated:
                raise ValueError(f"{simulated[0]} is for simulations; remove it from the settings of a real federation")
        return data


def make_plan(settings: Mapping[str, Any], *, source: str) -> FederationPlan:
    """A plan from settings: dotted keys, such as those of a Flower run config, or nested mappings."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        tree = with_value(tree, key.split("."), value)
    return validated(FederationPlan, tree, source=source)
