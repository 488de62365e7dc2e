"""A run: the rounds of a federation, and their history."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from feddle.clients.attacks import NoAttack
from feddle.clients.private import Privacy
from feddle.core.errors import DivergedError, FeddleError
from feddle.core.layout import Layout
from feddle.core.messages import Round
from feddle.core.privacy import epsilon
from feddle.core.ranks import Ranks
from feddle.core.state import load, prefixed, save, without_prefix
from feddle.data.examples import are_finite
from feddle.methods.strategy import Strategy, is_personal
from feddle.records import Details, HistoryLine, PrivacyLoss, Result, hex_of, summary
from feddle.run.diagnostics import Diagnostics
from feddle.run.per_client import PerClient, by_class, scores_alone
from feddle.run.plan import Plan, SimulationPlan
from feddle.run.problem import Problem
from feddle.run.shown import as_frame, described, is_stalled, plot_history
from feddle.runtimes.runtime import Runtime
from feddle.server import Server
from feddle.training.machine import one_thread
from feddle.training.parts import Alone, Parts
from feddle.training.scorers import apply, scorers
from feddle.training.search import Observer
from feddle.training.train import Score, evaluate, forget_batches
from feddle.training.workbench import Workbench
from feddle.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Line = dict[str, Any]
Listener = Callable[[Line], object]  # it may return True, which ends the run
_LISTED = 100  # classes in a line of history
Where = TypeVar("Where", bound=Runtime, covariant=True)


@dataclass(eq=False, repr=False)
class Run(Generic[Where]):
    """The rounds of a federation and their history.

    `history` has a dict for each round, and `result` is the summary. `problem` holds the model and the data; when `go`
    returns or fails, `problem.model` holds the last version. `plan` has the settings, `method` is the name of the
    method, `server` merges the updates, `runtime` runs the clients, and `folder` is where the run is on disk, if it is.
    `layout` maps the model to one vector. `workers` are processes, which are needed until the last round.
    """

    plan: Plan
    problem: Problem
    layout: Layout
    runtime: Where
    method: str
    device: str
    workers: AbstractContextManager[object] = field(default_factory=nullcontext)
    diagnostics: Diagnostics | None = None
    per_client: PerClient | None = None  # without it, the model is not measured for single clients
    history: list[Line] = field(default_factory=list)
    seconds: float = 0.0
    folder: Path | None = None
    patience: int | None = None  # evaluations without a better main metric that end the run
    ended: bool = False  # by a listener, before the last round
    kept: dict[str, Any] | None = None  # the result on disk, if the run was finished in another process
    details: Details = field(default_factory=lambda: Details())  # what is measured after the last round
    _started: bool = False
    _score: Score | None = None  # of the current version, if it was evaluated

    def __post_init__(self) -> None:
        self._scorers = scorers([*(self.plan.metrics or ()), *self.problem.metrics])

    @property
    def server(self) -> Server:
        """The server of the runtime."""
        return self.runtime.server

    def go(self, listener: Listener | None = None) -> None:
        """Run all rounds, once. `listener` is called with each line of history, and may return True to end the run."""
        if self._started:
            raise FeddleError("this run has already been started; create a new one")
        self._started = True
        began = time.perf_counter() - self.seconds
        try:
            with one_thread(), self.workers:
                while not self._is_over():
                    line = self._line(self._step())
                    self.history.append(line)
                    self.seconds = time.perf_counter() - began
                    self.ended = listener is not None and listener(line) is True
                self.details = self._measure_details()
        finally:
            self.layout.write(self.problem.model, self.server.deployed)
            forget_batches(self.problem.model)  # else it depends on which jobs this process trained
            self.seconds = time.perf_counter() - began

    def _is_over(self) -> bool:
        stalled = self.patience is not None and is_stalled(self.history, self.patience)
        return self.ended or stalled or len(self.history) >= self.plan.rounds

    def _step(self) -> Round:
        try:
            return self.runtime.step()
        except DivergedError as error:
            if self.problem.server is None or are_finite(self.problem.server):
                raise
            raise FeddleError("the server's data has values that are not finite; remove or replace them") from error

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue except the history, as tensors; called between rounds."""
        return {
            **self.runtime.state_dict(),
            **prefixed("uncounted", self._other_buffers()),
            **prefixed("diagnostics", save(self.diagnostics and self.diagnostics.state)),
        }

    def load_state_dict(self, state: Mapping[str, Tensor], history: Sequence[Line], seconds: float) -> None:
        """Continue from a saved state, with its history and its running time in seconds."""
        self.runtime.load_state_dict(state)
        for name, buffer in without_prefix("uncounted", state).items():
            self._other_buffers()[name].copy_(buffer)
        if self.diagnostics is not None:
            load(self.diagnostics.state, without_prefix("diagnostics", state), self.device)
        self.history, self.seconds = list(history), seconds

    def _other_buffers(self) -> dict[str, Tensor]:
        """The model's buffers that are not part of its weights, such as BatchNorm's number of batches."""
        counted = {slot.name for slot in self.layout.buffers}
        kept = self.problem.model.state_dict().keys()
        return {n: b for n, b in self.problem.model.named_buffers() if n in kept and n not in counted}

    def _line(self, happened: Round) -> Line:
        """The line of history of a round, with metrics if an evaluation is due."""
        self._score = None
        losses = [a.update.metrics["loss"] for a in happened.arrivals if "loss" in a.update.metrics]
        before = self.history[-1] if self.history else {"bytes_up": 0, "bytes_down": 0}
        size, number = self.server.model.num_bytes, self.server.version
        counted: HistoryLine = {
            "round": number,
            "version": number,
            "arrivals": len(happened.arrivals),
            "staleness": [a.staleness for a in happened.arrivals],
            "bytes_up": before["bytes_up"] + happened.returned * size,
            "bytes_down": before["bytes_down"] + happened.dispatched * size,
            "loss": fmean(losses) if losses else None,
        }
        line: Line = {**counted, **happened.notes}
        if self.diagnostics is not None:
            line |= self.diagnostics.measure(number, self.server.model, happened.arrivals)
        if self.plan.is_evaluated(number):
            line |= self._evaluate()
        return line

    def _evaluate(self) -> HistoryLine:
        if self.problem.test is None or is_personal(self.server.strategy):
            return {}
        self._score = self._measured()
        found: dict[str, Any] = {**self._score.metrics}
        if classes := by_class(self._score, self.problem.classes).get("classes"):
            found["class_accuracy"] = classes["accuracy"][:_LISTED]
        if self.per_client is not None:
            worst = self.per_client.worst_tenth(self._score, self.plan.evaluation.most_clients)
            found |= {} if worst is None else {"worst_tenth": worst}
        if selected := apply(self._scorers, self._score):
            found["metrics"] = selected
        return cast(HistoryLine, found)

    def _measured(self) -> Score:
        """The score of the current version on the test data."""
        assert self.problem.test is not None
        self.layout.write(self.problem.model, self.server.deployed)
        score = evaluate(self.problem.model, self.problem.test, self.problem.loss, task=self.problem.task)
        if not math.isfinite(score.loss):
            if not are_finite(self.problem.test):
                raise FeddleError("the test data has values that are not finite; remove or replace them")
            raise FeddleError(
                f"the model's test loss became {score.loss} by round {self.server.version}; lower training.lr "
                f"(now {self.plan.training.lr:g}) or the method's own learning rate"
            )
        return score

    def _measure_details(self) -> Details:
        """The last model by class and by client; of a personal method, each client's own model."""
        if self.problem.test is None:
            return {}
        if is_personal(self.server.strategy):
            return self.per_client.record(scores_alone(self.history)) if self.per_client else {}
        score = self._score or self._measured()  # a run may end between two evaluations, or before it is resumed
        last = {**apply(self._scorers, score), **score.metrics}
        found: Details = {"last": last, **by_class(score, self.problem.classes)}
        if score.correct is not None:
            found["correct"] = hex_of(score.correct.tolist())
        if self.per_client is None:
            return found
        drawn = self.per_client.drawn(self.plan.evaluation.most_clients)
        return {**found, **self.per_client.record({client: self.per_client.score(client, score) for client in drawn})}

    @property
    def result(self) -> dict[str, Any]:
        """The summary of the run: the fields of `Result`."""
        if self.kept is not None:
            return dict(self.kept)
        plan = self.plan if isinstance(self.plan, SimulationPlan) else SimulationPlan()  # without attack and privacy
        kept: Result = {
            "method": self.method,
            **summary(cast(list[HistoryLine], self.history)),
            "seconds": round(self.seconds, 3),
            "rounds": len(self.history),
            "finished": self._is_over(),
            "seed": self.plan.seed,
            "refused": dict(self.server.refused),
            "zero_updates": self.server.zero_updates,
            "attack": None if isinstance(plan.attack, NoAttack) else plan.attack.model_dump(),
            "privacy": None if plan.privacy is None else self._spent(plan.privacy),
            "feddle": __version__,
            "torch": torch.__version__,
            **self.details,
        }
        return {**kept, **self.runtime.facts()}

    def __repr__(self) -> str:
        return f"Run({', '.join(f'{name} {value}' for name, value in described(self).items())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in described(self).items())
        return f"<table>{rows}</table>"

    def frame(self) -> "DataFrame":
        """The history as a pandas DataFrame, with one row per round."""
        return as_frame(self.history)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw the main metric over rounds with matplotlib: into `axes`, by default a new figure. Returns the axes."""
        return plot_history(self.history, self.method, axes)

    def save(self, folder: Path | str) -> Path:
        """Write the run to a new `folder`: config, history, result and model. Returns the folder."""
        from feddle.run.library import save_run  # it needs this module

        return save_run(self, Path(folder))

    def report(self, out: Path | str | None = None) -> Path:
        """Write a page about the run and return its path.

        By default, `out` is report.html, in the folder of the run if it has one.
        """
        from feddle.run.library import report_on

        return report_on(self, None if out is None else Path(out))

    def _spent(self, privacy: Privacy) -> PrivacyLoss:
        """The privacy spent by the client with the most jobs, including those whose updates have not arrived."""
        jobs = max(self.server.state.jobs_of.values(), default=0)
        spent = epsilon(jobs, privacy.noise_multiplier, privacy.delta)
        return {"unit": "client", "updates": jobs, "epsilon": spent, "delta": privacy.delta}


def build_server(
    plan: Plan,
    problem: Problem,
    layout: Layout,
    device: str,
    strategy: Strategy | None = None,
    *,
    scratch: Path | None = None,
    observe: Observer | None = None,
    alone: Alone | None = None,
    ranks: Ranks | None = None,
) -> Server:
    """The server of a plan, before the first round; `strategy` replaces the plan's method."""
    if ranks is not None and (strategy is not None or not plan.method.searches):
        remedy = "start one process, or set method.name to feddle or feddle+"
        raise FeddleError(
            f"several ranks share the search of feddle and feddle+, but the method is {plan.method.name}; {remedy}"
        )
    parts = Parts(
        method=plan.method.name,
        bench=Workbench(problem.model, layout, problem.loss),
        recipe=plan.training,
        seed=plan.seed,
        rounds=plan.rounds,
        clients=len(problem.sizes) or plan.clients.count,  # a network does not know its clients in advance
        per_round=plan.clients.per_round,
        server=problem.server,
        out_of_domain=problem.out_of_domain,
        server_classes=problem.server_classes,
        samples_per_round=problem.samples_per_round,
        device=device,
        scratch=scratch,
        observe=observe,
        ranks=ranks,
        alone=alone,
    )
    return Server(
        layout.read(problem.model),
        strategy or plan.method.build(parts),
        digest=layout.digest,
        max_norm_ratio=plan.checks.max_norm_ratio,
        averaging=plan.method.averages if plan.averaging is None else plan.averaging,
    )


def resolve_device(device: str) -> str:
    """The device to use: `auto` becomes the best available one, and an unavailable device is an error."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name in present if present[name])
    if not present[device]:
        raise FeddleError(f"device: {device} is not available on this machine; use auto or cpu")
    return device
