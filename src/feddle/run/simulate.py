"""Runs with simulated clients: from a config, or with your own model and data."""

import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddle.clients.attacks import AttackParts
from feddle.clients.work import ClientWork
from feddle.core.durable import remove_with
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.core.ranks import Ranks
from feddle.core.seeds import seed_for
from feddle.data.collection import NOBODY, ranks
from feddle.data.examples import Data, Examples, as_examples
from feddle.data.partition import by_owner, dirichlet
from feddle.methods.strategy import Strategy, reads_labels
from feddle.run.arguments import (
    check_clients,
    check_fit,
    check_list,
    check_model,
    check_numbers,
    check_strategy,
    examples_of,
    functions_in,
    metrics_in,
)
from feddle.run.diagnostics import Diagnostics, InDomainComparison
from feddle.run.load import validated
from feddle.run.per_client import PerClient
from feddle.run.plan import Checkpoints, SimulationPlan
from feddle.run.problem import OwnedExamples, PartitionedClients, Problem
from feddle.run.progress import RunDisplay, is_watched
from feddle.run.ranked import digests
from feddle.run.run import Line, Listener, Run, build_server, resolve_device
from feddle.runtimes.ray import RayOptions, RayPool
from feddle.runtimes.simulation import InlineTrainer, Simulation
from feddle.runtimes.workers import WorkerPool
from feddle.training.machine import require_bfloat16
from feddle.training.metrics import Task
from feddle.training.objectives import TaskObjective
from feddle.training.scorers import MetricFunction
from feddle.training.train import Loss

AHEAD_BYTES = 2**30  # of finished updates that wait for their arrival
_LONGEST_DELAY = 4.0  # in units of σ; one delay in 16,000 is longer
AnyTrainer = InlineTrainer | WorkerPool | RayPool


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
    metrics: str | MetricFunction | Sequence[str | MetricFunction] = (),
    classes: Sequence[str] = (),
    per_round: int = 10,
    strategy: Strategy | None = None,
    out: Path | str | None = None,
    callbacks: Listener | Sequence[Listener] = (),
    patience: int | None = None,
    progress: bool | None = None,
    scratch: Path | None = None,
    checkpoint: Mapping[str, Any] | None = None,
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
    metrics: further metrics, or one: names of scikit-learn's scorers, import paths (`module:name`) of functions, and
        functions. A function gets all outputs and targets of the test data, and returns a number.
    classes: the names of the classes, which are stored with the model in `out`.
    per_round: number of clients sampled each round.
    strategy: your own method, an object with `merge`; it replaces `method`.
    out: a folder for the run. Called again with the same `out`, a stopped run continues and a finished one is loaded.
    callbacks: functions (or one) that get each line of history, a dict. One that returns True ends the run.
    patience: end the run after this many evaluations in a row without a better main metric: accuracy, F1 of labels,
        or, lower being better, the mean absolute error of numbers or the test loss.
    progress: whether to show progress; by default in a terminal or a notebook.
    scratch: a folder for data that does not fit in memory, if there is no `out`.
    checkpoint: with `out`, how often the run is saved: `{"every": 10}` rounds; by default about once per minute.
    plan: these top-level keys of a config file: `rounds`, `seed`, `training`, `delays`, `evaluation`, `diagnostics`,
        `checks`, `attack`, `privacy`, `method` (a name, or options), `averaging`, `workers`, `executor` and `device`.
    """
    check_model(model)
    check_strategy(strategy)
    check_list(clients)
    listeners = functions_in(callbacks)
    check_numbers(server_classes, patience, task, tested=test is not None)
    if checkpoint is not None and out is None:
        raise FeddleError("simulate: checkpoint= needs a folder for the run; add out=")
    every = validated(Checkpoints, dict(checkpoint or {}), source="simulate: checkpoint").every
    selected = metrics_in(metrics)
    named = [metric for metric in selected if isinstance(metric, str)]
    tree = {**plan, "metrics": named or None, "clients": {"count": len(clients), "per_round": per_round}}
    checked = validated(SimulationPlan, tree, source="simulate")
    names: Sequence[str] = getattr(clients, "names", ())
    whole, owners = _owned(test, names)
    shares = [examples_of(client, f"clients[{number}]") for number, client in enumerate(clients)]
    guides = None if server is None else examples_of(server, "server=", least=1)
    measures = None if whole is None else examples_of(whole, "test=", least=1)
    sizes = torch.tensor([len(share) for share in shares])
    outside = None if server_classes is None else "of another task"
    problem = Problem(
        *(model, shares, sizes, guides, measures, loss, outside, server_classes),
        task=task,
        test_owners=owners,
        classes=tuple(classes),
        client_names=names,
        metrics=[metric for metric in selected if not isinstance(metric, str)],
    )
    count = check_clients(model, shares, names, loss)
    if classes and count not in (None, len(classes)):
        raise FeddleError(f"simulate: classes has {len(classes)} names, but the model has {count} outputs; name each")
    check_fit(model, guides, "server=", loss if server_classes is None and reads_labels(checked.method) else None)
    check_fit(model, measures, "test=", loss)
    with RunDisplay(quiet=not (is_watched() if progress is None else progress)) as display:
        listener = _listener(display, checked.method_name(strategy), checked.rounds, listeners)
        if out is not None:
            from feddle.run.library import simulate_in  # it needs this module

            return simulate_in(Path(out), checked, problem, strategy, listener, patience, every)
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
    each = None if problem.test is None else PerClient(problem, problem.test, layout, plan.training, plan.seed)
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
    return Run(plan, problem, layout, simulation, plan.method_name(strategy), device, trainer, diagnostics, each)


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
