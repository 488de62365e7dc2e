"""A real federation on Flower: the same server, strategies and local training over a network.

A Flower user writes `Feddle(model, server=…, test=…).start(grid=grid, initial_arrays=…)` in a ServerApp and
`client_app(model, data)` for the ClientApp. The names below are loaded when first used, so that a client's process,
which starts again for each job, imports little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from feddle.core.errors import FeddleError

if TYPE_CHECKING:
    from feddle.flower.run import Feddle, server_app
    from feddle.runtimes.flower.client import client_app, train_job

__all__ = ["Feddle", "client_app", "server_app", "train_job"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'feddle.flower' has no attribute {name!r}")
    require_flower()
    home = "feddle.runtimes.flower.client" if name in ("client_app", "train_job") else "feddle.flower.run"
    return getattr(import_module(home), name)


def require_flower() -> None:
    """Raise an error that says what to install, if Flower is missing."""
    try:
        import_module("flwr")
    except ImportError as error:
        raise FeddleError("a real federation needs Flower; pip install 'feddle[flower]'") from error
