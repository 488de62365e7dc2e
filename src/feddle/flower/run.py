"""The server's side of a real federation, kept in a run folder like a simulation."""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from safetensors.torch import load_file

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.flower.plan import FederationPlan
from feddle.methods.strategy import Strategy
from feddle.report.page import write_page
from feddle.report.records import read_run
from feddle.run.checkpoint import Pace
from feddle.run.folder import RunFolder, go_to_the_end
from feddle.run.load import holds_simulation
from feddle.run.problem import Federation
from feddle.run.run import Listener, Run, build_server, parts_of, resolve_device
from feddle.runtimes.flower.network import Clock, Network
from feddle.training.train import Loss

STATUS, REPORT = "status.json", "report.html"
_STATUS_EVERY = 1.0  # seconds


def federated(
    plan: FederationPlan,
    federation: Federation,
    grid: Grid,
    strategy: Strategy | None = None,
    *,
    scratch: Path | None = None,
    clock: Clock | None = None,
) -> Run[Network]:
    """A run whose clients are the nodes of a Flower grid."""
    device = resolve_device(plan.device)
    federation.model.to(device=device)
    layout = Layout.of(federation.model)
    parts = parts_of(plan, federation, layout, device, scratch=scratch)
    network = Network(
        build_server(plan, parts, strategy),
        grid,
        plan.federation,
        recipe=plan.training,
        seed=plan.seed,
        per_round=plan.clients.per_round,
        limit=plan.clients.count,
        clock=clock,
    )
    method = plan.method.name if strategy is None else type(strategy).__name__
    return Run(plan, federation, layout, network, method=method, device=device)


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
) -> Federation:
    """What the server has; its clients are elsewhere."""
    outside = None if server_classes is None else "of another task"
    none = torch.zeros(0, dtype=torch.int64)
    return Federation(model, (), none, server, test, loss, out_of_domain=outside, server_classes=server_classes)


def run_in_folder(run: Run[Network], plan: FederationPlan, out: Path, listener: Listener | None = None) -> None:
    """Run to the end in a folder, or go on with what is in it; a checkpoint is made after each merge.

    A run that was killed when only its report was missing is given it.
    """
    folder = RunFolder(out)
    with folder.locked():
        if not folder.is_finished():
            _go_on(run, plan, folder, listener)
        elif lacks_only_its_report(out):
            _take_result(run, folder)
        else:
            raise FeddleError(f"{out} holds a federation that is finished; name another folder with out")
        write_report(out)


def _go_on(run: Run[Network], plan: FederationPlan, folder: RunFolder, listener: Listener | None) -> None:
    check_no_simulation(folder.path)
    if folder.checkpoint.facts() is None:  # nothing was merged yet: these settings hold, not those of an earlier start
        folder.begin(plan)
    folder.restore(run, plan)
    status = _StatusFile(run, folder.path / STATUS)
    run.runtime.watch = status.keep_up
    go_to_the_end(run, plan, folder, Pace(1), listener)
    status.write()


def _take_result(run: Run[Network], folder: RunFolder) -> None:
    """The model of a run that is finished: who asked for the run is handed it."""
    model = run.federation.model
    model.load_state_dict(load_file(folder.path / "model.safetensors"))
    run.server.model = run.layout.read(model)
    folder.checkpoint.clear()


def check_no_simulation(out: Path) -> None:
    """Refuse the folder of another kind of run, which a federation would write over."""
    if holds_simulation(out):
        raise FeddleError(f"{out} holds a simulation, not a federation; name another folder with out")


def lacks_only_its_report(out: Path) -> bool:
    """Whether a real federation is finished, but was killed just before its last file; simulations have none."""
    if not RunFolder(out).is_finished() or (out / REPORT).exists():
        return False
    return not holds_simulation(out)


def write_report(out: Path) -> None:
    """The page about a run, from what is in its folder."""
    write_page([read_run(out)], out / REPORT)


class _StatusFile:
    """What an operator looks at: how things stood a moment ago."""

    def __init__(self, run: Run[Network], path: Path) -> None:
        self.run = run
        self.path = path
        self._written = -_STATUS_EVERY

    def keep_up(self) -> None:
        """Write it anew if it is no longer new."""
        if time.monotonic() - self._written >= _STATUS_EVERY:
            self.write()

    def write(self) -> None:
        """Write it anew."""
        self._written = time.monotonic()
        write_whole(self.path, json.dumps(status_of(self.run)).encode(), sync=False)
