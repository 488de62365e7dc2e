"""A comparison of several methods: its record, from which a stopped comparison can be resumed."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from feddle.core.durable import sync_folder, write_whole
from feddle.core.errors import FeddleError, StoppedError
from feddle.records import CONFIG
from feddle.run.folder import RunFolder, check_free, resume_run, run_config
from feddle.run.load import parse_config, read_yaml
from feddle.run.plan import Config
from feddle.run.run import Listener

_RECORD = "compare.yaml"


def is_comparison(path: Path) -> bool:
    """Whether a folder holds a comparison."""
    return (path / _RECORD).is_file()


def begin_comparison(path: Path, configs: Mapping[str, Config]) -> None:
    """Write the record of the configs to run. Each runs in a folder with its name."""
    if is_comparison(path):
        raise FeddleError(
            f"{path} already holds a comparison; name another folder with --out, remove it, "
            f"or continue it if it was stopped: feddle resume {path}"
        )
    for name in configs:
        check_free(path / name)
    trees = {name: config.model_dump(mode="json") for name, config in configs.items()}
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / _RECORD, yaml.safe_dump(trees, sort_keys=False, allow_unicode=True).encode())
        sync_folder(path)
    except OSError as error:
        raise StoppedError(f"cannot write to {path}: {error.strerror}; name another folder with --out") from error


def comparison(path: Path) -> dict[str, Config]:
    """The configs of a comparison, in order."""
    trees = read_yaml(path / _RECORD)
    if not trees or not all(isinstance(tree, dict) for tree in trees.values()):
        raise FeddleError(f"{path / _RECORD} has been changed: expected one config per method; start a new comparison")
    return {str(name): parse_config(tree) for name, tree in trees.items()}


def run_or_resume(config: Config, path: Path, listener: Listener, *, quiet: bool) -> None:
    """Run a config in its folder, or continue the run that is in there."""
    if (path / CONFIG).is_file():
        resume_run(path, listener, quiet=quiet)
    else:
        run_config(config, path, listener, quiet=quiet)


def done_rounds(path: Path) -> int:
    """The number of rounds of a run that will not be repeated when it continues."""
    folder = RunFolder(path)
    return folder.config().rounds if folder.is_finished() else folder.saved_rounds()
