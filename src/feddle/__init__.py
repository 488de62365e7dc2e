"""Asynchronous federated learning on hybrid data.

>>> import feddle
>>> run = feddle.simulate(model, clients, server=server_data, test=test_data, rounds=50)  # doctest: +SKIP

Names are imported when they are first used: importing torch takes a second, and `feddle --help` does not need it. Type
checkers read them from `__init__.pyi`.
"""

from importlib import import_module

from feddle.version import __version__

_MODULES = {
    "core.atlas": ["Atlas"],
    "core.errors": ["FeddleError"],
    "core.layout": ["Layout", "Weights"],
    "core.messages": ["Arrival", "Job", "Merged", "Update"],
    "methods.strategy": ["Strategy"],
    "report.page": ["write_report"],
    "run.folder": ["run_config"],
    "run.load": ["load_config"],
    "run.own": ["open_data"],
    "run.plan": ["Config"],
    "run.run": ["Run"],
    "run.trained": ["load_model", "predict"],
    "run.simulate": ["by_client", "by_dirichlet", "simulate"],
}
_HOME = {name: f"feddle.{module}" for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'feddle' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
