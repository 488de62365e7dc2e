"""The run folder: config, history, result and model on disk."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from safetensors.torch import save

from feddle.core.errors import FeddleError
from feddle.experiment.build import build_federation
from feddle.experiment.config import Config
from feddle.experiment.run import Line, Listener, Run


class RunFolder:
    """Where a run is kept; a folder that holds a run already is refused."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        check_free(path)
        with self._writing():
            path.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
            with (path / "config.yaml").open("x", encoding="utf-8") as file:
                file.write(text)

    def append(self, line: Line) -> None:
        """Add a round to the history."""
        with self._writing(), (self.path / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def finish(self, run: Run) -> None:
        """Keep the result and the model."""
        self._replace("result.json", (json.dumps(run.result, indent=2) + "\n").encode())
        state = run.federation.model.state_dict()
        self._replace("model.safetensors", save({n: t.detach().cpu().contiguous() for n, t in state.items()}))

    def _replace(self, name: str, content: bytes) -> None:
        """Write a file in one step: a reader sees all of it or none."""
        partial = self.path / f"{name}.partial"
        with self._writing():
            partial.write_bytes(content)
            partial.replace(self.path / name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FeddleError(
                f"cannot write to {self.path}: {error.strerror}; name another folder with --out"
            ) from error


def check_free(path: Path) -> None:
    """Refuse a path that cannot become a run folder, before anything is computed for it."""
    if path.exists() and not path.is_dir():
        raise FeddleError(f"{path} is a file; name another folder with --out")
    if (path / "config.yaml").exists():
        raise FeddleError(f"{path} already holds a run; name another folder with --out, or remove it")


def run_config(config: Config, out: Path, listener: Listener | None = None, *, quiet: bool = False) -> Run:
    """Run a config into a new folder; whatever ends the run, what was done until then is kept."""
    check_free(out)
    run = Run(config, build_federation(config, quiet=quiet), scratch=out)
    folder = RunFolder(out, config)

    def record(line: Line) -> None:
        folder.append(line)
        if listener is not None:
            listener(line)

    try:
        run.go(record)
    finally:
        folder.finish(run)
    return run
