"""Asynchronous federated learning on hybrid data.

>>> import feddle
>>> run = feddle.simulate(model, clients, server=server_data, test=test_data, rounds=50)  # doctest: +SKIP

Names are imported when they are first used: importing torch takes a second, and `feddle --help` does not need it.
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

_NAMES = {
    "feddle.core.atlas": ("Atlas",),
    "feddle.core.errors": ("FeddleError",),
    "feddle.core.layout": ("Layout", "Weights"),
    "feddle.core.messages": ("Arrival", "Job", "Merged", "Update"),
    "feddle.methods.strategy": ("Strategy",),
    "feddle.run.folder": ("run_config",),
    "feddle.run.load": ("load_config",),
    "feddle.run.plan": ("Config",),
    "feddle.run.run": ("Run",),
    "feddle.run.simulate": ("by_client", "by_dirichlet", "simulate"),
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
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'feddle' has no attribute {name!r}")
