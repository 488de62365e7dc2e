"""A method of your own, named by its import path."""

from typing import Any

from pydantic import model_validator

from feddle.core.errors import FeddleError
from feddle.core.importing import called, imported
from feddle.methods.strategy import MethodOptions, Strategy
from feddle.options import Imported
from feddle.training.parts import Parts


class ImportedMethod(MethodOptions, Imported):
    """A method of your own: a class with `merge`, by its import path. All other keys are its arguments."""

    @model_validator(mode="after")
    def _merges(self) -> "ImportedMethod":
        target = imported(self.name)
        if isinstance(target, type):
            _require_merge(self.name, target)
        return self

    def build(self, parts: Parts) -> Strategy:
        """The method; like feddle's own, an options class with `build` gets the parts."""
        made = called(self.name, self.arguments)
        _require_merge(self.name, made)
        strategy: Strategy = made.build(parts) if hasattr(made, "build") else made
        return strategy


def _require_merge(path: str, found: Any) -> None:
    if not any(callable(getattr(found, name, None)) for name in ("merge", "build")):
        shown = found.__name__ if isinstance(found, type) else type(found).__name__
        raise FeddleError(f"{path}: expected a class with merge(model, arrivals, round), but {shown} has none; add it")
