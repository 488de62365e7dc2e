"""The server's side of a real federation, with a run folder like that of a simulation."""

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.flower.plan import FederationPlan
from feddle.methods.strategy import Strategy
from feddle.run.checkpoint import Pace
from feddle.run.folder import RunFolder, go_to_the_end
from feddle.run.load import holds_simulation
from feddle.run.problem import Problem
from feddle.run.run import Listener, Run, build_server, resolve_device
from feddle.runtimes.flower.network import Network
from feddle.runtimes.flower.roster import Roster
from feddle.runtimes.flower.rules import Clock
from feddle.training.train import Loss

STATUS = "status.json"
_STATUS_EVERY = 1.0  # seconds


def federated(
    plan: FederationPlan,
    problem: Problem,
    grid: Grid,
    strategy: Strategy | None = None,
    *,
    scratch: Path | None = None,
    clock: Clock | None = None,
) -> Run[Network]:
    """A run with the nodes of a Flower grid as its clients; `strategy` replaces the method of the plan."""
    device = resolve_device(plan.device)
    problem.model.to(device=device)
    layout = Layout.of(problem.model)
    server = build_server(plan, problem, layout, device, strategy, scratch=scratch)
    roster, per_round = Roster(plan.clients.count), plan.clients.per_round
    network = Network(server, grid, plan.federation, plan.training, plan.seed, per_round, roster, clock or Clock())
    method = plan.method.name if strategy is None else type(strategy).__name__
    return Run(plan, problem, layout, network, method=method, device=device)


def status_of(run: Run[Network]) -> dict[str, Any]:
    """The current state of a run, as JSON values."""
    measured = [line for line in run.history if "accuracy" in line]
    return {
        **run.runtime.status(),
        "rounds": run.plan.rounds,
        "method": run.method,
        "accuracy": measured[-1]["accuracy"] if measured else None,
        "staleness": run.history[-1]["staleness"] if run.history else [],
        "pid": os.getpid(),
        "at": round(time.time(), 3),
    }


def at_the_server(
    model: torch.nn.Module, server: Any, test: Any, loss: Loss, server_classes: int | None = None
) -> Problem:
    """The server's part of a problem, without clients."""
    outside = None if server_classes is None else "of another task"
    none = torch.zeros(0, dtype=torch.int64)
    return Problem(model, (), none, server, test, loss, out_of_domain=outside, server_classes=server_classes)


def run_in_folder(run: Run[Network], out: Path, listener: Listener | None = None) -> None:
    """Run to the end in a folder, or continue the run in it; every merge is followed by a checkpoint."""
    folder = RunFolder(out)
    with folder.locked():
        if folder.is_finished():
            raise FeddleError(f"{out} holds a finished federation; name another folder with out")
        check_no_simulation(out)
        if folder.checkpoint.facts() is None:  # nothing was merged yet, so the settings may still change
            folder.begin(run.plan)
        folder.restore(run)
        run.runtime.watch = partial(_write_status, run, out / STATUS, _STATUS_EVERY)
        go_to_the_end(run, folder, Pace(1), listener)
        _write_status(run, out / STATUS)


def check_no_simulation(out: Path) -> None:
    """Refuse the folder of a simulation, which a federation would overwrite."""
    if holds_simulation(out):
        raise FeddleError(f"{out} holds a simulation, not a federation; name another folder with out")


def _write_status(run: Run[Network], path: Path, every: float = 0.0) -> None:
    """Write the status file for the operator again, if it is older than `every` seconds."""
    if not path.exists() or abs(time.time() - path.stat().st_mtime) >= every:
        write_whole(path, json.dumps(status_of(run)).encode(), sync=False)
