"""A search on several ranks: each rank holds a part of the anchors, and computes a part of each gradient.

Row k belongs to rank k mod R. The point w + c·Ā is the sum of the ranks' contributions. The gradient of a batch is the
mean of the gradients of its R parts. Each rank projects it on its own rows. Rank 0 searches with `ShardedRows` and
`SharedObjective`, which announce each step; the other ranks `follow`. A vector that all ranks have just computed
together, such as the point, is not sent again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from feddle.core.atlas import Rows, row_in
from feddle.core.blocks import Blocks
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Update
from feddle.core.ranks import Ranks
from feddle.core.state import load, save
from feddle.core.streamed import StreamedRows
from feddle.training.kernels import count_changes
from feddle.training.search import Objective

_PUT, _COMBINE, _PROJECT, _GRADIENT, _BEGIN, _RESTORE = range(1, 7)
_NONE = -1  # instead of a number of examples: all


@dataclass(eq=False)
class Member:
    """What one rank holds: its `rows`, the objective, the blocks, and the vectors that all ranks have in common.

    Its methods are called at all ranks at once. The arguments that rank 0 sends are empty tensors elsewhere.
    """

    ranks: Ranks
    rows: Rows  # of this rank only
    objective: Objective
    blocks: Blocks | None
    size: Weights  # a model of the same size
    known: dict[int, tuple[Tensor, int]] = field(default_factory=dict, init=False)  # the last point and gradient

    def know(self, command: int, vector: Tensor) -> Tensor:
        """Remember a vector that all ranks have now."""
        self.known[command] = vector, count_changes(vector)
        return vector

    def knows(self, command: int, vector: Tensor) -> bool:
        """Whether all ranks have this vector, unchanged, from their last common step."""
        last, changes = self.known.get(command, (None, 0))
        return last is vector and changes == count_changes(vector)

    def part(self, count: int) -> Rows:
        """This rank's rows among the first `count`."""
        return self.rows.first(len(range(self.ranks.rank, count, self.ranks.size)))

    def put(self, row: int, anchor: Tensor) -> None:
        """Store a row at its owner."""
        owner = row % self.ranks.size
        self.ranks.hand(anchor, owner)
        if owner == self.ranks.rank:
            self.rows.put(row // self.ranks.size, anchor)

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None) -> Tensor:
        """origin + Σ c_m a_m at all ranks; the origin is zero except at rank 0."""
        own = self.ranks.share(coefficients)[self.ranks.rank :: self.ranks.size]
        return self.know(_COMBINE, self.ranks.add(self.part(len(coefficients)).combine(origin, own, blocks)))

    def project(self, vector: Tensor, count: int, blocks: Blocks | None) -> Tensor:
        """The product of each row with a vector, at rank 0."""
        shape = (count,) if blocks is None else (count, len(blocks))
        products = torch.zeros(shape)
        products[self.ranks.rank :: self.ranks.size] = self.part(count).project(vector, blocks)
        return self.ranks.add_at_first(products)

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        """The mean loss over the examples, and its gradient, at all ranks: each computes its part of the examples."""
        own = examples.tensor_split(self.ranks.size)[self.ranks.rank]
        total = torch.zeros(len(point.vector) + 1)
        if len(own):
            loss, gradient = self.objective.loss_and_gradient(point, own)
            total[:-1] = gradient
            total[-1] = loss
            total *= len(own) / len(examples)
        self.ranks.add(total)
        return float(total[-1]), self.know(_GRADIENT, total[:-1])

    def begin(self, start: Weights, seed: int, among: Tensor | None, models: Sequence[Weights]) -> None:
        """Begin a search at all ranks; `models` are those of the arrivals."""
        for weights in (start, *models):
            self.share(weights)
        if among is not None:
            self.ranks.share(among)
        self.objective.begin(start, seed, among, [_arrival(model) for model in models])

    def share(self, weights: Weights) -> None:
        """Copy weights from rank 0 to all, in place."""
        self.ranks.share(weights.vector)
        self.ranks.share(weights.buffers)

    def empty(self) -> Weights:
        """Weights to receive into."""
        return Weights(torch.empty_like(self.size.vector), torch.empty_like(self.size.buffers))


def _arrival(model: Weights) -> Arrival:
    """An arrival whose model this is: the only part of an arrival that objectives use."""
    return Arrival(Update(Job(0, 0, 0), torch.zeros_like(model.vector), model.buffers, 1), 0, model)


