"""A custom method, named by its import path."""

from pydantic import model_validator

from feddle.core.importing import called, imported
from feddle.methods.strategy import MethodOptions, Strategy
from feddle.options import Imported
from feddle.training.parts import Parts


class ImportedMethod(MethodOptions, Imported):
    """A custom method: a class with `merge`, by its import path. All other keys are its arguments."""

    @model_validator(mode="after")
    def _merges(self) -> "ImportedMethod":
        target = imported(self.name)
        if not (isinstance(target, type) and (hasattr(target, "merge") or hasattr(target, "build"))):
            raise ValueError(
                f"{self.name}: expected a class with merge(model, arrivals, round); add it, or name another"
            )
        return self

    def build(self, parts: Parts) -> Strategy:
        """The method; like feddle's own, an options class with `build` gets the parts."""
        made = called(self.name, self.arguments)
        strategy: Strategy = made.build(parts) if hasattr(made, "build") else made
        return strategy
