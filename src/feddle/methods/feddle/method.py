"""Feddle: merging guided by the server's data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Discriminator, Field
from torch import Tensor

from feddle.core.atlas import Atlas, Eviction, SearchSpace
from feddle.core.blocks import Blocks, Coefficients, make_blocks
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.methods.client_cache import CacheLimit, ClientCache, build_cache, cache_cost
from feddle.methods.cost import Cost, Setting
from feddle.methods.feddle.fallback import Fallback, FallbackOptions, FedBuffFallback
from feddle.methods.feddle.gate import GatedSearch, Threshold
from feddle.methods.feddle.head_anchor import HeadAnchor, HeadAnchorOptions, has_last_head
from feddle.methods.feddle.server_anchor import ServerAnchor, ServerAnchorOptions
from feddle.methods.feddle.sharded import share_search
from feddle.methods.feddle.storage import DiskStorage, FloatStorage, StorageOptions
from feddle.methods.strategy import MethodOptions, average_buffers
from feddle.options import Count, NonNegative, Options, choice
from feddle.training.distil import DistilOptions
from feddle.training.objectives import ObjectiveOptions, TaskOptions
from feddle.training.parts import Parts
from feddle.training.search import (
    Found,
    Objective,
    Observer,
    PaperSearch,
    Search,
    SearchOptions,
    SearchTask,
    SgdSearch,
    rounded,
)
from feddle.training.surrogate import ClustersOptions, HeadOptions, SurrogateOptions


class Anchoring(Protocol):
    """Turns the arrivals of a round into anchors (d,). An optional attribute `state` is saved in checkpoints."""

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """One anchor per arrival."""


class RawAnchors(Options):
    """The updates, unchanged."""

    name: Literal["raw"] = "raw"

    def build(self, parts: Parts) -> Anchoring:  # noqa: ARG002
        """Itself, since it has no state."""
        return self

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        """The paper's anchors."""
        return [a.update.delta for a in arrivals]


class CalibratedOptions(Options):
    """Updates calibrated by the previous update of the same client, as in CA2FL."""

    name: Literal["calibrated"] = "calibrated"
    cache_limit: CacheLimit = 2000.0

    def build(self, parts: Parts) -> Anchoring:
        """Calibrated anchors with an empty cache."""
        return CalibratedAnchors(build_cache(parts, self.cache_limit))


class CalibratedAnchors:
    """h̄ + Δ_i − h_i, with the client's last update h_i and the mean h̄ over all clients.

    Both are the values before this merge; the cache is updated afterwards. So the mean of the anchors is CA2FL's step.
    """

    def __init__(self, cache: ClientCache) -> None:
        self.state = cache

    def __call__(self, arrivals: Sequence[Arrival]) -> list[Tensor]:
        mean = self.state.mean()
        anchors = [mean + a.update.delta - self.state[a.update.job.client] for a in arrivals]
        for arrival in arrivals:
            self.state.put(arrival.update.job.client, arrival.update.delta)
        return anchors


AnyAnchors = RawAnchors | CalibratedOptions
AnchorOptions = Annotated[
    AnyAnchors, Discriminator("name"), choice("raw"), Field(description="how updates are turned into anchors")
]


