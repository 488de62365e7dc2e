"""Runs with simulated clients: of a config, or of your own model and data."""

import math
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset

from feddle.clients.attacks import AttackParts
from feddle.clients.work import ClientWork
from feddle.core.durable import remove_with
from feddle.core.errors import FeddleError, one_line
from feddle.core.layout import Layout
from feddle.core.ranks import Ranks
from feddle.core.seeds import global_seed, seed_for
from feddle.data.collection import NOBODY, ranks
from feddle.data.examples import Examples, as_examples, classes_of
from feddle.data.partition import by_owner, dirichlet
from feddle.methods.strategy import Strategy, reads_labels
from feddle.run.diagnostics import Diagnostics, InDomainComparison
from feddle.run.load import validated
from feddle.run.per_client import PerClient
from feddle.run.plan import SimulationPlan
from feddle.run.problem import OwnedExamples, PartitionedClients, Problem
from feddle.run.progress import RunDisplay, is_watched
from feddle.run.ranked import digests
from feddle.run.run import Line, Listener, Run, build_server, resolve_device
from feddle.runtimes.ray import RayOptions, RayPool
from feddle.runtimes.simulation import InlineTrainer, Simulation
from feddle.runtimes.workers import WorkerPool
from feddle.training.machine import require_bfloat16
from feddle.training.metrics import Task, task_of
from feddle.training.objectives import TaskObjective
from feddle.training.scorers import MetricFunction
from feddle.training.train import Loss, outputs_of

AHEAD_BYTES = 2**30  # of finished updates that wait for their arrival
_LONGEST_DELAY = 4.0  # in units of σ; one delay in 16,000 is longer
AnyTrainer = InlineTrainer | WorkerPool | RayPool

Data = Examples | Dataset[Any]


def by_client(data: Data, clients: Sequence[Any]) -> Sequence[Examples]:
    """Split `data` into clients for `simulate`: `clients` has the name of each example's client.

    Names may be any values. Clients are numbered in the order of their names.
    """
    examples = as_examples(data)
    _require_one_each(examples, clients, "client")
    owners, names = ranks([str(client) for client in clients])
    return PartitionedClients(examples, by_owner(owners, len(names)), names)


def by_dirichlet(
    data: Data, labels: Sequence[int] | Tensor, clients: int, *, alpha: float = 0.1, seed: int = 0
) -> Sequence[Examples]:
    """Split `data` into clients for `simulate`: each label is distributed in Dirichlet(α) proportions.

    `labels` has a number for each example, `clients` is the number of clients, and `seed` determines the split. The
    smaller `alpha` is, the fewer clients share a label.
    """
    examples = as_examples(data)
    _require_one_each(examples, labels, "label")
    try:
        column = torch.as_tensor(labels).cpu().reshape(len(examples))
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeddleError(f"by_dirichlet: expected a number for each label, got {labels[0]!r}; number them") from error
    if clients < 1:
        raise FeddleError(f"by_dirichlet: clients must be 1 or more, got {clients}")
    return PartitionedClients(examples, dirichlet(column, clients, alpha, seed_for(seed, "partition")))


def _require_one_each(examples: Examples, column: Sequence[Any] | Tensor, what: str) -> None:
    if len(column) != len(examples) or not len(examples):
        raise FeddleError(f"expected a {what} for each of the {len(examples)} examples (1 or more), got {len(column)}")


