"""The server's side of a real federation: Feddle and the other methods as a Flower strategy, with a run folder."""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Any, NoReturn

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from torch import nn
from torch.nn import functional as F

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.core.metrics import main_metric, reached
from feddle.core.seeds import global_seed, seed_for
from feddle.data.examples import Data, as_examples
from feddle.flower.plan import FederationPlan, make_plan
from feddle.methods.strategy import Strategy
from feddle.records import STATUS
from feddle.run.checkpoint import Pace
from feddle.run.folder import RunFolder, go_to_the_end
from feddle.run.load import started_in
from feddle.run.problem import Problem
from feddle.run.run import Line, Listener, Run, build_server, resolve_device
from feddle.runtimes.flower.network import Network
from feddle.runtimes.flower.roster import Roster
from feddle.training.train import Loss


def federated(
    plan: FederationPlan, problem: Problem, grid: Grid, strategy: Strategy | None = None, *, scratch: Path | None = None
) -> Run[Network]:
    """A run with the nodes of a Flower grid as its clients; `strategy` replaces the method of the plan."""
    device = resolve_device(plan.device)
    problem.model.to(device=device)
    layout = Layout.of(problem.model)
    server = build_server(plan, problem, layout, device, strategy, scratch=scratch)
    roster, per_round = Roster(plan.clients.count), plan.clients.per_round
    network = Network(server, grid, plan.federation, plan.training, plan.seed, per_round, roster)
    return Run(plan, problem, layout, network, plan.method_name(strategy), device)


def status_of(run: Run[Network]) -> dict[str, Any]:
    """The current state of a run, as JSON values."""
    return {
        **run.runtime.status(),
        "rounds": run.plan.rounds,
        "method": run.method,
        "reached": next((text for line in reversed(run.history) if (text := reached(line))), ""),
        "pid": os.getpid(),
        "at": round(time.time(), 3),
    }


def run_in_folder(run: Run[Network], out: Path, listener: Listener | None = None) -> None:
    """Run to the end in a folder, or continue the run in it; every merge is followed by a checkpoint."""
    folder = RunFolder(out)
    check_no_simulation(out)
    with folder.locked():
        if folder.is_finished():
            raise FeddleError(f"{out} holds a finished federation; name another folder with out")
        if folder.checkpoint.facts() is None:  # nothing was merged yet, so the settings may still change
            folder.begin(run.plan.model_dump(mode="json"))
        folder.restore(run)
        run.runtime.watch = partial(_write_status, run, out / STATUS, every=1.0)
        go_to_the_end(run, folder, Pace(1), listener)
        _write_status(run, out / STATUS)


def check_no_simulation(out: Path) -> None:
    """Refuse the folder of a simulation or a grid, which a federation would overwrite."""
    if (kind := started_in(out)) not in ("", "federation"):
        held = "simulation" if kind == "run" else kind
        raise FeddleError(f"{out} holds a {held}, not a federation; name another folder with out")


def _write_status(run: Run[Network], path: Path, every: float = 0.0) -> None:
    """Write the status file for the operator again, if it is older than `every` seconds."""
    if not path.exists() or abs(time.time() - path.stat().st_mtime) >= every:
        write_whole(path, json.dumps(status_of(run)).encode(), sync=False)


