"""Asynchronous federated learning on hybrid data.

>>> import feddle
>>> run = feddle.simulate(model, clients, server=server_data, test=test_data, rounds=50)  # doctest: +SKIP

The names below are loaded when first used: torch takes a second to import, `feddle --help` does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from feddle.version import __version__

if TYPE_CHECKING:
    from feddle.core.atlas import Atlas
    from feddle.core.errors import FeddleError
    from feddle.core.layout import Layout, Weights
    from feddle.core.messages import Arrival, Job, Merged, Update
    from feddle.methods.strategy import Strategy
    from feddle.run.folder import run_config
    from feddle.run.load import load_config
    from feddle.run.plan import Config
    from feddle.run.run import Run
    from feddle.run.simulate import by_client, by_dirichlet, simulate

_HOMES = {
    "Arrival": "feddle.core.messages",
    "Atlas": "feddle.core.atlas",
    "Config": "feddle.run.plan",
    "FeddleError": "feddle.core.errors",
    "Job": "feddle.core.messages",
    "Layout": "feddle.core.layout",
    "Merged": "feddle.core.messages",
    "Run": "feddle.run.run",
    "Strategy": "feddle.methods.strategy",
    "Update": "feddle.core.messages",
    "Weights": "feddle.core.layout",
    "by_client": "feddle.run.simulate",
    "by_dirichlet": "feddle.run.simulate",
    "load_config": "feddle.run.load",
    "run_config": "feddle.run.folder",
    "simulate": "feddle.run.simulate",
}

__all__ = [
    "Arrival",
    "Atlas",
    "Config",
    "FeddleError",
    "Job",
    "Layout",
    "Merged",
    "Run",
    "Strategy",
    "Update",
    "Weights",
    "__version__",
    "by_client",
    "by_dirichlet",
    "load_config",
    "run_config",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddle' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
