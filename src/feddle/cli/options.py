"""Options and arguments that several commands share."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from feddle.core.errors import FeddleError
from feddle.data.kinds import ENDINGS

if TYPE_CHECKING:
    from feddle.run.plan import Config

PATH = click.Path(path_type=Path)
SEED = click.IntRange(0, 2**63 - 1)
SEED.name = "whole number from 0 up"  # for the message about any other text
folder_argument = click.argument("folder", metavar="DIR", type=PATH)
overrides_option = click.option(
    "-o", "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a config key: -o rounds=50"
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
track_option = click.option(
    "--track",
    multiple=True,
    type=click.Choice(["tensorboard", "mlflow", "wandb"]),
    help="Also send every round to this tool.",
)


def names_in(text: str) -> list[str]:
    """The names in a list that is separated by commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def seeds_in(_: click.Context, __: click.Parameter, text: str | None) -> list[int]:
    """The seeds in the list of an option, each once; none if the option is not given."""
    if text is None:
        return []
    seeds = names_in(text)
    if not seeds or not all(re.fullmatch("[0-9]{1,18}", seed) for seed in seeds):
        raise FeddleError(f"--seeds: expected whole numbers from 0 up, such as 0,1,2, but found {text!r}")
    return list(dict.fromkeys(map(int, seeds)))


def folder_name(method: str) -> str:
    """The name of a method's folder. An import path has a colon, which some systems do not allow there."""
    return method.replace(":", ".")


def this_command() -> str:
    """The command line of this process. Running it again continues what it started."""
    return shlex.join(["feddle", *sys.argv[1:]])


def load_run(
    config: Path | None, data: Path | None, overrides: Sequence[str], seed: int | None, *, quiet: bool
) -> "tuple[Config, str]":
    """The config from a file, for the user's own data, or both; and a name for the run."""
    overrides = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    if data is not None:
        from feddle.run.own import config_for

        loaded, line = config_for(data, config, overrides)
        if not quiet:
            click.echo(line, err=True)
        return loaded, (config or data).stem
    if config is None:
        raise click.UsageError("expected a CONFIG (a YAML file) or --data with your own data, but found neither")
    if config.is_dir() or config.suffix.lower() in ENDINGS:
        raise FeddleError(f"{config} is not a config file; if it is your own data, use --data {config}")
    from feddle.run.load import load_config

    return load_config(config, overrides), config.stem


def load_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `load_run` to a command."""
    own_data = (
        "Your own data: a .csv with the columns path, label and client, a .npz file, a folder of images or a Hugging"
        " Face dataset on disk. CONFIG may then be omitted."
    )
    seed = click.option("--seed", type=SEED, metavar="NUMBER", help="The seed; it replaces the seed in CONFIG.")
    config = click.argument("config", type=PATH, required=False)
    return config(click.option("--data", type=PATH, help=own_data)(overrides_option(seed(quiet_option(command)))))
