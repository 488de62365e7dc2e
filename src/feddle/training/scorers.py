"""Metrics that users choose: the scorers of scikit-learn by name, and their own functions, also by import path."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from feddle.core.errors import FeddleError, did_you_mean, one_line
from feddle.core.importing import imported, is_import_path
from feddle.training.metrics import labels_of
from feddle.training.train import Score

MetricFunction = Callable[[Tensor, Tensor], float]  # (outputs, targets) → a number
Scorer = Callable[[Score], float]


def scorers(chosen: Sequence[str | MetricFunction]) -> dict[str, Scorer]:
    """The metrics by name. A function is called with all outputs and targets, and has the name of its definition.

    A text with a colon is the import path of a function, and is its name too.
    """
    found: dict[str, Scorer] = {}
    for each in chosen:
        name = each if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
        if not (isinstance(each, str) or callable(each)) or name == "<lambda>" or name in found:
            what = "twice the metric" if name in found else "the metric"
            raise FeddleError(f"metrics: expected different names and functions made with def, got {what} {name!r}")
        if isinstance(each, str):
            found[name] = partial(_own, _imported(each)) if is_import_path(each) else _scikit_learn(each)
        else:
            found[name] = partial(_own, each)
    return found


def apply(chosen: Mapping[str, Scorer], score: Score) -> dict[str, float | None]:
    """The value of each metric; None if it is not finite."""
    found: dict[str, float | None] = {}
    for name, scorer in chosen.items():
        try:
            value = float(scorer(score))
        except Exception as error:  # functions of users and of scikit-learn raise errors of many kinds
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            raise FeddleError(f"metrics: {name} failed on the test data ({reason}); correct or remove it") from error
        found[name] = value if math.isfinite(value) else None
    return found


def _own(function: MetricFunction, score: Score) -> float:
    return function(score.outputs, score.targets)


def _imported(path: str) -> MetricFunction:
    try:
        function: MetricFunction = imported(path)
    except FeddleError as error:
        raise FeddleError(f"metrics: {error}") from error
    if not callable(function):
        raise FeddleError(
            f"metrics: expected a function at {path!r}, found {type(function).__name__}; name another one"
        )
    return function


def _scikit_learn(name: str) -> Scorer:
    """A scorer of scikit-learn. Scorers call an estimator, so the outputs are wrapped in one."""
    try:
        from sklearn.metrics import get_scorer, get_scorer_names
    except ImportError as error:
        raise FeddleError(f"metrics: {name} requires scikit-learn; pip install 'feddle[metrics]'") from error
    if name not in get_scorer_names():
        hint = did_you_mean(name, get_scorer_names(), "sklearn.metrics.get_scorer_names() lists the known ones")
        raise FeddleError(f"metrics: unknown metric {name!r}; {hint}")
    scorer = get_scorer(name)

    def of(score: Score) -> float:
        from feddle.training.estimators import as_estimator

        targets = labels_of(score.targets) if score.task == "classes" else score.targets
        return float(scorer(as_estimator(score), score.outputs.numpy(), targets.numpy()))

    return of
