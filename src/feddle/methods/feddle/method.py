"""Feddle: the server's data guides the merge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddle.core.atlas import Atlas
from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.search import Found, Objective, Search, SearchSpace, full_pass
from feddle.core.seeds import seed_for
from feddle.methods.feddle.anchors import AnchorKind, RawAnchors
from feddle.methods.feddle.fallback import Fallback
from feddle.methods.strategy import above, average_buffers, below


@dataclass(frozen=True, eq=False)
class Witness:
    """Another objective, whose directions are compared with the guiding one's every so many rounds."""

    objective: Objective
    every: int


class Feddle:
    """Arrivals become anchors of the atlas; ĉ is searched on the server's data, and w ← w + ĉ·Ā.

    The search starts from the coefficients c′ of a trusted fallback, and may be held near them by
    λ/2·‖c − c′‖² (`regularisation`). A round without a new anchor leaves the model as it is.
    """

    max_staleness: int | None = None

    def __init__(
        self,
        objective: Objective,
        atlas: Atlas,
        search: Search,
        fallback: Fallback,
        *,
        anchors: AnchorKind | None = None,
        normalise: bool = True,
        regularisation: float = 0.0,
        seed: int = 0,
        witness: Witness | None = None,
    ) -> None:
        self.objective = objective
        self.atlas = atlas
        self.search = search
        self.fallback = fallback
        self.anchors = anchors or RawAnchors()
        self.normalise = normalise
        self.regularisation = regularisation
        self.seed = seed
        self.witness = witness
        self.notes: Mapping[str, Any] = {}
        self._merges = 0

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        self._merges += 1
        self.notes = {}
        fresh = self._insert(arrivals)
        origin = Weights(model.vector, average_buffers(model, arrivals))
        if not fresh:
            return origin
        scales = self.atlas.row_scales()
        space = SearchSpace(origin, self.atlas.active(), scales if self.normalise else torch.ones_like(scales))
        start = self._start(fresh, space.scales)
        seed = seed_for(self.seed, "search", self._merges)
        self.objective.begin(space.point(start), seed)
        found = self.search(space, self.objective, start, regularisation=self.regularisation, seed=seed)
        self.atlas.score(found.coefficients)
        self._note(found.coefficients, start, found.loss)
        if self.witness is not None and self._merges % self.witness.every == 0:
            self.notes = {**self.notes, **self._compare(self.witness.objective, space, start, found, seed)}
        return space.point(found.coefficients)

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

    def _compare(
        self, witness: Objective, space: SearchSpace, start: Tensor, found: Found, seed: int
    ) -> dict[str, float]:
        """Cosines between the two objectives' directions: ∂ℓ/∂c at c′ over all examples, and ĉ − c′."""
        point = space.point(start)
        witness.begin(point, seed)
        ours, theirs = (space.project(full_pass(o, point)[1]) for o in (self.objective, witness))
        other = self.search(space, witness, start, regularisation=self.regularisation, seed=seed)
        moves = (found.coefficients - start, other.coefficients - start)
        return {
            "signal_cosine": float(torch.cosine_similarity(ours, theirs, dim=0)),
            "search_cosine": float(torch.cosine_similarity(*moves, dim=0)),
        }

    def _note(self, coefficients: Tensor, start: Tensor, loss: float) -> None:
        origins = self.atlas.origins()
        self.notes = {
            "coefficients": [round(c, 6) for c in coefficients.tolist()],
            "negative_share": float((coefficients < 0).float().mean()),
            "moved": float(torch.linalg.vector_norm(coefficients - start)),
            "anchor_clients": [job.client for job in origins],
            "anchor_versions": [job.version for job in origins],
            "search_loss": loss,
        }

    def state_dict(self) -> dict[str, Tensor]:
        """See `Strategy`."""
        return {
            **above("atlas.", self.atlas.state_dict()),
            **above("anchors.", self.anchors.state_dict()),
            **above("objective.", self.objective.state_dict()),
            "merges": torch.tensor(self._merges),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
        self._merges = int(state["merges"])
        self.atlas.load_state_dict(below("atlas.", state))
        self.anchors.load_state_dict(below("anchors.", state))
        self.objective.load_state_dict(below("objective.", state))
