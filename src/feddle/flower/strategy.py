"""Feddle, and every other method of ours, as a strategy of Flower's."""

from collections.abc import Callable, Iterable, Mapping
from logging import INFO
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log
from torch import nn
from torch.nn import functional as F

from feddle.core.errors import FeddleError
from feddle.core.seeds import global_seed, seed_for
from feddle.data.examples import as_examples
from feddle.flower.plan import FederationPlan, make_plan
from feddle.flower.run import at_the_server, federated, run_in_folder
from feddle.methods.strategy import Strategy
from feddle.run.run import Line, Run
from feddle.runtimes.flower.client import Data
from feddle.runtimes.flower.network import Network
from feddle.runtimes.flower.rules import Clock
from feddle.training.train import Loss

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Feddle(FlowerStrategy):
    """An asynchronous strategy: updates are merged as they come, guided by the server's data.

    `server` is the data that guides and `test` what accuracy is measured on. `settings` are the keys of a plan, as
    dotted names or as mappings (`clients={"per_round": 5}`, `method="fedbuff"`); a `strategy` of your own replaces
    the method. With `out` the run is kept in that folder, with a checkpoint after each merge, and goes on from it.
    The nodes run `feddle.flower.client_app` or call `train_job` in a ClientApp of their own.
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
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.model = model
        self.settings = settings
        self.strategy = strategy
        self.out = None if out is None else Path(out)
        self.clock = clock
        self.run: Run[Network] | None = None
        guides, measures = (None if data is None else as_examples(data) for data in (server, test))
        self.problem = at_the_server(model, guides, measures, loss, server_classes)
        self.plan()

    def plan(self, **changes: Any) -> FederationPlan:
        """The settings, checked."""
        return make_plan({**self.settings, **changes}, source="settings")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the federation: `num_rounds` merges; a job that takes longer than `timeout` seconds is given up.

        Without them, `rounds` and `federation.job_limit` of the settings hold. `evaluate_fn` is called at the start
        and after each merge. The configs are for clients of another kind, and refused.
        """
        if train_config or evaluate_config:
            raise FeddleError("clients are told how to train by the settings (training.lr); leave the configs out")
        changes: dict[str, Any] = {} if num_rounds is None else {"rounds": num_rounds}
        plan = self.plan(**changes, **({} if timeout is None else {"federation.job_limit": timeout}))
        self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        run = self.run = federated(plan, self.problem, grid, self.strategy, scratch=self.out, clock=self.clock)
        result = Result()
        if evaluate_fn is not None and (scored := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = scored

        def listener(line: Line) -> None:
            _tell(line, plan.rounds)
            _add(result, line)
            if evaluate_fn is not None and (scored := evaluate_fn(line["round"], self._arrays(run))) is not None:
                result.evaluate_metrics_serverapp[line["round"]] = scored

        self.summary()
        if self.out is None:
            run.go(listener)
        else:
            run_in_folder(run, self.out, listener)
        result.arrays = self._arrays(run)
        return result

    def _arrays(self, run: Run[Network]) -> ArrayRecord:
        run.layout.write(self.model, run.server.model)
        return ArrayRecord(self.model.state_dict())

    def summary(self) -> None:
        """Log what will be done."""
        plan = self.plan()
        log(INFO, "%s: merges of %s updates, asynchronous", plan.method.name, plan.clients.per_round)

    def configure_train(self, *_: Any) -> Iterable[Message]:
        """Not used: there are no rounds that all nodes take part in."""
        _only_start()

    def aggregate_train(self, *_: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not used, see `configure_train`."""
        _only_start()

    def configure_evaluate(self, *_: Any) -> Iterable[Message]:
        """Not used, see `configure_train`."""
        _only_start()

    def aggregate_evaluate(self, *_: Any) -> MetricRecord | None:
        """Not used, see `configure_train`."""
        _only_start()


def server_app(
    model: Callable[[], nn.Module],
    server: Callable[[], Data] | None = None,
    test: Callable[[], Data] | None = None,
    loss: Loss = F.cross_entropy,
) -> ServerApp:
    """A ServerApp for the same `model` that the clients have; the run config holds the settings, and `out`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings: Mapping[str, Any] = dict(context.run_config)
        out = settings.get("out")
        rest = {key: value for key, value in settings.items() if key != "out"}
        plan = make_plan(rest, source="run config")
        with global_seed(seed_for(plan.seed, "model")):
            net = model()
        guides, measures = (None if make is None else make() for make in (server, test))
        feddle = Feddle(net, server=guides, test=measures, loss=loss, out=str(out) if out else None, **rest)
        feddle.start(grid=grid, initial_arrays=ArrayRecord(net.state_dict()))

    return app


def _tell(line: Line, rounds: int) -> None:
    accuracy = f", accuracy {line['accuracy']:.1%}" if "accuracy" in line else ""
    log(INFO, "version %s/%s: staleness %s%s", line["version"], rounds, line["staleness"], accuracy)


def _add(result: Result, line: Line) -> None:
    """What Flower's users look for, where they look for it."""
    if line["loss"] is not None:
        result.train_metrics_clientapp[line["round"]] = MetricRecord({"loss": line["loss"]})
    if "accuracy" in line:
        scores = {"accuracy": line["accuracy"], "loss": line["test_loss"]}
        result.evaluate_metrics_serverapp[line["round"]] = MetricRecord(scores)


def _only_start() -> NoReturn:
    raise FeddleError("Feddle is asynchronous and has no rounds of its nodes; call its start()")