@dataclass(frozen=True, eq=False)
class ShardedRows:
    """The rows of all ranks, at rank 0, which also keeps each row in a file, for checkpoints."""

    member: Member
    files: StreamedRows
    count: int

    def __len__(self) -> int:
        return self.count

    def put(self, row: int, anchor: Tensor) -> None:
        self.files.put(row, anchor)
        self.member.ranks.announce(_PUT, row)
        self.member.put(row, anchor)

    def first(self, count: int) -> "ShardedRows":
        return ShardedRows(self.member, self.files, count)

    def saved(self, count: int) -> dict[str, Tensor]:
        """One tensor per row, which any number of ranks can load."""
        return self.files.saved(count)

    def load(self, count: int, saved: Mapping[str, Tensor]) -> None:
        for row in range(count):
            self.put(row, row_in(saved, row))

    def combine(self, origin: Tensor, coefficients: Tensor, blocks: Blocks | None = None) -> Tensor:
        self.member.ranks.announce(_COMBINE, self.count, int(blocks is not None))
        return self.member.combine(origin, coefficients.contiguous(), blocks)

    def project(self, vector: Tensor, blocks: Blocks | None = None) -> Tensor:
        new = not self.member.knows(_GRADIENT, vector)
        self.member.ranks.announce(_PROJECT, self.count, int(blocks is not None), int(new))
        if new:
            self.member.ranks.share(vector)
        return self.member.project(vector, self.count, blocks)


class SharedObjective:
    """An objective whose gradients all ranks compute together, at rank 0."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.state = getattr(member.objective, "state", None)
        self._restored = False

    def __len__(self) -> int:
        return len(self.member.objective)

    def begin(self, start: Weights, seed: int, among: Tensor | None = None, arrivals: Sequence[Arrival] = ()) -> None:
        """All ranks do the same. Before the first search, they get the state of a resumed run."""
        if not self._restored:
            _send_state(self.member.ranks, self.state)
            self._restored = True
        count = _NONE if among is None else len(among)
        self.member.ranks.announce(_BEGIN, seed, count, len(arrivals))
        self.member.begin(start, seed, among, [arrival.model for arrival in arrivals])

    def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
        new = not self.member.knows(_COMBINE, point.vector)
        self.member.ranks.announce(_GRADIENT, len(examples), int(new))
        self.member.ranks.share(examples)
        if new:
            self.member.ranks.share(point.vector)
        self.member.ranks.share(point.buffers)
        return self.member.loss_and_gradient(point, examples)


def follow(member: Member) -> None:
    """At the other ranks: do what rank 0 announces, until it ends all ranks (`EndError`)."""
    ranks, zeros = member.ranks, torch.zeros_like(member.size.vector)
    while True:
        command, *numbers = ranks.next_command()
        if command == _PUT:
            member.put(numbers[0], torch.empty_like(zeros))
        elif command == _COMBINE:
            blocks = member.blocks if numbers[1] else None
            shape = (numbers[0],) if blocks is None else (numbers[0], len(blocks))
            member.combine(zeros, torch.empty(shape), blocks)
        elif command == _PROJECT:
            vector = ranks.share(torch.empty_like(zeros)) if numbers[2] else member.known[_GRADIENT][0]
            member.project(vector, numbers[0], member.blocks if numbers[1] else None)
        elif command == _GRADIENT:
            examples = ranks.share(torch.empty(numbers[0], dtype=torch.int64))
            vector = ranks.share(torch.empty_like(zeros)) if numbers[1] else member.known[_COMBINE][0]
            buffers = ranks.share(torch.empty_like(member.size.buffers))
            member.loss_and_gradient(Weights(vector, buffers), examples)
        elif command == _BEGIN:
            among = None if numbers[1] == _NONE else torch.empty(numbers[1], dtype=torch.int64)
            member.begin(member.empty(), numbers[0], among, [member.empty() for _ in range(numbers[2])])
        else:
            content = ranks.share(torch.empty(numbers[0], dtype=torch.uint8))
            load(getattr(member.objective, "state", None), from_bytes(content.numpy().tobytes()))


def _send_state(ranks: Ranks, state: Any) -> None:
    """Send what an objective remembers, as the content of a safetensors file."""
    content = torch.frombuffer(bytearray(to_bytes(save(state))), dtype=torch.uint8)
    ranks.announce(_RESTORE, len(content))
    ranks.share(content)
