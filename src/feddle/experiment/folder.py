"""The run folder: config, history, result and model on disk."""

import json
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save_file

from feddle.core.errors import FeddleError
from feddle.experiment.build import build_federation
from feddle.experiment.config import Config
from feddle.experiment.run import Line, Listener, Run


class RunFolder:
    """Where a run is kept; a folder that holds a run already is refused."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self._history = path / "history.jsonl"
        try:
            path.mkdir(parents=True, exist_ok=True)
            with (path / "config.yaml").open("x", encoding="utf-8") as file:
                yaml.safe_dump(config.model_dump(mode="json"), file, sort_keys=False, allow_unicode=True)
        except FileExistsError as error:
            what = "already holds a run" if path.is_dir() else "is a file"
            raise FeddleError(f"{path} {what}; name another folder with --out, or remove it") from error
        except OSError as error:
            raise FeddleError(f"cannot write to {path}: {error.strerror}; name another folder with --out") from error

    def append(self, line: Line) -> None:
        """Add a round to the history."""
        with self._history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def finish(self, run: Run) -> None:
        """Keep the model and the result."""
        model = run.federation.model
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        partial = self.path / "model.safetensors.partial"
        save_file(tensors, partial)
        partial.replace(self.path / "model.safetensors")
        self._write_json("result.json", run.result)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        partial = self.path / f"{name}.partial"
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.path / name)


def run_config(config: Config, out: Path, listener: Listener | None = None, *, quiet: bool = False) -> Run:
    """Run a config into a new folder; whatever ends the run, what was done until then is kept."""
    run = Run(config, build_federation(config, quiet=quiet))
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
