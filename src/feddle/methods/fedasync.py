"""FedAsync."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import MethodOptions, polynomial
from feddle.options import NonNegative, no_bool
from feddle.training.parts import Parts

Mixing = Annotated[
    float, BeforeValidator(no_bool), Field(gt=0, le=1, description="factor (α) of the mixing weight α(1+τ)^(−a)")
]
Exponent = Annotated[NonNegative, Field(description="exponent (a) of the mixing weight")]


class FedAsyncOptions(MethodOptions):
    """Mix each client's whole model into the server's as it arrives; stale models get less weight."""

    name: Literal["fedasync"] = "fedasync"
    alpha: Mixing = 0.4
    exponent: Exponent = 0.5

    def build(self, parts: Parts) -> "FedAsync":  # noqa: ARG002
        """The method."""
        return FedAsync(self)

    def cost(self, setting: Setting) -> Cost:  # noqa: ARG002
        return Cost(working=2)


class FedAsync:
    """Mix in each client's whole model as it arrives: w ← (1 − α_τ) w + α_τ (start + Δ), α_τ = α (1+τ)^(−a).

    α is the same in every round.
    """

    def __init__(self, options: FedAsyncOptions) -> None:
        self.options = options

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        for arrival in arrivals:
            mixing = self.options.alpha * polynomial(arrival.staleness, self.options.exponent)
            client = arrival.start.vector + arrival.update.delta
            buffers = model.buffers.lerp(arrival.update.buffers, mixing)
            model = Weights(model.vector.lerp(client, mixing), buffers)
        return Merged(model)
