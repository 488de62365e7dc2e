"""Options and arguments that several commands share."""

import shlex
import sys
from pathlib import Path

import click

PATH = click.Path(path_type=Path)
folder_argument = click.argument("folder", metavar="DIR", type=PATH)
overrides_option = click.option(
    "-o", "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a config key: -o rounds=50"
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
track_option = click.option(
    "--track", multiple=True, type=click.Choice(["tensorboard", "mlflow"]), help="Also send every round to this tool."
)


def names_in(text: str) -> list[str]:
    """The names in a list that is separated by commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def folder_name(method: str) -> str:
    """The name of a method's folder. An import path has a colon, which some systems do not allow there."""
    return method.replace(":", ".")


def this_command() -> str:
    """The command line that was given, which continues what it started."""
    return shlex.join(["feddle", *sys.argv[1:]])