class Feddle(FlowerStrategy):
    """An asynchronous strategy: updates are merged as they arrive, guided by the server's data.

    `server` is the data that guides the merge, and accuracy is measured on `test`. `settings` are the keys of a plan,
    as dotted names or as mappings (`clients={"per_round": 5}`, `method="fedbuff"`). A custom `strategy` replaces the
    method. With `out`, the run writes its files to that folder, with a checkpoint after each merge, and a run that was
    stopped continues from it. The nodes run `feddle.flower.client_app`, or call `train_job` in a custom ClientApp.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        server: Data | None = None,
        test: Data | None = None,
        loss: Loss = F.cross_entropy,
        server_classes: int | None = None,
        strategy: Strategy | None = None,
        out: Path | str | None = None,
        **settings: Any,
    ) -> None:
        self.settings = settings
        self.strategy = strategy
        self.out = None if out is None else Path(out)
        self.run: Run[Network] | None = None
        guides, measures = (None if data is None else as_examples(data) for data in (server, test))
        outside = None if server_classes is None else "of another task"
        nobody = torch.zeros(0, dtype=torch.int64)  # the sizes of the clients, which are not known in advance
        self.problem = Problem(model, (), nobody, guides, measures, loss, outside, server_classes)
        self.plan = make_plan(settings, source="settings")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the federation: `num_rounds` merges; a job that takes longer than `timeout` seconds is given up.

        By default, they are `rounds` and `federation.job_limit` of the settings. `evaluate_fn` is called at the start
        and after each merge. `train_config` and `evaluate_config` are refused: the settings configure the clients.
        """
        if train_config or evaluate_config:
            raise FeddleError(
                "train_config and evaluate_config are not supported; set the clients' options in the settings, such as "
                "training.lr"
            )
        given = {"rounds": num_rounds, "federation.job_limit": timeout}
        changes = {key: value for key, value in given.items() if value is not None}
        plan = self.plan = make_plan({**self.settings, **changes}, source="settings")
        self.problem.model.load_state_dict(initial_arrays.to_torch_state_dict())
        run = self.run = federated(plan, self.problem, grid, self.strategy, scratch=self.out)
        result = Result()

        def evaluate(number: int) -> None:
            if evaluate_fn is not None and (score := evaluate_fn(number, self._arrays(run))) is not None:
                result.evaluate_metrics_serverapp[number] = score

        def listener(line: Line) -> None:
            _record(line, plan.rounds, result)
            evaluate(line["round"])

        evaluate(0)
        self.summary()
        if self.out is None:
            run.go(listener)
        else:
            run_in_folder(run, self.out, listener)
        result.arrays = self._arrays(run)
        return result

    def _arrays(self, run: Run[Network]) -> ArrayRecord:
        run.layout.write(run.problem.model, run.server.deployed)
        return ArrayRecord(run.problem.model.state_dict())

    def summary(self) -> None:
        """Log the method and the number of updates per merge."""
        log(INFO, "%s: merges of %s updates, asynchronous", self.plan.method.name, self.plan.clients.per_round)

    def configure_train(self, *_: Any, **__: Any) -> NoReturn:
        """Not used: there are no rounds that all nodes take part in."""
        raise FeddleError("Feddle is asynchronous and has no rounds that all nodes take part in; call its start()")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


def server_app(
    model: Callable[[], nn.Module],
    server: Callable[[], Data] | None = None,
    test: Callable[[], Data] | None = None,
    loss: Loss = F.cross_entropy,
) -> ServerApp:
    """A ServerApp for the same `model` as the clients'; the run config has the settings, and `out`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings: dict[str, Any] = dict(context.run_config)
        out = settings.pop("out", None) or None
        with global_seed(seed_for(make_plan(settings, source="run config").seed, "model")):
            net = model()
        guides, measures = (None if make is None else make() for make in (server, test))
        feddle = Feddle(net, server=guides, test=measures, loss=loss, out=out, **settings)
        feddle.start(grid=grid, initial_arrays=ArrayRecord(net.state_dict()))

    return app


def _record(line: Line, rounds: int, result: Result) -> None:
    """Log a line of history, and add it to the result in Flower's format."""
    score = f", {text}" if (text := reached(line)) else ""
    log(INFO, "version %s/%s: staleness %s%s", line["version"], rounds, line["staleness"], score)
    if line["loss"] is not None:
        result.train_metrics_clientapp[line["round"]] = MetricRecord({"loss": line["loss"]})
    if "test_loss" in line:
        metric = main_metric([line]).name
        scores = {metric: line[metric], "loss": line["test_loss"]}
        result.evaluate_metrics_serverapp[line["round"]] = MetricRecord(scores)
