"""The run folder: config, history, result, model and checkpoint on disk."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import nn

from feddle.core.durable import sync_file, sync_folder, write_whole
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.ranks import Ranks
from feddle.reading import read_result
from feddle.records import CHECKPOINT, COMPARISON, CONFIG, DATA, HISTORY, MODEL, RESULT, START, json_digest
from feddle.run.census import census
from feddle.run.checkpoint import Checkpoint, Pace
from feddle.run.load import load_config, parse_config, read_yaml, started_in
from feddle.run.plan import Config
from feddle.run.problem import build_problem
from feddle.run.run import Line, Listener, Run
from feddle.run.simulate import simulated
from feddle.runtimes.runtime import Runtime
from feddle.runtimes.simulation import Simulation
from feddle.version import __version__

_FORMAT = 6  # of the checkpoint; raise it when the names or the meaning of a state change
_PATIENCE = 1.0  # seconds; the workers of a killed run may hold its lock for a moment


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = path / HISTORY
        self.checkpoint = Checkpoint(path / CHECKPOINT)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder: only one process at a time may write to a run."""
        with self.writing():
            self.checkpoint.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock = FileLock(self.checkpoint.folder / "lock", timeout=_PATIENCE).acquire()
            except Timeout as error:
                raise FeddleError(f"another process is using {self.path}; wait until it ends") from error
        with lock:
            yield

    def begin(self, config: dict[str, Any]) -> None:
        """Write the config; from then on, the folder holds a run."""
        self.replace(CONFIG, as_yaml(config))

    def config(self) -> Config:
        """The config of the run that the folder holds."""
        kind = started_in(self.path)
        if kind == "run":
            return load_config(self.path / CONFIG)
        if kind:
            raise FeddleError(f"{self.path} holds a {kind}; to continue it: {_how_to_continue(kind, self.path)}")
        if not self.path.is_dir():
            raise FeddleError(f"there is no folder {self.path}; check the path, or start a run: feddle run")
        inside = ", ".join(sorted(str(config.parent) for config in self.path.glob(f"*/{CONFIG}")))
        remedy = f"name one of the folders in it: {inside}" if inside else "name a folder of `feddle run`"
        raise FeddleError(f"{self.path} holds no run (no {CONFIG}); {remedy}")

    def describe(self, run: Run[Runtime]) -> None:
        """Write what data the run uses."""
        self.replace(DATA, json.dumps(census(run.problem)).encode())

    def append(self, line: Line) -> None:
        """Append a round to the history."""
        with self.writing(), self.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def save(self, run: Run[Runtime]) -> None:
        """Write a checkpoint; called between rounds."""
        with self.writing():
            sync_file(self.history)
            sync_folder(self.path)
            written = self.history.read_bytes()
            facts = {
                **_made_by(run),
                "round": len(run.history),
                "seconds": run.seconds,
                "history": len(written),
                "history_sha256": hashlib.sha256(written).hexdigest(),
            }
            self.checkpoint.save(run.state_dict(), facts)

    def saved_rounds(self) -> int:
        """The number of rounds that will not be repeated when the run continues."""
        saved = {} if self.is_finished() else self.checkpoint.facts() or {}
        done = read_result(self.path).get("rounds") if self.is_finished() else saved.get("round")
        return int(done or 0)

    def restore(self, run: Run[Runtime]) -> None:
        """Load the last checkpoint, if there is one, into a new run, and truncate the history to match.

        Everything is checked before anything is changed.
        """
        facts = self.checkpoint.facts()
        if facts is not None:
            _check_made_by(facts, _made_by(run), self.path)
            history = self._history_until(facts)
            run.load_state_dict(self.checkpoint.state(), history, facts["seconds"])
        with self.writing():
            self.checkpoint.tidy()
            (self.path / RESULT).unlink(missing_ok=True)  # it belongs to the stop, not to the continued run
            self.history.touch()
            os.truncate(self.history, 0 if facts is None else facts["history"])

    def _history_until(self, facts: Mapping[str, Any]) -> list[Line]:
        """The lines of history up to a checkpoint."""
        written = self.history.read_bytes()[: facts["history"]] if self.history.exists() else b""
        if hashlib.sha256(written).hexdigest() != facts["history_sha256"]:
            raise FeddleError(
                f"{self.history} has been changed since the checkpoint, so the run cannot continue; "
                f"remove {self.checkpoint.folder} to start it from the beginning"
            )
        return [json.loads(line) for line in written.decode().splitlines()]

    def is_finished(self) -> bool:
        """Whether the run has completed all its rounds."""
        return bool(read_result(self.path).get("finished"))

    def require_result(self) -> None:
        """Refuse a damaged result if there is no checkpoint, because the whole run would be repeated."""
        result = self.path / RESULT
        if result.exists() and "finished" not in read_result(self.path) and self.checkpoint.facts() is None:
            raise FeddleError(f"{result} is damaged; restore it, or remove it to repeat the run from the beginning")

    def finish(self, run: Run[Runtime]) -> None:
        """Write the model, then the result, which marks the run as finished; then remove the checkpoint."""
        with self.writing():
            sync_file(self.history)
        self._write_model(run)
        self._write_result(run.result)
        self.checkpoint.clear()

    def keep(self, run: Run[Runtime]) -> None:
        """Write the result and the model of a run that was stopped."""
        self._write_result({**run.result, "finished": False})
        self._write_model(run)

    def _write_result(self, result: Mapping[str, Any]) -> None:
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in result.items())
        self.replace(RESULT, f"{{\n{lines}\n}}\n".encode())  # a line for each field, since some are long lists

    def _write_model(self, run: Run[Runtime]) -> None:
        self.replace(MODEL, weights_of(run.problem.model, run.problem.classes))

    def replace(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all, in a folder that may be new."""
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / name, content)
            sync_folder(self.path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Report an error of the disk in one line."""
        try:
            yield
        except OSError as error:
            remedy = "" if (self.path / CONFIG).exists() else "; name another folder"
            raise StoppedError(f"cannot write to {self.path}: {error.strerror}{remedy}") from error


def _made_by(run: Run[Runtime]) -> dict[str, Any]:
    """The facts that must stay the same when a run continues. Workers and executor may change."""
    tree = run.plan.model_dump(mode="json", exclude={"workers", "executor"})
    return {
        "format": _FORMAT,
        "feddle": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": run.device,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "config": json_digest(tree),
        "data": run.problem.digest,
    }


def _check_made_by(facts: dict[str, Any], made: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint that was made differently. Versions are first, because a newer config may have more keys."""
    changed = {
        "config": f"{path / CONFIG} has been changed since the checkpoint",
        "data": f"the data has other labels or clients than when the checkpoint in {path} was made",
    }
    for name, now in made.items():
        if (then := facts.get(name)) != now:
            found = changed.get(name, f"the checkpoint in {path} was made with {name} {then}, this is {now}")
            raise FeddleError(f"{found}; undo the change to continue the run, or start a new one: feddle run")


def check_free(path: Path, mine: str = "", named_by: str = "--out") -> None:
    """Refuse a folder that is neither new nor empty, so that no file is replaced.

    A folder with a run of the kind `mine` is accepted. `named_by` is the option that names another folder.
    """
    if path.exists() and not path.is_dir():
        raise FeddleError(f"{path} is a file; name another folder with {named_by}")
    kind = started_in(path)
    if kind and kind != mine:
        remedy = f"continue it if it was stopped: {_how_to_continue(kind, path)}"
        raise FeddleError(f"{path} already holds a {kind}; name another folder with {named_by}, remove it, or {remedy}")
    content = sorted(entry.name for entry in path.iterdir() if not _is_left(entry)) if path.exists() else []
    if content and not kind:
        raise FeddleError(f"{path} is not empty (it holds {content[0]}); name a new or empty folder with {named_by}")


def _how_to_continue(kind: str, path: Path) -> str:
    """How to continue what was started in a folder."""
    commands = {
        "federation": f"feddle federation up --out {path}, or `flwr run` with that folder as out",
        "grid": "repeat its `feddle reproduce` command",
        "simulation": f"in Python, call feddle.simulate as before, with out={str(path)!r}",
    }
    return commands.get(kind, f"feddle resume {path}")


def _is_left(entry: Path) -> bool:
    """Whether a file or folder was left by a start that was interrupted before its config was written."""
    if entry.name == CHECKPOINT and entry.is_dir():
        return all(inside.name == "lock" for inside in entry.iterdir())
    return entry.name.removesuffix(".partial") == START or entry.name in (f"{CONFIG}.partial", f"{COMPARISON}.partial")


def run_config(
    config: Config,
    out: Path | str,
    listener: Listener | None = None,
    *,
    quiet: bool = False,
    ranks: Ranks | None = None,
) -> Run[Simulation]:
    """Run a `config` in the new folder `out`. If the run is interrupted, its results so far are kept.

    `listener` is called with each line of history, and may return True to end the run. With `quiet`, downloads are not
    shown. `ranks` share the search; this process is rank 0.
    """
    out = Path(out)
    check_free(out)
    run = simulated(config, build_problem(config, quiet=quiet), scratch=out, ranks=ranks)
    run.folder = out
    folder = RunFolder(out)
    with folder.locked():
        check_free(out)  # another process may have taken it in the meantime
        folder.begin(config.model_dump(mode="json"))
        go_to_the_end(run, folder, Pace(config.checkpoint.every), listener)
    return run


def resume_run(
    path: Path, listener: Listener | None = None, *, quiet: bool = False, ranks: Ranks | None = None
) -> Run[Simulation] | None:
    """Continue a stopped run from its last checkpoint; None if it is already finished. `ranks` may be any number."""
    folder = RunFolder(path)
    config = folder.config()
    folder.require_result()
    if folder.is_finished() and not folder.checkpoint.folder.exists():
        return None
    with folder.locked():
        if folder.is_finished():  # it was killed before its checkpoint was removed
            folder.checkpoint.clear()
            return None
        run = simulated(config, build_problem(config, quiet=quiet), scratch=path, ranks=ranks)
        run.folder = path
        folder.restore(run)
        go_to_the_end(run, folder, Pace(config.checkpoint.every), listener)
    return run


def go_to_the_end(run: Run[Runtime], folder: RunFolder, pace: Pace, listener: Listener | None) -> None:
    """Run all remaining rounds in a locked folder, with checkpoints."""

    def record(line: Line) -> object:
        folder.append(line)
        if line["round"] < run.plan.rounds and pace.due(line["round"]):
            with pace.making():
                folder.save(run)
        return None if listener is None else listener(line)

    folder.describe(run)
    try:
        run.go(record)
        folder.finish(run)
    except BaseException:
        if not folder.is_finished():  # else it was stopped while its checkpoint was removed
            with suppress(FeddleError):  # report the original error, not that the disk is full
                folder.keep(run)
        raise


def run_or_resume(
    config: Config, path: Path, listener: Listener, *, quiet: bool, ranks: Ranks | None = None
) -> Run[Simulation] | None:
    """Run a config in its folder, or continue the run that is in there; None if it is already finished."""
    if (path / CONFIG).is_file():
        return resume_run(path, listener, quiet=quiet, ranks=ranks)
    return run_config(config, path, listener, quiet=quiet, ranks=ranks)


def begin_comparison(path: Path, configs: Mapping[str, Config], *, quiet: bool = False) -> None:
    """Write the configs of a comparison, from which it can be resumed. Each runs in a folder with its name.

    The configs differ in method and seed only. All runs are built first, so that nothing is written if one cannot be.
    """
    check_free(path)
    for _, alike in groupby(configs.values(), key=lambda config: config.seed):
        first, *others = alike
        problem = build_problem(first, quiet=quiet)
        for config in (first, *others):
            simulated(config, problem, scratch=Path(tempfile.gettempdir()))
    trees = {name: config.model_dump(mode="json") for name, config in configs.items()}
    RunFolder(path).replace(COMPARISON, as_yaml(trees))


def comparison(path: Path) -> dict[str, Config]:
    """The configs of a comparison, in order; empty if the folder holds none."""
    file = path / COMPARISON
    if not file.is_file():
        return {}
    trees = read_yaml(file)
    if not trees or not all(isinstance(tree, dict) for tree in trees.values()):
        raise FeddleError(f"{file} has been changed: expected one config per method; start a new comparison")
    return {str(name): parse_config(tree) for name, tree in trees.items()}


def weights_of(model: nn.Module, classes: Sequence[str] = ()) -> bytes:
    """The parameters and buffers of a model, in the format of safetensors, with the names of its classes."""
    tensors = {n: t.detach().cpu().contiguous() for n, t in model.state_dict().items()}
    return save(tensors, {"classes": json.dumps(list(classes))} if classes else None)


def as_yaml(tree: dict[str, Any]) -> bytes:
    """Nested dicts as YAML, in their order."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode()
