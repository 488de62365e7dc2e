"""Estimators for scikit-learn's scorers. Their inputs are the outputs of a model, from which they predict."""

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from feddle.training.train import Score

Array = np.ndarray[Any, Any]


def as_estimator(score: Score) -> Any:
    """An estimator for the task of a score."""
    match score.task:
        case "classes":
            return Classes(score.outputs.shape[1])
        case "labels":
            return Labels(score.outputs.shape[-1])
        case "numbers":
            return Numbers()


class Classes(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Chooses the class with the largest output."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.classes_ = np.arange(count)

    def predict(self, outputs: Array) -> Array:
        """The class of each example."""
        chosen: Array = outputs.argmax(1)
        return chosen

    def predict_proba(self, outputs: Array) -> Array:
        """The probability of each class."""
        return torch.from_numpy(outputs).double().softmax(1).numpy()


class Labels(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A label applies if its output is above 0."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.classes_ = [np.arange(2)] * count

    def predict(self, outputs: Array) -> Array:
        """0 or 1 for each label."""
        return (outputs > 0).astype(int)

    def decision_function(self, outputs: Array) -> Array:
        """The outputs, which are logits."""
        return outputs


class Numbers(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts the outputs themselves."""

    def predict(self, outputs: Array) -> Array:
        """The outputs."""
        return outputs