class AtlasOptions(MethodOptions):
    """The options of Feddle and its variants. The defaults are the paper's."""

    searches = True
    adapts: ClassVar[bool] = False  # whether options that the data or the model does not allow are ignored
    atlas_size: Count | None = Field(
        None, description="largest number of anchors (M); by default 2 × clients.per_round"
    )
    eviction: Eviction = Field(
        "importance",
        description="what a full atlas replaces: `importance`, the anchor with the smallest |ĉ|, or `fifo`, the oldest",
    )
    anchors: AnchorOptions = RawAnchors()
    storage: StorageOptions = FloatStorage()
    normalise: bool = Field(True, description="scale every anchor to the median of the anchors' norms")
    fallback: FallbackOptions = FedBuffFallback()
    objective: ObjectiveOptions | None = Field(
        None, description="what the search minimises; by default `task` with in-domain data, `surrogate` otherwise"
    )
    regularisation: NonNegative | None = Field(
        None,
        description="weight of the regulariser that keeps the coefficients near the fallback's (λ); by default 0 with "
        "in-domain data and 0.01 with out-of-domain data",
    )
    search: SearchOptions = PaperSearch()
    gate: Threshold | None = Field(
        None,
        description="threshold of the gate: a search is made only if the gradients ∂ℓ/∂c on two halves of the server's "
        "data have at least this cosine; otherwise the fallback's step is kept. −1: always search; above 1: never "
        "search. Off by default",
    )
    coefficients: Coefficients = "shared"
    server_anchor: ServerAnchorOptions | None = Field(
        None, description="the server's own update as one more anchor; off by default; `server_anchor: {}` turns it on"
    )
    head_anchor: HeadAnchorOptions | None = Field(
        None,
        description="one more anchor: the change of the model's head if the server fits it again; off by default; "
        "`head_anchor: {}` turns it on",
    )

    @property
    def reads_labels(self) -> bool:
        """Whether the objective or the server's anchors read labels. A method that `adapts` omits these anchors."""
        trains = (self.server_anchor is not None or self.head_anchor is not None) and not self.adapts
        return trains or not isinstance(self.objective, DistilOptions | ClustersOptions)

    def build(self, parts: Parts) -> "Feddle":
        """The method."""
        outside = bool(parts.out_of_domain)
        capacity, dimension = self.atlas_size or 2 * parts.per_round, parts.bench.layout.size
        search: Search = self.search
        if isinstance(search, SgdSearch) and search.step is None and outside:
            search = search.model_copy(update={"step": "theorem-2"})
        if self.gate is not None:
            search = GatedSearch(search, self.gate)
        fallback = self.fallback
        if isinstance(fallback, FedBuffFallback) and fallback.buffer_size is None:
            fallback = fallback.model_copy(update={"buffer_size": parts.per_round})
        regularisation = (0.01 if outside else 0.0) if self.regularisation is None else self.regularisation
        objective = self.objective or (SurrogateOptions() if outside else TaskOptions())
        labels_fit = not self.adapts or (self.reads_labels and not outside)
        blocks = None if outside and self.adapts else make_blocks(self.coefficients, parts.bench.layout)
        rows, shared = share_search(self.storage, parts, capacity, objective.build(parts), blocks)
        server_anchor = self.server_anchor.build(parts) if self.server_anchor and labels_fit else None
        head = self.head_anchor if labels_fit else None
        if head and self.adapts and not has_last_head(parts.bench, parts.server_data()):
            head = None
        return Feddle(
            shared,
            Atlas(capacity, dimension, eviction=self.eviction, rows=rows, device=parts.device),
            search,
            fallback,
            anchors=self.anchors.build(parts),
            normalise=self.normalise,
            regularisation=regularisation,
            seed=parts.seed,
            observe=parts.observe,
            blocks=blocks,
            server_anchor=server_anchor,
            head_anchor=head.build(parts, server_anchor) if head else None,
        )

    def cost(self, setting: Setting) -> Cost:
        """A search without anchors of the server is made only if an update arrived."""
        capacity = self.atlas_size or 2 * setting.per_round
        rows = min(capacity, setting.used * setting.rounds)
        labels_fit = not self.adapts or (self.reads_labels and not setting.outside)
        own, head = (self.server_anchor, self.head_anchor) if labels_fit else (None, None)
        active, objective = 1.0 if own or head else setting.active, self.objective
        examples = min(setting.drawn, own.searched(setting)) if own else setting.drawn
        passes, steps = self.search.effort(examples)
        teachers = objective.teachers if isinstance(objective, DistilOptions) else 0
        represented = isinstance(objective, HeadOptions) or (objective is None and setting.outside)
        cache = cache_cost(setting, self.anchors.cache_limit) if isinstance(self.anchors, CalibratedOptions) else Cost()
        return replace(
            cache,
            trained=active * examples * (passes + (self.gate is not None)) + (own.trained(setting) if own else 0),
            evaluated=active * examples * (teachers or represented)
            + (head.evaluated(setting, own.holdout if own else 0.0) if head else 0),
            products=active * steps * rows,
            kept=self.storage.in_memory(rows, capacity, setting.size) + teachers,
            in_file=cache.in_file + rows * isinstance(self.storage, DiskStorage),
            working=5.0 + 3 * (bool(own) + bool(head)) + 2 * (isinstance(self.anchors, CalibratedOptions)),
        )


class FeddleOptions(AtlasOptions):
    """Keep client updates in an atlas and search their merging coefficients on the server's data."""

    name: Literal["feddle"] = "feddle"


class FeddlePlusOptions(AtlasOptions):
    """Feddle with more directions: a coefficient per layer and class, and the server's own update as an anchor."""

    adapts = True  # labels of another task cannot train the server's model or the clients' head
    averages = 0.95  # its longer steps make the versions differ more from each other
    name: Literal["feddle+"] = "feddle+"
    fallback: FallbackOptions = FedBuffFallback(staleness="constant", buffer_size=None)
    coefficients: Coefficients = "class"
    server_anchor: ServerAnchorOptions | None = Field(
        ServerAnchorOptions(), description="the server's own update as one more anchor; null: none"
    )


@dataclass(eq=False)
class FeddleState:
    """The state of the atlas, and the optional states of the anchors and the objective."""

    atlas: Atlas
    anchors: Any
    objective: Any


