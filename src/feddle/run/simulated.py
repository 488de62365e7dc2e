"""Building a run with simulated clients."""

import os
import sys
from pathlib import Path

from feddle.clients.attacks import client_work
from feddle.clients.work import ClientWork
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights
from feddle.methods.strategy import Strategy
from feddle.run.diagnostics import Diagnostics, InDomainComparison
from feddle.run.plan import SimulationPlan
from feddle.run.problem import Problem
from feddle.run.run import Run, build_server, parts_of, resolve_device
from feddle.runtimes.simulation import Simulation
from feddle.runtimes.trainers import InlineTrainer
from feddle.runtimes.workers import WorkerPool
from feddle.training.machine import require_bfloat16
from feddle.training.objectives import TaskObjective

AHEAD_BYTES = 2**30  # of finished updates that wait for their arrival


def simulated(
    plan: SimulationPlan,
    problem: Problem,
    strategy: Strategy | None = None,
    *,
    scratch: Path | None = None,
) -> Run[Simulation]:
    """A run with simulated clients.

    `strategy` replaces the plan's method. `scratch` is a folder for data that does not fit in memory.
    """
    device = resolve_device(plan.device)
    if plan.training.precision == "bfloat16" and device == "cpu":
        require_bfloat16()
    problem.model.to(device=device)
    layout = Layout.of(problem.model)
    trainer = build_trainer(plan, problem, layout, layout.read(problem.model), device)
    observe = diagnostics = None
    if plan.diagnostics is not None:
        diagnostics = Diagnostics(problem, layout, trainer, plan.diagnostics, plan.training.batch_size, plan.seed)
        if problem.witness is not None:  # the server's data is of another domain
            objective = TaskObjective(problem.model, layout, problem.witness, problem.loss, samples_per_round=1000)
            observe = InDomainComparison(objective, plan.diagnostics.every)
    parts = parts_of(plan, problem, layout, device, scratch=scratch, observe=observe)
    simulation = Simulation(
        build_server(plan, parts, strategy),
        trainer,
        plan.delays,
        eligible=problem.sizes.nonzero().flatten().numpy(),
        per_round=plan.clients.per_round,
        seed=plan.seed,
    )
    if len(simulation.eligible) < plan.clients.per_round:
        raise FeddleError(
            f"only {len(simulation.eligible)} of {len(problem.sizes)} clients have data, but clients.per_round "
            f"is {plan.clients.per_round}; spread the data more evenly (data.partition) or lower clients.per_round"
        )
    method = plan.method.name if strategy is None else type(strategy).__name__
    return Run(plan, problem, layout, simulation, method, device, trainer, diagnostics)


def build_trainer(
    plan: SimulationPlan, problem: Problem, layout: Layout, model: Weights, device: str
) -> InlineTrainer | WorkerPool:
    """Worker processes if there are any, else training in this process."""
    training = ClientWork(
        problem.model, layout, problem.clients, plan.training, problem.loss, plan.seed, problem.augment
    )
    work = client_work(training, plan.attack, plan.privacy, problem.sizes.nonzero().flatten())
    workers = resolve_workers(plan.workers, device)
    if not workers:
        return InlineTrainer(work)
    ahead = max(2 * workers, AHEAD_BYTES // model.num_bytes)
    return WorkerPool(work, model, workers, horizon=plan.rounds, ahead=ahead)


def resolve_workers(workers: int | None, device: str) -> int:
    """The number of worker processes, by default one per core. They require Linux (fork) and the CPU."""
    possible = sys.platform == "linux" and device == "cpu"
    if workers is None:
        return len(os.sched_getaffinity(0)) if possible and sys.platform == "linux" else 0
    if workers and not possible:
        raise FeddleError(
            f"workers: {workers} processes require Linux and device cpu, this is {sys.platform} and {device}; use 0"
        )
    return workers
