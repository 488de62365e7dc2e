"""FedAsync."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.staleness import polynomial


class FedAsync:
    """Mix each client's whole model in as it arrives: w ← (1 − α_τ) w + α_τ (start + Δ), α_τ = α (1+τ)^(−a).

    α_τ is computed from α each time; it does not compound from round to round.
    """

    max_staleness: int | None = None

    def __init__(self, alpha: float = 0.4, exponent: float = 0.5) -> None:
        self.alpha = alpha
        self.exponent = exponent
        self.notes: Mapping[str, Any] = {}

    def merge(self, model: Weights, arrivals: Sequence[Arrival]) -> Weights:
        """See `Strategy`."""
        for arrival in arrivals:
            mixing = self.alpha * polynomial(arrival.staleness, self.exponent)
            client = arrival.start.vector + arrival.update.delta
            model = Weights(
                model.vector.lerp(client, mixing),
                model.buffers.lerp(arrival.update.buffers, mixing),
            )
        return model

    def state_dict(self) -> dict[str, Tensor]:
        """FedAsync remembers nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Strategy`."""
