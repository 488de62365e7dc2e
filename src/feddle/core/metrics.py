"""The metrics by which runs are compared: their direction, and how they are shown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is."""

    name: str  # its field in the history
    words: str
    higher: bool = True  # whether higher is better
    share: bool = True  # whether it is a share, which is shown in per cent

    def best(self, values: Sequence[float]) -> float | None:
        """The best of several values; None without values."""
        return (max if self.higher else min)(values, default=None)

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than another."""
        return one > other if self.higher else one < other

    def shown(self, value: float | None) -> str:
        """The value for readers: a share as 83.1%, any other number with three digits."""
        if value is None:
            return "–"
        return f"{round(100 * value, 1):.1f}%" if self.share else f"{value:.3g}"

    def worst_tenth(self, values: Sequence[float]) -> float:
        """The mean of the worst tenth of the values; the number of these values is rounded up."""
        return fmean(sorted(values, reverse=not self.higher)[: math.ceil(len(values) / 10)])


ACCURACY = Metric("accuracy", "Accuracy")
# The first one that a run has is its main metric.
MAIN = (
    ACCURACY,
    Metric("f1", "F1"),
    Metric("mae", "Mean absolute error", higher=False, share=False),
    Metric("test_loss", "Test loss", higher=False, share=False),
)


def main_metric(lines: Sequence[Mapping[str, Any]]) -> Metric:
    """The metric by which a run is compared; accuracy if nothing is measured yet."""
    return next((metric for metric in MAIN if any(metric.name in line for line in lines)), ACCURACY)


def reached(line: Mapping[str, Any]) -> str:
    """The main metric in a line of history, such as `accuracy 83.1%`; empty without an evaluation."""
    metric = main_metric([line])
    return f"{metric.words.lower()} {metric.shown(line[metric.name])}" if metric.name in line else ""


def metric_named(name: object) -> Metric:
    """The main metric of this name; accuracy for any other name."""
    return next((metric for metric in MAIN if metric.name == name), ACCURACY)
