"""Running a federation round by round."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from feddle.clients.options import NoAttack
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.privacy import epsilon
from feddle.methods.strategy import Strategy, above, below
from feddle.records import HistoryLine, PrivacySpent, Result, best
from feddle.run.build import Parts, build_strategy
from feddle.run.clients import build_work
from feddle.run.diagnostics import Diagnostics
from feddle.run.plan import Plan
from feddle.run.problem import Federation
from feddle.runtimes.simulation import Delays, Round, Simulation
from feddle.runtimes.trainers import InlineTrainer, Trainer
from feddle.runtimes.workers import WorkerPool
from feddle.server import Server
from feddle.training.machine import one_thread, require_bfloat16
from feddle.training.train import evaluate
from feddle.version import __version__

Line = dict[str, Any]
Listener = Callable[[Line], None]
AHEAD_BYTES = 2**30  # finished updates that wait for their arrival


class Runtime(Protocol):
    """Where the clients of a server are: in a simulation, or on a network."""

    @property
    def server(self) -> Server:
        """Whose clients they are."""

    def step(self) -> Round:
        """One round."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on after a stop, the server's state too, as tensors; taken between rounds."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state."""


class Course:
    """The rounds of a federation and their history, one line a round, wherever its clients are.

    `federation.model` is the workbench that everything at the server is trained and measured on; when `go` returns, or
    fails, it holds the last version.
    """

    def __init__(
        self, plan: Plan, federation: Federation, layout: Layout, runtime: Runtime, *, method: str, device: str
    ) -> None:
        self.plan = plan
        self.federation = federation
        self.layout = layout
        self.runtime = runtime
        self.server = runtime.server
        self.method = method
        self.device = device
        self.history: list[Line] = []
        self.seconds = 0.0
        self.helpers: AbstractContextManager[object] = nullcontext()  # what lives as long as the rounds go on
        self.diagnostics: Diagnostics | None = None
        self._gone = False

    def go(self, listener: Listener | None = None) -> None:
        """Run every round, once; `listener` gets each line of history as it is made."""
        if self._gone:
            raise FeddleError("this run has been run; make a new Run to start again")
        self._gone = True
        began = time.perf_counter() - self.seconds
        try:
            with one_thread(), self.helpers:
                while self.server.version < self.plan.rounds:
                    line = self._line(self.runtime.step())
                    self.history.append(line)
                    self.seconds = time.perf_counter() - began
                    if listener is not None:
                        listener(line)
        finally:
            self.layout.write(self.federation.model, self.server.model)
            self.seconds = time.perf_counter() - began

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on after a stop but the history, as tensors; taken between rounds."""
        looked = {} if self.diagnostics is None else self.diagnostics.state_dict()
        uncounted = self._uncounted()
        return {**self.runtime.state_dict(), **above("uncounted.", uncounted), **above("diagnostics.", looked)}

    def load_state_dict(self, state: Mapping[str, Tensor], history: Sequence[Line], seconds: float) -> None:
        """Go on from a saved state, with the history until then and the time that it took."""
        self.runtime.load_state_dict(state)
        for name, buffer in below("uncounted.", state).items():
            self._uncounted()[name].copy_(buffer)
        if self.diagnostics is not None:
            self.diagnostics.load_state_dict(below("diagnostics.", state))
        self.history, self.seconds = list(history), seconds

    def _uncounted(self) -> dict[str, Tensor]:
        """The model's buffers that are no part of its weights, such as BatchNorm's count of batches."""
        counted = {slot.name for slot in self.layout.buffers}
        kept = self.federation.model.state_dict().keys()
        return {n: b for n, b in self.federation.model.named_buffers() if n in kept and n not in counted}

    def _line(self, happened: Round) -> Line:
        """A round as a line of history; accuracy too when it is due."""
        losses = [a.update.metrics["loss"] for a in happened.arrivals if "loss" in a.update.metrics]
        before = self.history[-1] if self.history else {"bytes_up": 0, "bytes_down": 0}
        size = self.server.model.num_bytes
        number = self.server.version
        counted: HistoryLine = {
            "round": number,
            "version": self.server.version,
            "arrivals": len(happened.arrivals),
            "staleness": [a.staleness for a in happened.arrivals],
            "bytes_up": before["bytes_up"] + happened.returned * size,
            "bytes_down": before["bytes_down"] + happened.dispatched * size,
            "loss": fmean(losses) if losses else None,
        }
        line: Line = {**counted, **self.server.strategy.notes, **happened.notes}
        if self.diagnostics is not None and number % self.diagnostics.every == 0:
            line |= self.diagnostics.look(number, self.server.model, happened.arrivals)
        if number % self.plan.evaluation.every == 0 or number == self.plan.rounds:
            line |= self._evaluate(number)
        return line

    def _evaluate(self, number: int) -> HistoryLine:
        if self.federation.test is None:
            return {}
        self.layout.write(self.federation.model, self.server.model)
        score = evaluate(self.federation.model, self.federation.test, self.federation.loss)
        if not math.isfinite(score.loss):
            raise FeddleError(
                f"the model's test loss became {score.loss} by round {number}; lower training.lr "
                f"(now {self.plan.training.lr:g}) or the method's own learning rate"
            )
        return {"accuracy": score.accuracy, "test_loss": score.loss}

    @property
    def result(self) -> dict[str, Any]:
        """What is kept of the run: the fields of `Result`."""
        accuracies = [line["accuracy"] for line in self.history if "accuracy" in line]
        searched = [line for line in self.history if "negative_share" in line]
        anchors = sum(len(line["coefficients"]) for line in searched)
        negative = sum(line["negative_share"] * len(line["coefficients"]) for line in searched)
        last = self.history[-1] if self.history else {}
        kept: Result = {
            "method": self.method,
            "accuracy": best(accuracies),
            "last_accuracy": accuracies[-1] if accuracies else None,
            "negative_share": negative / anchors if anchors else None,
            "seconds": round(self.seconds, 3),
            "rounds": len(self.history),
            "finished": len(self.history) == self.plan.rounds,
            "seed": self.plan.seed,
            "bytes_up": last.get("bytes_up", 0),
            "bytes_down": last.get("bytes_down", 0),
            "refused": dict(self.server.refused),
            "zero_updates": self.server.zero_updates,
            "attack": None if isinstance(self.plan.attack, NoAttack) else self.plan.attack.model_dump(),
            "privacy": self._spent(),
            "feddle": __version__,
            "torch": torch.__version__,
        }
        return dict(kept)

    def _spent(self) -> PrivacySpent | None:
        """What the client with the most jobs gave away; a job counts whether its update came back yet or not."""
        privacy, jobs = self.plan.privacy, self.server.most_jobs
        if privacy is None:
            return None
        spent = epsilon(jobs, privacy.noise_multiplier, privacy.delta)
        return {"unit": "client", "updates": jobs, "epsilon": spent, "delta": privacy.delta}


