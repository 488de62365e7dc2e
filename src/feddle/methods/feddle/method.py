"""Feddle: the server's data guides the merge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from feddle.core.atlas import Atlas, Eviction
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.search import Found, Objective, Observer, Search, Searched, SearchSpace, rounded
from feddle.core.seeds import seed_for
from feddle.methods.feddle.anchors import Anchoring, AnchorOptions, RawAnchors
from feddle.methods.feddle.fallback import Fallback, FallbackOptions, FedBuffFallback
from feddle.methods.feddle.search import PaperSearch, SearchOptions, SgdSearch
from feddle.methods.feddle.storage import FloatStorage, StorageOptions
from feddle.methods.strategy import MethodOptions, average_buffers
from feddle.options import Count, NonNegative
from feddle.training.objectives import ObjectiveOptions, default_objective
from feddle.training.parts import Parts


class FeddleOptions(MethodOptions):
    """Search the merging coefficients of an atlas of updates on the server's data."""

    name: Literal["feddle"] = "feddle"
    atlas_size: Count | None = Field(
        None, description="largest number of anchors (M); by default 2 × clients.per_round"
    )
    eviction: Eviction = Field(
        "importance",
        description="which anchor a full atlas drops: `importance` the one with the smallest |ĉ|, `fifo` the oldest",
    )
    anchors: AnchorOptions = RawAnchors()
    storage: StorageOptions = FloatStorage()
    normalise: bool = Field(True, description="scale the anchors to their median norm")
    fallback: FallbackOptions = FedBuffFallback()
    objective: ObjectiveOptions | None = None
    regularisation: NonNegative | None = Field(
        None,
        description="strength λ of the pull towards the fallback; by default 0 with in-domain data, 0.01 with "
        "out-of-domain data",
    )
    search: SearchOptions = PaperSearch()

    def build(self, parts: Parts) -> "Feddle":
        """The method."""
        outside = bool(parts.out_of_domain)
        capacity, dimension = self.atlas_size or 2 * parts.per_round, parts.bench.layout.size
        rows = self.storage.build(capacity, dimension, parts.device)
        search = self.search
        if isinstance(search, SgdSearch) and search.step is None and outside:
            search = search.model_copy(update={"step": "theorem-2"})
        regularisation = (0.01 if outside else 0.0) if self.regularisation is None else self.regularisation
        return Feddle(
            (self.objective or default_objective(parts)).build(parts),
            Atlas(capacity, dimension, eviction=self.eviction, rows=rows, device=parts.device),
            search,
            self.fallback,
            anchors=self.anchors.build(parts),
            normalise=self.normalise,
            regularisation=regularisation,
            seed=parts.seed,
            observe=parts.observe,
        )


@dataclass(eq=False)
class FeddleState:
    """What Feddle remembers: its atlas, and what its anchors and its objective remember."""

    atlas: Atlas
    anchors: Any
    objective: Any


class Feddle:
    """Arrivals become anchors of the atlas; ĉ is searched on the server's data, and w ← w + ĉ·Ā.

    The search starts from the coefficients c′ of a trusted fallback, and may be held near them by
    λ/2·‖c − c′‖² (`regularisation`). A round without a new anchor leaves the model as it is.
    """

    def __init__(
        self,
        objective: Objective,
        atlas: Atlas,
        search: Search,
        fallback: Fallback,
        *,
        anchors: Anchoring | None = None,
        normalise: bool = True,
        regularisation: float = 0.0,
        seed: int = 0,
        observe: Observer | None = None,
    ) -> None:
        self.objective = objective
        self.atlas = atlas
        self.search = search
        self.fallback = fallback
        self.anchors = anchors or RawAnchors()
        self.normalise = normalise
        self.regularisation = regularisation
        self.seed = seed
        self.observe = observe
        self.state = FeddleState(atlas, getattr(self.anchors, "state", None), getattr(objective, "state", None))

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """See `Strategy`."""
        fresh = self._insert(arrivals)
        origin = Weights(model.vector, average_buffers(model, arrivals))
        if not fresh:
            return Merged(origin)
        scales = self.atlas.row_scales()
        space = SearchSpace(origin, self.atlas.active(), scales if self.normalise else torch.ones_like(scales))
        start = self._start(fresh, space.scales)
        seed = seed_for(self.seed, "search", round)
        self.objective.begin(space.point(start), seed)
        found = self.search(space, self.objective, start, regularisation=self.regularisation, seed=seed)
        self.atlas.score(found.coefficients)
        notes = self._notes(found, start)
        if self.observe is not None:
            searched = Searched(round, space, self.objective, self.search, start, found, self.regularisation, seed)
            notes |= self.observe(searched)
        return Merged(space.point(found.coefficients), notes)

    def _insert(self, arrivals: Sequence[Arrival]) -> dict[int, Arrival]:
        """The new anchors that are still there, by row, in order of arrival; a zero update is no direction."""
        fresh: dict[int, Arrival] = {}
        moving = [a for a in arrivals if torch.linalg.vector_norm(a.update.delta)]
        for arrival, anchor in zip(moving, self.anchors(moving), strict=True):
            if not torch.linalg.vector_norm(anchor):
                continue
            row = self.atlas.insert(arrival.update.job, anchor)
            fresh.pop(row, None)
            fresh[row] = arrival
        return fresh

    def _start(self, fresh: Mapping[int, Arrival], scales: Tensor) -> Tensor:
        """c′ (|A|,): the fallback's step b·A in terms of the normalised anchors, c′_m = b_m/r_m."""
        start = torch.zeros_like(scales)
        raw = self.fallback(list(fresh.values()))
        start[list(fresh)] = torch.tensor(raw, dtype=scales.dtype, device=scales.device)
        return start / scales

    def _notes(self, found: Found, start: Tensor) -> dict[str, Any]:
        origins = self.atlas.origins()
        return {
            "coefficients": rounded(found.coefficients),
            "negative_share": float((found.coefficients < 0).float().mean()),
            "moved": float(torch.linalg.vector_norm(found.coefficients - start)),
            "anchor_clients": [job.client for job in origins],
            "anchor_versions": [job.version for job in origins],
            "search_loss": found.loss,
        }
