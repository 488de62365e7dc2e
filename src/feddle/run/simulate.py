"""feddle as a library: train your own model on your own data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from feddle.core.errors import FeddleError
from feddle.core.seeds import seed_for
from feddle.data.collection import ranks
from feddle.data.examples import Examples, as_examples
from feddle.data.partition import by_owner, dirichlet
from feddle.methods.strategy import Strategy
from feddle.run.load import explain
from feddle.run.plan import SimulationPlan
from feddle.run.problem import PartitionedClients, Problem
from feddle.run.run import Listener, Run
from feddle.run.simulated import simulated
from feddle.runtimes.simulation import Simulation
from feddle.training.train import Loss

Data = Examples | Dataset[Any]


def by_client(data: Data, clients: Sequence[Any]) -> Sequence[Examples]:
    """Split a data set into clients for `simulate`: `clients` has the name of each example's client.

    Names may be any values. Clients are numbered in the order of their names.
    """
    examples = as_examples(data)
    _require_one_each(examples, clients, "client")
    owners, names = ranks([str(client) for client in clients])
    return PartitionedClients(examples, by_owner(owners, len(names)))


def by_dirichlet(
    data: Data, labels: Sequence[int] | Tensor, clients: int, *, alpha: float = 0.1, seed: int = 0
) -> Sequence[Examples]:
    """Split a data set into clients for `simulate`: each label is distributed in Dirichlet(α) proportions."""
    examples, column = as_examples(data), torch.as_tensor(labels)
    _require_one_each(examples, column, "label")
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
    test: Data | None = None,
    server_classes: int | None = None,
    loss: Loss = F.cross_entropy,
    per_round: int = 10,
    strategy: Strategy | None = None,
    listener: Listener | None = None,
    scratch: Path | None = None,
    **plan: Any,
) -> Run[Simulation]:
    """Train `model` in place on the clients' data, guided by the server's.

    `clients` has one torch dataset of (input, target) pairs per client. `server` is the server's own data, and accuracy
    is measured on `test`. If the server's labels belong to another task, `server_classes` is their number of classes.
    `plan` takes the top-level keys of a config file: `rounds`, `seed`, `training`, `delays`, `evaluation`,
    `diagnostics`, `checks`, `attack`, `privacy`, `method` (a name, or a mapping with options) and `device`. `strategy`
    is your own method and replaces `method`. `scratch` is a folder for data that does not fit in memory.
    """
    tree: Mapping[str, Any] = {**plan, "clients": {"count": len(clients), "per_round": per_round}}
    try:
        checked = SimulationPlan.model_validate(tree)
    except ValidationError as error:
        raise FeddleError(f"simulate: {explain(error, dict(tree))}") from error
    for name, data in (("server", server), ("test", test)):
        if data is not None and not len(as_examples(data)):
            raise FeddleError(f"simulate: the {name} data is empty; omit it or add examples")
    shares = [as_examples(client) for client in clients]
    problem = Problem(
        model,
        shares,
        torch.tensor([len(share) for share in shares]),
        None if server is None else as_examples(server),
        None if test is None else as_examples(test),
        loss,
        out_of_domain=None if server_classes is None else "of another task",
        server_classes=server_classes,
    )
    run = simulated(checked, problem, strategy, scratch=scratch)
    run.go(listener)
    return run
