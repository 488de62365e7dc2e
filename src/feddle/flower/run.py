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
from feddle.flower.network import Clock, Network
from feddle.flower.plan import FederationPlan
from feddle.methods.strategy import Strategy
from feddle.report import page
from feddle.run.build import Parts
from feddle.run.checkpoint import Pace
from feddle.run.folder import RunFolder, go_to_the_end
from feddle.run.load import holds_simulation
from feddle.run.problem import Federation
from feddle.run.run import Course, Listener, build_server, resolve_device
from feddle.training.train import Loss

STATUS, REPORT = "status.json", "report.html"
_STATUS_EVERY = 1.0  # seconds


class FederationRun(Course):
    """A federation whose clients are the nodes of a Flower grid."""

    def __init__(
        self,
        plan: FederationPlan,
        federation: Federation,
        grid: Grid,
        strategy: Strategy | None = None,
        *,
        scratch: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        device = resolve_device(plan.device)
        federation.model.to(device=device)
        layout = Layout.of(federation.model)
        server = build_server(Parts(plan, federation, layout, device, scratch), strategy)
        self.network = Network(server, grid, plan, clock=clock)
        method = plan.method.name if strategy is None else type(strategy).__name__
        super().__init__(plan, federation, layout, self.network, method=method, device=device)

    @property
    def result(self) -> dict[str, Any]:
        """What is kept of the run; `dropped` counts the jobs that brought nothing, by reason."""
        return {**super().result, "dropped": dict(self.network.dropped), "clients": len(self.network.roster.nodes)}

    @property
    def status(self) -> dict[str, Any]:
        """How things stand now, as JSON values."""
        measured = [line for line in self.history if "accuracy" in line]
        return {
            **self.network.status(),
            "method": self.method,
            "accuracy": measured[-1]["accuracy"] if measured else None,
            "staleness": self.history[-1]["staleness"] if self.history else [],
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


def run_in_folder(run: FederationRun, plan: FederationPlan, out: Path, listener: Listener | None = None) -> None:
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


def _go_on(run: FederationRun, plan: FederationPlan, folder: RunFolder, listener: Listener | None) -> None:
    check_no_simulation(folder.path)
    if folder.checkpoint.facts() is None:  # nothing was merged yet: these settings hold, not those of an earlier start
        folder.begin(plan)
    folder.restore(run, plan)
    status = _StatusFile(run, folder.path / STATUS)
    run.network.watch = status.keep_up
    go_to_the_end(run, plan, folder, Pace(1), listener)
    status.write()


def _take_result(run: FederationRun, folder: RunFolder) -> None:
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
    page.write_report([out], out / REPORT)


class _StatusFile:
    """What an operator looks at: how things stood a moment ago."""

    def __init__(self, run: FederationRun, path: Path) -> None:
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
        write_whole(self.path, json.dumps(self.run.status).encode(), sync=False)
