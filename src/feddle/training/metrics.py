"""How good the outputs of a model are: for classes, for labels of which several may apply, and for numbers."""

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# `classes`: one class of several; `labels`: each of several labels applies or not; `numbers`: regression
Task = Literal["classes", "labels", "numbers"]
_MOST = 100  # classes in a confusion matrix
_LOSSES_OF_OTHERS = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
)
_MODULES_OF_OTHERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)


def task_of(outputs: Tensor, targets: Tensor, loss: object) -> Task:
    """What a model predicts. Targets of 0 and 1 are labels if the loss takes logits, else numbers."""
    loss = innermost(loss)
    if not targets.is_floating_point():
        return "classes" if outputs.ndim == targets.ndim + 1 else "numbers"
    if loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        return "classes"  # the targets are the probabilities of the classes
    logits = loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)
    return "labels" if logits and bool(((targets == 0) | (targets == 1)).all()) else "numbers"


def may_be_of_classes(loss: object) -> bool:
    """Whether a loss may be one of classes: False for torch's losses of numbers, and of labels that may be combined."""
    loss = innermost(loss)
    return loss not in _LOSSES_OF_OTHERS and not isinstance(loss, _MODULES_OF_OTHERS)


def innermost(loss: object) -> object:
    """The function inside `functools.partial`."""
    while isinstance(loss, partial):
        loss = loss.func
    return loss


def measured(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """The metrics of a task. One that is not defined for these targets is left out."""
    found: dict[str, float | None]
    if task == "classes":
        right = is_right(outputs, targets)
        found = {
            "accuracy": int(right.sum()) / right.numel(),
            "balanced_accuracy": _mean(class_accuracy(outputs, targets)),
            "auc": auc(outputs, targets),
        }
    elif task == "labels":
        right = (outputs > 0) == (targets > 0)
        found = {"f1": _mean(label_f1(outputs, targets)), "label_accuracy": int(right.sum()) / right.numel()}
    elif outputs.numel() == targets.numel():
        errors = (outputs.reshape(targets.shape) - targets).double()
        found = {"mae": errors.abs().mean().item(), "r2": r2(errors, targets.double())}
    else:  # such as the parameters of a distribution: there is only the loss
        found = {}
    return {name: value for name, value in found.items() if value is not None}


def details(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """What is measured only at the end of a run: for each class, or for each label."""
    if task == "classes":
        known = {} if outputs.shape[1] > _MOST else {"confusion": confusion(outputs, targets).tolist()}
        return {"accuracy": _listed(class_accuracy(outputs, targets)), **known}
    if task == "labels":
        right = ((outputs > 0) == (targets > 0)).double().reshape(len(targets), -1).mean(0)
        return {"accuracy": _listed(right), "f1": _listed(label_f1(outputs, targets))}
    return {}


def labels_of(targets: Tensor) -> Tensor:
    """The class of each example; of probabilities, the most probable one."""
    return targets.argmax(1) if targets.is_floating_point() else targets


def is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the most probable class is the true one, for each example."""
    return outputs.argmax(1) == labels_of(targets)


def confusion(outputs: Tensor, targets: Tensor) -> Tensor:
    """How often each class (row) was taken for each class (column), as (C, C). Other targets do not count."""
    classes, labels = outputs.shape[1], labels_of(targets).flatten()
    known = (labels >= 0) & (labels < classes)
    pairs = labels[known] * classes + outputs.argmax(1).flatten()[known]
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def class_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of each class that is recognised (C,); NaN for a class without examples."""
    classes, labels = outputs.shape[1], labels_of(targets).flatten()
    known = (labels >= 0) & (labels < classes)
    right = known & (outputs.argmax(1).flatten() == labels)
    found, all_of = (torch.bincount(labels[chosen], minlength=classes).double() for chosen in (right, known))
    return found / all_of


def auc(outputs: Tensor, targets: Tensor) -> float | None:
    """The area under the ROC curve: the chance that a random example of class 1 scores above one of class 0.

    None unless there are two classes, and examples of both.
    """
    if outputs.shape[1] != 2:
        return None
    labels = labels_of(targets).flatten()
    scores = (outputs[:, 1] - outputs[:, 0]).flatten()
    _, place, count = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (count.cumsum(0).double() - (count - 1) / 2)[place]  # equal scores share their mean rank
    ones, zeros = int((labels == 1).sum()), int((labels == 0).sum())
    above = ranks[labels == 1].sum().item() - ones * (ones + 1) / 2
    return above / (ones * zeros) if ones and zeros else None


def label_f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """F1 of each label (L,): 2TP / (2TP + FP + FN); NaN for a label that is neither present nor predicted."""
    said, true = ((part > 0).reshape(len(targets), -1) for part in (outputs, targets))
    return 2 * (said & true).sum(0).double() / (said.sum(0) + true.sum(0))


def r2(errors: Tensor, targets: Tensor) -> float | None:
    """The share of the variance that is explained, as a mean over the columns; None if no column varies."""
    squares, targets = errors.reshape(len(errors), -1).square().sum(0), targets.reshape(len(targets), -1)
    varied = (targets - targets.mean(0)).square().sum(0)
    return _mean(torch.where(varied > 0, 1 - squares / varied, torch.nan))


def _mean(values: Tensor) -> float | None:
    """The mean of the values that are defined."""
    found = values[~values.isnan()]
    return found.mean().item() if len(found) else None


def _listed(values: Tensor) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]  # NaN is not equal to itself
