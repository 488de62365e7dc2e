"""The interface of a runtime, which runs the clients of a server."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from feddle.core.messages import Round
from feddle.server import Server


class Runtime(Protocol):
    """Runs the clients of a server, in a simulation or on a network."""

    @property
    def server(self) -> Server:
        """The server that the clients train for."""

    def step(self) -> Round:
        """One round: until the next version of the model."""

    def facts(self) -> dict[str, Any]:
        """Entries of `result.json` that only this runtime has, as JSON values."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, including the server's state, as tensors; taken between rounds."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved state."""
