"""What a real federation is told: a plan, and what only a real clock needs."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, model_validator

from feddle.clients.options import Attack, NoAttack, Privacy
from feddle.core.errors import FeddleError
from feddle.options import Count, NonNegative, Positive, Strict
from feddle.run.load import explain, with_value
from feddle.run.plan import Clients, Delays, Diagnostics, Evaluation, Plan

_SIMULATED = ("delays", "workers", "diagnostics", "attack")  # keys that only a simulation has


class Rules(Strict):
    """When updates are merged and jobs end, in seconds."""

    merge_after: Positive = Field(600.0, description="merge what has arrived after this long, if it is one or more")
    job_limit: Positive = Field(3600.0, description="a job that takes longer is given up; its update comes too late")
    cooldown: NonNegative = Field(60.0, description="a node that failed gets no job for so long; doubled each time")
    at_once: Count | None = Field(None, description="jobs under way at most; by default one for each connected node")
    poll: Positive = Field(1.0, description="between two looks for replies")


class FederationPlan(Plan):
    """A plan for a real federation.

    `clients.per_round` is N, the updates that make a merge; `clients.count` is how many nodes may take part at most.
    """

    clients: Clients = Clients(count=500, per_round=2)
    evaluation: Evaluation = Evaluation(every=1)
    federation: Rules = Rules()

    # no part of a real federation, nor of what a run folder says of it
    workers: int | None = Field(None, exclude=True)
    delays: Delays = Field(Delays(), exclude=True)
    diagnostics: Diagnostics | None = Field(None, exclude=True)
    attack: Attack = Field(NoAttack(), exclude=True)
    privacy: Privacy | None = Field(None, exclude=True)

    @model_validator(mode="after")
    def _real(self) -> "FederationPlan":
        simulated = [name for name in _SIMULATED if name in self.model_fields_set]
        if simulated:
            raise ValueError(f"{simulated[0]} is for simulations; leave it out of a real federation")
        if self.privacy is not None:
            raise ValueError("privacy is for simulations: its noise is drawn from a seed that the server knows")
        return self


def make_plan(settings: Mapping[str, Any], *, source: str) -> FederationPlan:
    """The plan that dotted keys, such as those of a Flower run config, or a tree of them describe."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        tree = with_value(tree, key.split("."), value)
    try:
        return FederationPlan.model_validate(tree)
    except ValidationError as error:
        raise FeddleError(f"{source}: {explain(error, tree)}") from error
