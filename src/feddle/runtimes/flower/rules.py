"""The time limits of a federation, and its clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from feddle.options import Count, NonNegative, Options, Positive


class Rules(Options):
    """When updates are merged and jobs end, in seconds."""

    merge_after: Positive = Field(600.0, description="seconds after the first arrival until what has arrived is merged")
    job_limit: Positive = Field(3600.0, description="time limit of a job in seconds; later updates are dropped")
    cooldown: NonNegative = Field(
        60.0, description="seconds without a job after a node has failed; doubled after each further failure in a row"
    )
    at_once: Count | None = Field(None, description="largest number of jobs under way; by default one per node")
    poll: Positive = Field(1.0, description="seconds between two checks for replies")


@dataclass(frozen=True)
class Clock:
    """The real time; tests use a virtual clock."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
