"""Checks of an update before it is merged. Its fields may hold anything, regardless of their declared types."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Job, Merged, Update

MOST_EXAMPLES = 10**12  # a larger number is not plausible, and sums could overflow
LARGEST_METRIC = 1e300
LARGEST_STATISTIC = 1e30  # running mean or variance; larger ones overflow when squared


def fault_of_form(update: Update, model: Weights, digest: str) -> str | None:
    """The reason why an update does not fit the model (type, layout, length, examples, metrics), or None if it fits."""
    delta, buffers = update.delta, update.buffers
    if not (_is_like(delta, model.vector) and _is_like(buffers, model.buffers)):
        return "wrong type"
    if type(update.digest) is not str or update.digest != digest:
        return "wrong layout"
    if delta.shape != model.vector.shape or buffers.shape != model.buffers.shape:
        return "wrong length"
    if not _is_count(update.num_examples):
        return "bad example count"
    if not _are_metrics(update.metrics):
        return "bad metrics"
    return None


def fault_of_values(update: Update) -> str | None:
    """Why the values of a well-formed update cannot be merged, or None. Its norm must be finite too."""
    if norm(update).isfinite() and (update.buffers.abs() <= LARGEST_STATISTIC).all():
        return None
    if update.delta.isnan().any() or update.buffers.isnan().any():
        return "not a number"
    if update.delta.isinf().any() or update.buffers.isinf().any():
        return "infinite"
    return "too long"


def fault_of_merge(merged: Any, model: Weights) -> str | None:
    """What is wrong with the value that a strategy returned, and what to do; None if it is a valid model."""
    if not isinstance(merged, Merged):
        return f"expected feddle.Merged(weights, notes), got {type(merged).__name__}; return one"
    weights: Any = merged.weights
    notes: Any = merged.notes
    if not isinstance(weights, Weights):
        return f"expected feddle.Weights(vector, buffers) in feddle.Merged, got {type(weights).__name__}; pass Weights"
    if not isinstance(notes, Mapping):
        return f"expected a mapping as the notes in feddle.Merged, got {type(notes).__name__}; pass a dict"
    for name in ("vector", "buffers"):
        value, own = getattr(weights, name), getattr(model, name)
        if not _is_like(value, own) or value.shape != own.shape:
            return f"expected weights.{name} to be {_shown(own)}, got {_shown(value)}; keep the model's shape and type"
        if not value.isfinite().all():
            return f"weights.{name} holds numbers that are not finite; lower training.lr or the method's learning rate"
    return None


def norm(update: Update) -> Tensor:
    """The norm of an update, ‖Δ‖."""
    length: Tensor = torch.linalg.vector_norm(update.delta)
    return length


def is_job(job: Any) -> bool:
    """Whether this is a job with three integers. True and 1.0 equal 1, but the server never sent them."""
    return type(job) is Job and all(type(n) is int for n in (job.client, job.number, job.version))


def _is_like(value: Any, own: Tensor) -> bool:
    """Whether a value is a plain dense tensor of the same dtype and device."""
    return (
        type(value) is Tensor
        and not value.is_nested
        and value.layout is torch.strided
        and (value.dtype, value.device) == (own.dtype, own.device)
        and not value.requires_grad
    )


def _shown(value: Any) -> str:
    if type(value) is not Tensor:
        return type(value).__name__
    grad = ", which requires grad" if value.requires_grad else ""
    return f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}{grad}"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= MOST_EXAMPLES


def _are_metrics(value: Any) -> bool:
    return type(value) is dict and all(
        type(name) is str and type(number) in (int, float) and abs(number) <= LARGEST_METRIC
        for name, number in value.items()
    )
