"""Custom objects, named by an import path such as `mypackage.module:Name`."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from feddle.core.errors import FeddleError, did_you_mean, one_line


def is_import_path(name: object) -> bool:
    """Whether a name in a config is an import path, and not one of feddle's own names."""
    return isinstance(name, str) and ":" in name


def imported(path: str) -> Any:
    """The object at an import path, `module:Name`. Modules in the current folder are found too."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise FeddleError(f"expected an import path such as mypackage.module:Name, got {path!r}")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - the command `feddle` does not search it by itself
        sys.path.append(here)
    try:
        found: Any = import_module(module)
    except Exception as error:  # a module of the user may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            where = "install it, set PYTHONPATH, or start feddle in the folder that holds it"
            raise FeddleError(f"cannot import {path!r}: there is no module {error.name!r}; {where}") from error
        raise FeddleError(f"cannot import {path!r}: {error_text(error)}; correct that module") from error
    for part in name.split("."):
        if not hasattr(found, part):
            known = [
                n for n in dir(found) if not n.startswith("_") and not isinstance(getattr(found, n, None), ModuleType)
            ]
            hint = did_you_mean(part, known, "check the name after the colon")
            raise FeddleError(f"cannot import {path!r}: {module} has no {part!r}; {hint}")
        found = getattr(found, part)
    return found


def called(path: str, arguments: Mapping[str, Any], offers: Mapping[str, Any] | None = None) -> Any:
    """Call the object at an import path with these arguments, and with the `offers` that its signature accepts."""
    target = imported(path)
    chosen = {name: value for name, value in (offers or {}).items() if _takes(target, name)}
    try:
        return target(**{**chosen, **arguments})
    except FeddleError:
        raise
    except Exception as error:  # code of the user may raise anything; --debug shows the traceback
        raise FeddleError(f"{path} failed: {error_text(error)}; correct it or its options") from error


def check_arguments(path: str, arguments: Iterable[str], offers: Iterable[str] = ()) -> None:
    """Refuse arguments that the object at an import path does not take, and missing arguments that it requires."""
    target, given = imported(path), list(arguments)
    if not callable(target):
        raise FeddleError(f"expected a class or function at {path!r}, found {type(target).__name__}; name another one")
    if (parameters := _parameters(target)) is None:
        return
    for name in given:
        if not _takes(target, name):
            hint = did_you_mean(name, parameters, f"it takes {', '.join(parameters) or 'no options'}")
            raise FeddleError(f"unknown key {name!r} of {path}; {hint}")
    for name, each in parameters.items():
        if each.default is each.empty and name not in (*given, *offers):
            raise FeddleError(f"{path} needs a value for {name!r}; add that key")


def error_text(error: Exception) -> str:
    """An error of the user's code in one line."""
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def error_place(error: Exception) -> str:
    """Where the user's code failed: file and line of the last frame in the file that feddle called; may be empty."""
    frames = extract_tb(error.__traceback__)[1:]  # the first is the call
    inside = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({Path(inside[-1].filename).name}, line {inside[-1].lineno})" if inside else ""


def _parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters that can be given by name; None if Python does not know them."""
    try:
        found = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return None
    return {each.name: each for each in found if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}


def _takes(target: Callable[..., Any], name: str) -> bool:
    parameters = _parameters(target)
    if parameters is None or name in parameters:
        return parameters is not None
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(target).parameters.values())