def simulate(
    model: nn.Module,
    clients: Sequence[Data],
    *,
    server: Data | None = None,
    test: Data | Sequence[Examples] | None = None,
    server_classes: int | None = None,
    loss: Loss = F.cross_entropy,
    task: Task | None = None,
    metrics: Sequence[str | MetricFunction] = (),
    classes: Sequence[str] = (),
    per_round: int = 10,
    strategy: Strategy | None = None,
    out: Path | str | None = None,
    callbacks: Listener | Sequence[Listener] = (),
    patience: int | None = None,
    progress: bool | None = None,
    scratch: Path | None = None,
    **plan: Any,
) -> Run[Simulation]:
    """Train `model` in place on the clients' data, guided by the server's. Returns the `Run`.

    model: any module. After the call it holds the trained weights.
    clients: one data set per client: a map-style torch dataset of (input, target) pairs. An input is a tensor, or a
        tuple or dict of tensors. The model is called with a batch of inputs: model(inputs), model(*inputs) for a tuple,
        model(**inputs) for a dict.
    server: the server's own data, which guides the merge.
    test: the data on which the model is measured. If it and `clients` come from `by_client` or `open_data`, the model
        is also measured for each client on its own test data.
    server_classes: number of classes of the server's labels, if they belong to another task than the clients'.
    loss: a function of (outputs, targets) that returns the mean loss of a batch.
    task: `classes`, `labels` or `numbers`, if the targets and the loss do not show what the model predicts.
    metrics: further metrics: names of scikit-learn's scorers, import paths (`module:name`) of functions, and functions.
        A function gets all outputs and targets of the test data, and returns a number.
    classes: the names of the classes, which are stored with the model in `out`.
    per_round: number of clients sampled each round.
    strategy: your own method, an object with `merge`; it replaces `method`.
    out: a folder for the run. Called again with the same `out`, a stopped run continues and a finished one is loaded.
    callbacks: functions (or one) that get each line of history, a dict. One that returns True ends the run.
    patience: end the run after this many evaluations in a row without a better main metric: accuracy, F1 of labels,
        or, lower being better, the mean absolute error of numbers or the test loss.
    progress: whether to show progress; by default in a terminal or a notebook.
    scratch: a folder for data that does not fit in memory, if there is no `out`.
    plan: the top-level keys of a config file: `rounds`, `seed`, `training`, `delays`, `evaluation`, `diagnostics`,
        `checks`, `attack`, `privacy`, `method` (a name, or options), `averaging`, `workers` and `device`.
    """
    _check_model(model)
    if server_classes is not None and not (type(server_classes) is int and server_classes > 1):
        raise FeddleError(f"simulate: server_classes must be a whole number from 2 up, got {server_classes!r}")
    if patience is not None and not (type(patience) is int and patience > 0 and test is not None):
        raise FeddleError(f"simulate: patience must be a whole number from 1 up, with test data, got {patience!r}")
    if task not in (None, *get_args(Task)):
        raise FeddleError(f"simulate: task must be one of {', '.join(get_args(Task))}, got {task!r}")
    named = [metric for metric in metrics if isinstance(metric, str)]
    tree = {**plan, "metrics": named or None, "clients": {"count": len(clients), "per_round": per_round}}
    checked = validated(SimulationPlan, tree, source="simulate")
    names: Sequence[str] = getattr(clients, "names", ())
    whole, owners = _owned(test, names)
    shares = [_examples(client, f"clients[{number}]") for number, client in enumerate(clients)]
    guides = None if server is None else _examples(server, "server=", least=1)
    measures = None if whole is None else _examples(whole, "test=", least=1)
    sizes = torch.tensor([len(share) for share in shares])
    outside = None if server_classes is None else "of another task"
    problem = Problem(
        *(model, shares, sizes, guides, measures, loss, outside, server_classes),
        task=task,
        test_owners=owners,
        classes=tuple(classes),
        client_names=names,
        metrics=[metric for metric in metrics if not isinstance(metric, str)],
    )
    count = _check_fit(model, shares[0] if shares else None, "clients[0]", loss)
    if classes and count not in (None, len(classes)):
        raise FeddleError(f"simulate: classes has {len(classes)} names, but the model has {count} outputs; name each")
    _check_fit(model, guides, "server=", loss if server_classes is None and reads_labels(checked.method) else None)
    _check_fit(model, measures, "test=", loss)
    with RunDisplay(quiet=not (is_watched() if progress is None else progress)) as display:
        method = checked.method.name if strategy is None else type(strategy).__name__
        several = [callbacks] if callable(callbacks) else callbacks
        listener = _listener(display, method, checked.rounds, several)
        if out is not None:
            from feddle.run.library import simulate_in  # it needs this module

            return simulate_in(Path(out), checked, problem, strategy, listener, patience)
        own = None if scratch is None else _own_folder(scratch)
        run = simulated(checked, problem, strategy, scratch=own)
        if own is not None:
            remove_with(run, own)
        run.patience = patience
        run.go(listener)
        return run


def _own_folder(scratch: Path) -> Path:
    """A new folder in `scratch`, which other runs may use too."""
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="feddle-", dir=scratch))
    except OSError as error:
        raise FeddleError(f"simulate: scratch: cannot write to {scratch}: {error.strerror}; name another") from error


def _listener(display: RunDisplay, method: str, rounds: int, callbacks: Sequence[Listener]) -> Listener:
    """Shows each line of history and calls the callbacks; True if one of them returned it."""

    def listen(line: Line) -> bool:
        if not display.bars.tasks:
            display.begin(method, rounds, line["round"] - 1)
        display.show(line)
        asked = [callback(line) is True for callback in callbacks]  # all of them are called
        return any(asked)

    return listen


def _owned(test: Any, names: Sequence[str]) -> tuple[Any, Tensor | None]:
    """The test data, and the client of each example if the data names it; NOBODY if that client is unknown."""
    numbers = {name: number for number, name in enumerate(names)}
    if isinstance(test, OwnedExamples) and names:
        places = torch.tensor([*(numbers.get(name, NOBODY) for name in test.names), NOBODY])  # the last is of NOBODY
        return test.examples, places[test.owners]
    if not isinstance(test, PartitionedClients):
        return test, None
    owners = torch.full((len(test.examples),), NOBODY)
    for number, name in enumerate(test.names):
        owners[test.partition[number]] = numbers.get(name, NOBODY)
    return test.examples, owners