@dataclass(eq=False)
class Feddle:
    """Store arrivals as anchors in the atlas, search ĉ on the server's data, then w ← w + ĉ·Ā.

    The search starts from the coefficients c′ of a trusted fallback. `regularisation` (λ) adds λ/2·‖c − c′‖² to the
    loss, which keeps the result near c′. A round without a new anchor does not change the trainable parameters.
    `observe` is called after each search, for diagnostics.

    With `blocks`, an anchor has a coefficient for each block, all of which start at c′. With a `server_anchor` or a
    `head_anchor`, every round searches. What the server has trained itself is one more row each, which starts at 1.
    """

    objective: Objective
    atlas: Atlas
    search: Search
    fallback: Fallback
    anchors: Anchoring = field(default_factory=RawAnchors)
    normalise: bool = True
    regularisation: float = 0.0
    seed: int = 0
    observe: Observer | None = None
    blocks: Blocks | None = None
    server_anchor: ServerAnchor | None = None
    head_anchor: HeadAnchor | None = None

    def __post_init__(self) -> None:
        states = (getattr(part, "state", None) for part in (self.anchors, self.objective))
        self.state = FeddleState(self.atlas, *states)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        fresh = self._insert(arrivals)
        origin = Weights(model.vector, average_buffers(model, arrivals))
        if not fresh and not self._own():
            return Merged(origin)
        scales = self.atlas.row_scales()
        scales = scales if self.normalise else torch.ones_like(scales)
        space, start = SearchSpace(origin, self.atlas.active(), scales, self.blocks), self._start(fresh, scales)
        among, seed = None, seed_for(self.seed, "search", round)
        if self._own():
            space, start = self._widened(space, start, round)
        if self.server_anchor is not None:
            among = self.server_anchor.split(round)[1]
        start = space.in_every_block(start)
        self.objective.begin(space.point(start), seed, among, list(fresh.values()))
        task = SearchTask(space, self.objective, start, self.regularisation, seed)
        found = self.search(task)
        self.atlas.score(space.table(found.coefficients)[: len(self.atlas)])
        observed = self.observe(round, task, self.search, found) if self.observe else {}
        return Merged(space.point(found.coefficients), {**self._notes(found, task), **observed})

    def _insert(self, arrivals: Sequence[Arrival]) -> dict[int, Arrival]:
        """Store the arrivals as anchors; those still in the atlas afterwards, by row and in order of arrival.

        An arrival or anchor of norm zero has no direction and is not stored.
        """
        fresh: dict[int, Arrival] = {}
        moving = [a for a in arrivals if torch.linalg.vector_norm(a.update.delta)]
        for arrival, anchor in zip(moving, self.anchors(moving), strict=True):
            if not torch.linalg.vector_norm(anchor):
                continue
            row = self.atlas.insert(arrival.update.job, anchor)
            fresh.pop(row, None)
            fresh[row] = arrival
        return fresh

    def _own(self) -> dict[str, ServerAnchor | HeadAnchor]:
        """The anchors that the server makes again in each round. Each starts at the end of the one before."""
        own = {"server": self.server_anchor, "head": self.head_anchor}
        return {name: anchor for name, anchor in own.items() if anchor is not None}

    def _widened(self, space: SearchSpace, start: Tensor, round: int) -> tuple[SearchSpace, Tensor]:
        """The search space with the server's anchors as further rows, and its start."""
        vector, point = space.origin.vector, space.point(space.in_every_block(start))
        for anchor in self._own().values():
            after = anchor.train(point, round)
            space = space.widened(Weights(vector, after.buffers), after.vector - point.vector)
            start, point = torch.cat([start, start.new_ones(1)]), after
        return space, start

    def _start(self, fresh: Mapping[int, Arrival], scales: Tensor) -> Tensor:
        """c′ (|A|,): the fallback's step b·A, expressed in the normalised anchors: c′_m = b_m/r_m."""
        start = torch.zeros_like(scales)
        if not fresh:
            return start
        raw = self.fallback(list(fresh.values()))
        start[list(fresh)] = torch.tensor(raw, dtype=scales.dtype, device=scales.device)
        return start / scales

    def _notes(self, found: Found, task: SearchTask) -> dict[str, Any]:
        origins, table = self.atlas.origins(), task.space.table(found.coefficients)
        notes = {
            "coefficients": rounded(table[: len(origins)].mean(1)),
            "negative_share": float((found.coefficients < 0).float().mean()),
            "moved": float(torch.linalg.vector_norm(found.coefficients - task.start)),
            "anchor_clients": [job.client for job in origins],
            "anchor_versions": [job.version for job in origins],
            "search_loss": found.loss,
            **found.notes,
        }
        own = dict(zip(self._own(), table[len(origins) :], strict=True))
        if self.blocks is not None:
            notes |= {"blocks": list(self.blocks.names), "block_coefficients": [rounded(row) for row in table]}
            return notes | ({"server_rows": list(own)} if own else {})
        return notes | {f"{name}_coefficient": float(value) for name, value in own.items()}
