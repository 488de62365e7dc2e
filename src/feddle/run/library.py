"""The folder of a run that was started from Python with `simulate`, and the page of any run."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.nn import functional as F

import feddle
from feddle.core.errors import FeddleError
from feddle.methods.strategy import Strategy
from feddle.reading import read_result
from feddle.records import CONFIG, HISTORY, MODEL, REPORT, START, json_digest
from feddle.run.checkpoint import Pace
from feddle.run.folder import RunFolder, check_free, go_to_the_end, weights_of
from feddle.run.load import read_yaml
from feddle.run.plan import Config, Plan, SimulationPlan
from feddle.run.problem import Problem
from feddle.run.run import Listener, Run
from feddle.run.simulate import simulated
from feddle.run.trained import read_weights
from feddle.runtimes.simulation import Simulation
from feddle.training.scorers import scorers

SIMULATION = "simulation"


def simulate_in(
    path: Path,
    plan: SimulationPlan,
    problem: Problem,
    strategy: Strategy | None,
    listener: Listener,
    patience: int | None,
    every: int | None,
) -> Run[Simulation]:
    """Run a simulation in a new folder, or continue the one that was started there; a finished one is loaded."""
    check_free(path, SIMULATION, "out=")
    folder, begun = RunFolder(path), (path / CONFIG).exists()
    tree = settings(plan, problem, None if strategy is None else type(strategy).__name__, path)
    if begun:
        folder.require_result()
        _require_same(tree, read_yaml(path / CONFIG), path)
        # in a notebook, the stopped run has already trained the model
        problem.model.load_state_dict(read_weights(path / (MODEL if folder.is_finished() else START))[0])
    run = simulated(plan, problem, strategy, scratch=path)
    run.folder, run.patience = path, patience
    with folder.locked():
        if folder.is_finished():
            return _finished(run, folder)
        if not begun:
            check_free(path, named_by="out=")  # another process may have taken it in the meantime
            folder.replace(START, weights_of(problem.model))
            folder.begin(tree)
        folder.restore(run)
        go_to_the_end(run, folder, Pace(every), listener)
        (path / START).unlink(missing_ok=True)
    return run


def settings(plan: Plan, problem: Problem, strategy: str | None, out: Path | None = None) -> dict[str, Any]:
    """The config of a run that was started from Python. It names the model and the data, but cannot make them."""
    shapes = {name: list(tensor.shape) for name, tensor in problem.model.state_dict().items()}
    counts = {"server": problem.server, "test": problem.test}
    return {
        **plan.model_dump(mode="json"),
        "task": problem.task,
        "metrics": list(scorers([*(plan.metrics or ()), *problem.metrics])) or None,
        "model": {"name": type(problem.model).__name__, "digest": json_digest(shapes)},
        "data": {
            "name": "own data",
            "digest": json_digest({"sizes": problem.sizes.tolist()}),
            "examples": {name: None if data is None else len(data) for name, data in counts.items()},
        },
        "strategy": strategy,
        SIMULATION: _call(plan, problem, strategy, out),
    }


def _call(plan: Plan, problem: Problem, strategy: str | None, out: Path | None) -> str:
    """The call of `simulate` that repeats a run, with the settings that are not the defaults."""
    given: dict[str, str] = {name: name for name in ("server", "test") if getattr(problem, name) is not None}
    if problem.server_classes is not None:
        given["server_classes"] = str(problem.server_classes)
    if problem.loss is not F.cross_entropy:
        given["loss"] = getattr(problem.loss, "__name__", "…")
    if problem.task is not None:
        given["task"] = repr(problem.task)
    if plan.metrics or problem.metrics:
        given["metrics"] = "[…]"
    options = plan.method.model_dump(mode="json", exclude_defaults=True)
    named = repr({"name": plan.method.name, **options} if options else plan.method.name)
    given |= {"method": named} if strategy is None else {"strategy": f"{strategy}(…)"}
    given["per_round"] = str(plan.clients.per_round)
    rest = plan.model_dump(mode="json", exclude_defaults=True, exclude={"clients", "workers", "metrics", "method"})
    given |= {name: repr(value) for name, value in rest.items()}
    given |= {} if out is None else {"out": repr(str(out))}
    return f"feddle.simulate(model, clients, {', '.join(f'{name}={text}' for name, text in given.items())})"


def _require_same(now: Mapping[str, Any], then: Mapping[str, Any], path: Path) -> None:
    """Refuse to continue a run with other settings. Workers and executor may change."""
    for key, value in now.items():
        if key not in ("workers", "executor", SIMULATION) and then.get(key) != value:
            found = f"a run with {key} {_brief(then.get(key))}, but this call has {_brief(value)}"
            raise FeddleError(f"simulate: {path} holds {found}; use the same, or name another folder with out=")


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _finished(run: Run[Simulation], folder: RunFolder) -> Run[Simulation]:
    """The run with the history and the result that are in its folder."""
    folder.checkpoint.clear()  # it may have been killed before that
    run.history = [json.loads(line) for line in folder.history.read_text(encoding="utf-8").splitlines()]
    run.kept = {**run.result, **read_result(folder.path)}  # a field that is null is not read
    run.seconds = run.kept["seconds"]
    run.server.state.version = len(run.history)
    run.ended = True
    return run


def save_run(run: Run[Any], path: Path) -> Path:
    """Write a run to a new folder."""
    check_free(path, named_by="save(folder)")
    strategy = None if run.method == run.plan.method.name else run.method
    own = isinstance(run.plan, SimulationPlan) and not isinstance(run.plan, Config)
    folder = RunFolder(path)
    folder.begin(settings(run.plan, run.problem, strategy) if own else run.plan.model_dump(mode="json"))
    folder.describe(run)
    folder.replace(HISTORY, "".join(json.dumps(line) + "\n" for line in run.history).encode())
    folder.finish(run)
    return path


def report_on(run: Run[Any], out: Path | None) -> Path:
    """Write the page of a run. A run that is not on disk is written to a temporary folder first."""
    if run.folder is not None:
        return feddle.write_report([run.folder], out or run.folder / REPORT)
    with tempfile.TemporaryDirectory() as place:
        return feddle.write_report([save_run(run, Path(place) / run.method.replace(":", "."))], out or REPORT)