class Run(Course):
    """A simulated federation.

    `strategy` stands in for the plan's method; `scratch` is a folder for what does not fit in memory.
    """

    def __init__(
        self,
        plan: Plan,
        federation: Federation,
        strategy: Strategy | None = None,
        *,
        scratch: Path | None = None,
    ) -> None:
        device = resolve_device(plan.device)
        if plan.training.precision == "bfloat16" and device == "cpu":
            require_bfloat16()
        federation.model.to(device=device)
        layout = Layout.of(federation.model)
        self.trainer = build_trainer(plan, federation, layout, layout.read(federation.model), device)
        pool = self.trainer if isinstance(self.trainer, WorkerPool) else None
        server = build_server(Parts(plan, federation, layout, device, scratch, pool), strategy)
        self.simulation = start_simulation(plan, federation, server, self.trainer)
        method = plan.method.name if strategy is None else type(strategy).__name__
        super().__init__(plan, federation, layout, self.simulation, method=method, device=device)
        self.helpers = self.trainer
        self.diagnostics = build_diagnostics(plan, federation, layout, self.trainer)


def build_server(parts: Parts, strategy: Strategy | None = None) -> Server:
    """The server of a plan, at its first version; `strategy` stands in for the plan's method."""
    model = parts.layout.read(parts.federation.model)
    strategy = strategy or build_strategy(parts)
    ratio = parts.plan.checks.max_norm_ratio
    return Server(model, strategy, digest=parts.layout.digest, max_norm_ratio=ratio)


def start_simulation(plan: Plan, federation: Federation, server: Server, trainer: Trainer) -> Simulation:
    """Everything in place for the first round."""
    eligible = federation.sizes.nonzero().flatten().numpy()
    if len(eligible) < plan.clients.per_round:
        raise FeddleError(
            f"only {len(eligible)} of {len(federation.sizes)} clients have any data, but clients.per_round is "
            f"{plan.clients.per_round}; spread the data more evenly (data.partition) or lower clients.per_round"
        )
    return Simulation(
        server,
        trainer,
        Delays(plan.delays.sigma, plan.delays.per, plan.seed),
        eligible=eligible,
        per_round=plan.clients.per_round,
        seed=plan.seed,
    )


def build_diagnostics(plan: Plan, federation: Federation, layout: Layout, trainer: Trainer) -> Diagnostics | None:
    """Extra measurements, if they are asked for."""
    asked = plan.diagnostics
    if asked is None:
        return None
    batch_size, seed = plan.training.batch_size, plan.seed
    return Diagnostics(
        federation, layout, trainer, every=asked.every, clients=asked.clients, batch_size=batch_size, seed=seed
    )


def build_trainer(
    plan: Plan, federation: Federation, layout: Layout, model: Weights, device: str
) -> InlineTrainer | WorkerPool:
    """Worker processes where they help, else this process."""
    work = build_work(plan, federation, layout)
    workers = resolve_workers(plan.workers, device)
    if not workers:
        return InlineTrainer(work)
    ahead = max(2 * workers, AHEAD_BYTES // model.num_bytes)
    return WorkerPool(work, model, workers, horizon=plan.rounds, ahead=ahead)


def resolve_workers(workers: int | None, device: str) -> int:
    """How many worker processes to use: by default one a core; they need Linux's fork and the CPU."""
    possible = sys.platform == "linux" and device == "cpu"
    if workers is None:
        return len(os.sched_getaffinity(0)) if possible and sys.platform == "linux" else 0
    if workers and not possible:
        raise FeddleError(
            f"workers: {workers} processes need Linux and device cpu, this is {sys.platform} and {device}; use 0"
        )
    return workers


def resolve_device(device: str) -> str:
    """The device that `auto` stands for here; one that is not here is refused."""
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if present[name])
    if not present[device]:
        raise FeddleError(f"device: {device} is not to be had on this machine; use auto or cpu")
    return device
