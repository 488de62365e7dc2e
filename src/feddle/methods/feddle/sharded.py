"""The atlas and the objective of a search that several ranks share."""

import torch

from feddle.core.atlas import Rows
from feddle.core.blocks import Blocks
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.methods.feddle.storage import AnyStorage, files_of
from feddle.training.parts import Parts
from feddle.training.ranked import Member, ShardedRows, SharedObjective
from feddle.training.search import Objective


def share_search(
    storage: AnyStorage, parts: Parts, capacity: int, objective: Objective, blocks: Blocks | None
) -> tuple[Rows, Objective]:
    """Empty rows for `capacity` anchors and the objective; with several ranks, each of them has a part of both.

    Rank 0 also keeps every anchor in a file, so that a checkpoint needs nothing from the other ranks.
    """
    ranks, layout = parts.ranks, parts.bench.layout
    if ranks is None:
        return storage.empty(parts, capacity), objective
    if parts.device != "cpu":
        raise FeddleError(f"several ranks require device: cpu, but the device is {parts.device}; start one process")
    if ranks.size > capacity:
        remedy = "start fewer ranks, or raise method.atlas_size"
        raise FeddleError(f"expected at most one rank per anchor, {capacity}, but there are {ranks.size}; {remedy}")
    own = storage.empty(parts, len(range(ranks.rank, capacity, ranks.size)))
    statistics = torch.zeros(len(layout.read(parts.bench.model).buffers))
    member = Member(ranks, own, objective, blocks, Weights(torch.zeros(layout.size), statistics))
    files = files_of(parts, capacity, memory=4 * capacity * layout.size)  # nothing is read, so no memory is used
    return ShardedRows(member, files, capacity), SharedObjective(member)
