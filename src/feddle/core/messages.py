"""What passes between server and clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    digest: str = ""  # of the layout that delta and buffers are told in


@dataclass(frozen=True, eq=False)
class Arrival:
    """An update as a strategy sees it.

    `staleness` τ counts the versions made since the client began; `start` is the version that it began from,
    shared with every other job of that version.
    """

    update: Update
    staleness: int
    start: Weights
