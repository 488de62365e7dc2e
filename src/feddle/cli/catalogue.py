"""Commands that list methods, config keys, data sets and pretrained weights. They import torch when they run."""

import json
from pathlib import Path
from typing import get_args

import click

from feddle.cli.display import print_table
from feddle.cli.options import PATH, quiet_option


@click.command()
def methods() -> None:
    """List the methods."""
    from feddle.methods.options import AnyMethod

    rows = [(member.model_fields["name"].default, member.__doc__) for member in get_args(AnyMethod)]
    print_table(("method", "description"), rows)


@click.command()
@click.option("--markdown", is_flag=True, help="Print a reference in Markdown instead.")
def schema(markdown: bool) -> None:
    """Print the JSON Schema of a config file, for completion in editors."""
    from feddle.run.plan import Config
    from feddle.run.reference import reference

    click.echo(reference() if markdown else json.dumps(Config.model_json_schema(), indent=2))


@click.group()
def data() -> None:
    """List and fetch data sets."""


@data.command("list")
def list_data() -> None:
    """List the data sets and whether they are on this machine."""
    from feddle.data.datasets import DATASETS

    rows = [(source.name, *source.facts, "yes" if source.is_here() else "no") for source in DATASETS]
    print_table(("name", "images", "train", "test", "classes", "download", "here"), rows)
    click.echo("For data sets without a download, `feddle data fetch NAME` explains where to get the files.")


@data.command("fetch")
@click.argument("name")
@click.option("--folder", type=PATH, help="Read the official files from this folder.")
@quiet_option
def fetch_data(name: str, folder: Path | None, quiet: bool) -> None:
    """Fetch the data set NAME into the cache folder ($FEDDLE_DATA)."""
    from feddle.data.datasets import named

    source = named(name, folder)
    source.read(quiet=quiet)  # checks official files too
    click.echo(source.place)


@click.group()
def weights() -> None:
    """List and fetch pretrained weights."""


@weights.command("list")
def list_weights() -> None:
    """List the pretrained weights and whether they are on this machine."""
    from feddle.models.weights import WEIGHTS

    rows = [(w.name, w.title, f"{w.megabytes:g} MB", "yes" if w.is_here() else "no") for w in WEIGHTS]
    print_table(("name", "description", "download", "here"), rows)


@weights.command("fetch")
@click.argument("name")
@click.option("--folder", type=PATH, help="Read the official file from this folder.")
@quiet_option
def fetch_weights(name: str, folder: Path | None, quiet: bool) -> None:
    """Fetch the weights NAME into the cache folder ($FEDDLE_DATA)."""
    from feddle.models.weights import named

    source = named(name, folder)
    source.fetch(quiet=quiet)
    click.echo(source.place)