def _examples(data: Data, name: str, least: int = 0) -> Examples:
    """The data of an argument as examples. An error names the argument."""
    try:
        examples = as_examples(data)
    except FeddleError as error:
        raise FeddleError(f"simulate: {name}: {error}") from error
    if len(examples) < least:
        raise FeddleError(f"simulate: {name}: the data is empty; omit it or add examples")
    return examples


@torch.no_grad()
def _check_fit(model: nn.Module, examples: Examples | None, name: str, loss: Loss | None) -> int | None:
    """Refuse data that the model cannot compute. Tries the first example and one with the highest label.

    Returns the number of the model's outputs for an example, if it was called and gives several.
    """
    if examples is None or not len(examples):
        return None
    labels, mode = classes_of(examples), model.training
    model.eval()
    try:
        with global_seed(0):  # a data set may draw random numbers
            inputs, targets = examples.take(torch.tensor([0, 0 if labels is None else int(labels.argmax())]))
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


def _check_model(model: nn.Module) -> None:
    """Refuse what cannot be trained, in one line."""
    if isinstance(model, type):
        raise FeddleError(f"simulate: expected a model, got the class {model.__name__}; create one: {model.__name__}()")
    if not isinstance(model, nn.Module):
        raise FeddleError(f"simulate: expected a model (torch.nn.Module), got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise FeddleError("simulate: the model was compiled by torch.jit; pass the model that it was made from")
    tensors = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) or tensor.is_meta for tensor in tensors):
        found = "has lazy layers or is on the meta device, so it has no weights"
        raise FeddleError(f"simulate: the model {found}; run it once on an input, or load its weights")
    Layout.of(model)  # refuses a model without trainable parameters


def simulated(
    plan: SimulationPlan,
    problem: Problem,
    strategy: Strategy | None = None,
    *,
    scratch: Path | None = None,
    ranks: Ranks | None = None,
) -> Run[Simulation]:
    """A run with simulated clients.

    `strategy` replaces the plan's method. `scratch` is a folder for data that does not fit in memory. `ranks` share the
    search; this process is rank 0.
    """
    device = resolve_device(plan.device)
    if plan.training.precision == "bfloat16" and device == "cpu":
        require_bfloat16()
    problem.model.to(device=device)
    layout = Layout.of(problem.model)
    trainer = build_trainer(plan, problem, layout, device)
    observe = diagnostics = None
    if plan.diagnostics is not None:
        diagnostics = Diagnostics(problem, layout, trainer, plan.diagnostics, plan.training.batch_size, plan.seed)
        if problem.witness is not None:  # the server's data is of another domain
            objective = TaskObjective(problem.model, layout, problem.witness, problem.loss, samples_per_round=1000)
            observe = InDomainComparison(objective, plan.diagnostics.every)
    each = None if problem.test is None else PerClient(problem, layout, plan.training, plan.seed)
    server = build_server(
        plan, problem, layout, device, strategy, scratch=scratch, observe=observe, alone=each, ranks=ranks
    )
    eligible, per_round = problem.eligible.numpy(), plan.clients.per_round
    if len(eligible) < per_round:
        raise FeddleError(
            f"only {len(eligible)} of {len(problem.sizes)} clients have data, but clients.per_round is {per_round}; "
            "spread the data more evenly (data.partition) or lower clients.per_round"
        )
    if ranks is not None:
        ranks.agree(digests(plan, problem, layout))
    simulation = Simulation(server, trainer, plan.delays, eligible, per_round, plan.seed)
    method = plan.method.name if strategy is None else type(strategy).__name__
    return Run(plan, problem, layout, simulation, method, device, trainer, diagnostics, each)


def build_trainer(plan: SimulationPlan, problem: Problem, layout: Layout, device: str) -> AnyTrainer:
    """Workers on a cluster, worker processes if there are any, else training in this process."""
    training = ClientWork(
        problem.model, layout, problem.clients, plan.training, problem.loss, plan.seed, problem.augment
    )
    work = plan.attack.build(AttackParts(training, plan.privacy, problem.eligible))
    model = layout.read(problem.model)
    ahead = AHEAD_BYTES // model.num_bytes
    if isinstance(plan.executor, RayOptions):
        versions = min(plan.rounds, math.ceil(_LONGEST_DELAY * plan.delays.sigma) + 1)
        limits = {"cores": cores(), "horizon": plan.rounds, "ahead": ahead, "versions": versions}
        return RayPool(work, problem.model, model, plan.executor, plan.workers, **limits)
    workers = resolve_workers(plan.workers, device)
    if not workers:
        return InlineTrainer(work)
    return WorkerPool(work, model, workers, horizon=plan.rounds, ahead=max(2 * workers, ahead))


def resolve_workers(workers: int | None, device: str) -> int:
    """The number of worker processes, by default one per core. They require Linux (fork) and the CPU."""
    possible = sys.platform == "linux" and device == "cpu"
    if workers is None:
        return cores() if possible else 0
    if workers and not possible:
        raise FeddleError(
            f"workers: {workers} processes require Linux and device cpu, this is {sys.platform} and {device}; use 0"
        )
    return workers


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
