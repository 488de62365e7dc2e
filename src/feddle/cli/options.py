"""Options and arguments that several commands share."""

import re
import shlex
import sys
from pathlib import Path

import click

from feddle.core.errors import FeddleError

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
    """The command line that was given, which continues what it started."""
    return shlex.join(["feddle", *sys.argv[1:]])
