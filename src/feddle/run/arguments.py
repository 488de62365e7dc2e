"""Checks of the arguments of `simulate`: whether model, data and functions fit each other."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from feddle.core.errors import FeddleError, one_line
from feddle.core.layout import Layout
from feddle.core.seeds import global_seed
from feddle.data.examples import Data, Examples, as_examples, stored_targets
from feddle.training.metrics import Task, task_of
from feddle.training.train import Loss, outputs_of


def examples_of(data: Data, name: str, least: int = 0) -> Examples:
    """The data of an argument as examples. An error names the argument."""
    try:
        examples = as_examples(data)
    except FeddleError as error:
        raise FeddleError(f"simulate: {name}: {error}") from error
    if len(examples) < least:
        raise FeddleError(f"simulate: {name}: the data is empty; omit it or add examples")
    return examples


@torch.no_grad()
def check_fit(model: nn.Module, examples: Examples | None, name: str, loss: Loss | None) -> int | None:
    """Refuse data that the model cannot process.

    Two examples are tried: one with the highest label, and the first one, or one with the lowest label if that is
    negative. Returns the number of outputs per example; None if the model was not called or gives single numbers.
    """
    if examples is None or not len(examples):
        return None
    labels, mode = _labels(examples), model.training
    ends = [0, 0] if labels is None else [int(labels.argmin()) if labels.min() < 0 else 0, int(labels.argmax())]
    model.eval()
    try:
        with global_seed(0):  # a data set may draw random numbers
            inputs, targets = examples.take(torch.tensor(ends))
            if loss is not None:
                outputs = outputs_of(model, inputs)
                _check_loss(outputs, targets.to(outputs.device), loss)
                return outputs.shape[1] if outputs.ndim > 1 else None
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = one_line(" ".join(str(error).split()).rstrip("."))
        remedy = "" if isinstance(error, FeddleError) else "; check its inputs and labels, and the model's outputs"
        raise FeddleError(f"simulate: {name}: {reason}{remedy}") from error
    finally:
        model.train(mode)
    return None


def _labels(examples: Examples) -> Tensor | None:
    """The targets of all examples, if they are stored apart from the inputs and are whole numbers."""
    known = stored_targets(examples) if len(examples) else None
    return known if known is not None and known.ndim == 1 and known.dtype == torch.int64 else None


def check_list(clients: object) -> None:
    """Refuse clients that are not a list."""
    if not isinstance(clients, Sequence) or isinstance(clients, str):
        found = type(clients).__name__
        raise FeddleError(f"simulate: clients must be a list with one data set per client, got {found}; see by_client")


def check_clients(model: nn.Module, clients: Sequence[Examples], names: Sequence[str], loss: Loss) -> int | None:
    """Refuse a client whose data the model cannot process. Returns the number of the model's outputs.

    The first client is tried. If labels are stored, each client with a new highest or lowest label is tried too.
    """
    count, all_known = None, True
    seen: set[int] = set()
    for number, examples in enumerate(clients):
        labels = _labels(examples)
        ends = set() if labels is None else {int(labels.min()), int(labels.max())}
        if number == 0 or (ends and (min(ends) < min(seen, default=0) or max(ends) > max(seen, default=-1))):
            name = f"clients[{number}]" + (f" ({names[number]})" if names else "")
            found = check_fit(model, examples, name, loss)
            count = found if count is None else count
        seen |= ends
        all_known = all_known and (labels is not None or not len(examples))
    if all_known and len(seen) == 1:
        only = f"all labels of the clients are {min(seen)}, so a model that always predicts this label is right"
        warnings.warn(f"simulate: {only}; check the labels", stacklevel=3)
    return count


def functions_in(callbacks: object) -> Sequence[Callable[..., object]]:
    """The callbacks, or the single one, as a list."""
    several = [callbacks] if callable(callbacks) else callbacks
    if not isinstance(several, list | tuple):
        raise FeddleError(f"simulate: callbacks must be a function or a list of functions, got {callbacks!r}")
    for each in several:
        if not callable(each):
            raise FeddleError(f"simulate: callbacks must be functions of a line of history (a dict), got {each!r}")
    return several


def metrics_in(metrics: object) -> list[Any]:
    """The metrics, or the single one, as a list."""
    several = [metrics] if isinstance(metrics, str) or callable(metrics) else metrics
    if not isinstance(several, list | tuple):
        raise FeddleError(f"simulate: metrics must be names and functions, or one of them, got {metrics!r}")
    return list(several)


def check_strategy(strategy: object) -> None:
    """Refuse a strategy without `merge`."""
    if isinstance(strategy, str):
        raise FeddleError(f"simulate: strategy must be an object with merge; for a method by name, method={strategy!r}")
    if isinstance(strategy, type):
        name = strategy.__name__
        raise FeddleError(f"simulate: strategy must be an object, got the class {name}; create one: {name}()")
    if strategy is not None and not callable(getattr(strategy, "merge", None)):
        raise FeddleError(f"simulate: strategy must be an object with merge, got {type(strategy).__name__}; add merge")


def _check_loss(outputs: Tensor, targets: Tensor, loss: Loss) -> None:
    """Refuse targets that the loss accepts but interprets differently: numbers as probabilities, or another shape."""
    probabilities = outputs.shape == targets.shape and outputs.ndim > 1 and outputs.shape[1] > 1
    if targets.is_floating_point() and task_of(outputs, targets, loss) == "classes" and not probabilities:
        remedy = "pass loss=F.mse_loss (or loss=F.binary_cross_entropy_with_logits for labels)"
        raise FeddleError(f"the targets are floating-point numbers; {remedy}")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")  # torch's losses warn if they broadcast
        try:
            loss(outputs, targets)
        except UserWarning as warning:
            raise FeddleError(_unequal(outputs, targets)) from warning
    if targets.is_floating_point() and outputs.numel() == targets.numel() and _broadcasts(outputs, targets, loss):
        raise FeddleError(_unequal(outputs, targets))


def _unequal(outputs: Tensor, targets: Tensor) -> str:
    found = f"targets {tuple(targets.shape)} and outputs {tuple(outputs.shape)} of two examples"
    return f"the loss needs equal shapes, but got {found}; reshape the targets"


def _broadcasts(outputs: Tensor, targets: Tensor, loss: Loss) -> bool:
    """Whether a hand-written loss pairs every output with every target, as outputs (2, 1) with targets (2,).

    The loss of two examples should be the mean or the sum of the losses of each. It is tried on numbers without a
    pattern, and called broadcasting only if it fails with these shapes and succeeds with equal ones.
    """
    if outputs.shape == targets.shape:
        return False
    ours = torch.tensor([0.3, 0.9], device=outputs.device)[:, None].expand(2, targets.numel() // 2)
    theirs = torch.tensor([0.7, 0.2], device=targets.device)[:, None].expand(2, targets.numel() // 2)

    def is_additive(shape: torch.Size) -> bool:
        out, true = ours.reshape(outputs.shape), theirs.reshape(shape)
        singles = sum(float(loss(out[i : i + 1], true[i : i + 1])) for i in range(2))
        both = float(loss(out, true))
        return min(abs(both - singles), abs(both - singles / 2)) < 1e-5 * max(1.0, abs(singles))

    try:
        return not is_additive(targets.shape) and is_additive(outputs.shape)
    except (IndexError, RuntimeError, TypeError, ValueError):  # it does not take other shapes
        return False


def check_model(model: object) -> None:
    """Refuse a model that cannot be trained."""
    if isinstance(model, type):
        raise FeddleError(f"simulate: expected a model, got the class {model.__name__}; create one: {model.__name__}()")
    if not isinstance(model, nn.Module):
        named = f"; {model!r} may be a name in a config, for feddle run" if isinstance(model, str) else ""
        raise FeddleError(f"simulate: expected a model (torch.nn.Module), got {type(model).__name__}{named}")
    if isinstance(model, torch.jit.ScriptModule):
        raise FeddleError("simulate: the model was compiled by torch.jit; pass the model that it was made from")
    tensors = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) or tensor.is_meta for tensor in tensors):
        found = "has lazy layers or is on the meta device, so it has no weights"
        raise FeddleError(f"simulate: the model {found}; run it once on an input, or load its weights")
    Layout.of(model)  # refuses a model without trainable parameters


def check_numbers(server_classes: object, patience: object, task: object, *, tested: bool) -> None:
    """Refuse an invalid number of classes or evaluations, and an unknown task."""
    if server_classes is not None and not (type(server_classes) is int and server_classes > 1):
        raise FeddleError(f"simulate: server_classes must be a whole number from 2 up, got {server_classes!r}")
    if patience is not None and not (type(patience) is int and patience > 0 and tested):
        raise FeddleError(f"simulate: patience must be a whole number from 1 up, with test data, got {patience!r}")
    if task not in (None, *get_args(Task)):
        raise FeddleError(f"simulate: task must be one of {', '.join(get_args(Task))}, got {task!r}")
