"""What passes between server and clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from feddle.core.layout import Weights


@dataclass(frozen=True)
class Job:
    """One client's `number`-th training, from one version of the model."""

    client: int
    number: int
    version: int


@dataclass(frozen=True, eq=False)
class Update:
    """What a client sends back: `delta` (d,) from its start to its end, and its running statistics (b,)."""

    job: Job
    delta: Tensor
    buffers: Tensor
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    digest: str = ""  # of the layout of delta and buffers


@dataclass(frozen=True, eq=False)
class Arrival:
    """An update as a strategy sees it.

    `staleness` (τ) is the number of versions made since the client started; `start` is the version that it started
    from, shared with every other job of that version.
    """

    update: Update
    staleness: int
    start: Weights


@dataclass(frozen=True, eq=False)
class Merged:
    """What a strategy returns: the next version of the model, and what goes into the history (JSON values)."""

    weights: Weights
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round: jobs sent, updates that came back, those accepted, and notes for the history."""

    dispatched: int
    returned: int
    arrivals: Sequence[Arrival]
    notes: Mapping[str, Any] = field(default_factory=dict)
