"""The `feddle` command: run methods, compare them, and show the results."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click

from feddle.cli.display import RunDisplay, print_table
from feddle.cli.federation import federation
from feddle.cli.options import PATH, folder_argument, names_in, overrides_option, quiet_option, track_option
from feddle.cli.reports import report, report_on
from feddle.cli.reproduce import reproduce
from feddle.core.errors import FeddleError, StoppedError
from feddle.data.kinds import ENDINGS
from feddle.records import COMPARISON, CONFIG, REPORT
from feddle.version import __version__

if TYPE_CHECKING:
    from feddle.run.plan import Config
    from feddle.run.trackers import TrackerName

# Importing torch takes a second or two, so commands import what needs torch when they run.


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="feddle", message="feddle %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error. It may be anywhere on the command line.")
def app(debug: bool) -> None:
    """Asynchronous federated learning on hybrid data.

    Client updates become anchors; the server's own data guides how they are merged.
    """


for command in (federation, report, reproduce):
    app.add_command(command)


@dataclass(frozen=True)
class Start:
    """The options of `run` and `compare` that determine the config."""

    config: Path | None
    data: Path | None
    overrides: tuple[str, ...]
    seed: int | None
    quiet: bool

    def load(self, *more: str, quiet: bool = False) -> "tuple[Config, str]":
        """The config from a file, for the user's own data, or both; and a name for the run."""
        overrides = [*self.overrides, *([] if self.seed is None else [f"seed={self.seed}"]), *more]
        if self.data is not None:
            from feddle.run.own import config_for

            config, line = config_for(self.data, self.config, overrides)
            if not (quiet or self.quiet):
                click.echo(line, err=True)
            return config, (self.config or self.data).stem
        if self.config is None:
            raise click.UsageError("expected a CONFIG (a YAML file) or --data with your own data, but found neither")
        if self.config.is_dir() or self.config.suffix.lower() in ENDINGS:
            raise FeddleError(f"{self.config} is not a config file; if it is your own data, use --data {self.config}")
        from feddle.run.load import load_config

        return load_config(self.config, overrides), self.config.stem


def start_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Start` to a command."""
    own_data = (
        "Your own data: a .csv with the columns path, label and client, a .npz file, a folder of images or a Hugging"
        " Face dataset on disk. CONFIG may then be omitted."
    )
    seed = click.option("--seed", type=click.IntRange(min=0), help="The seed; it replaces the seed in CONFIG.")
    config = click.argument("config", type=PATH, required=False)
    return config(click.option("--data", type=PATH, help=own_data)(overrides_option(seed(quiet_option(command)))))


@app.command()
@start_options
@click.option("--out", type=PATH, help="The run folder. By default a new folder in runs/.")
@track_option
def run(out: Path | None, track: "tuple[TrackerName, ...]", **options: Any) -> None:
    """Run the federation that a YAML file (CONFIG) describes."""
    start = Start(**options)
    config, stem = start.load()
    out = out or _new_folder(f"{stem}-{config.method.name}-seed{config.seed}")
    from feddle.run.folder import check_free, run_config
    from feddle.run.trackers import tracking

    check_free(out)
    _fetch(config, quiet=start.quiet)
    with RunDisplay(config.rounds, quiet=start.quiet) as display:
        display.begin(config.method.name)
        with _explaining_resume(out), tracking(track, out, config, display.show) as listener:
            run_config(config, out, listener, quiet=start.quiet)
    report_on([out], out / REPORT)


@app.command()
@start_options
@click.option("--methods", default="feddle,fedbuff,fedavg", show_default=True, help="Methods, separated by commas.")
@click.option("--out", type=PATH, help="The folder for the runs. By default a new folder in runs/.")
def compare(methods: str, out: Path | None, **options: Any) -> None:
    """Run CONFIG with several methods: all have the same clients, delays and initial weights.

    The method in CONFIG keeps its options; the other methods have their default options.
    """
    start = Start(**options)
    own, stem = start.load()
    names = names_in(methods)
    if not names:
        raise FeddleError("--methods: expected at least one method, but found none; `feddle methods` lists them")
    others = {name: start.load(f"method={name}", quiet=True)[0] for name in names if name != own.method.name}
    configs = {name: others.get(name, own) for name in names}
    out = out or _new_folder(stem)
    from feddle.run.folder import begin_comparison

    begin_comparison(out, configs)
    _compare_all(configs, out, quiet=start.quiet)


def _new_folder(name: str) -> Path:
    """A folder in runs/ that does not exist yet."""
    root = Path("runs")
    names = (name if i == 1 else f"{name}-{i}" for i in range(1, sys.maxsize))
    return next(root / n for n in names if not (root / n).exists())


def _compare_all(configs: "Mapping[str, Config]", out: Path, *, quiet: bool) -> None:
    """Run the methods of a comparison that are not finished, one after the other, then report all of them."""
    from feddle.run.folder import RunFolder, run_or_resume

    folders = [out / name for name in configs]
    first = next(iter(configs.values()))  # all have the same data, model and rounds
    _fetch(first, quiet=quiet)
    with RunDisplay(first.rounds, quiet=quiet) as display:
        for config, folder in zip(configs.values(), folders, strict=True):
            display.begin(config.method.name, RunFolder(folder).saved_rounds())
            with _explaining_resume(out, kept=out / COMPARISON):
                run_or_resume(config, folder, display.show, quiet=quiet)
    report_on(folders, out / REPORT)


@app.command()
@folder_argument
@quiet_option
def resume(folder: Path, quiet: bool) -> None:
    """Continue the run or comparison in DIR from its last checkpoint."""
    from feddle.run.folder import RunFolder, comparison, resume_run

    if configs := comparison(folder):
        _compare_all(configs, folder, quiet=quiet)
        return
    held = RunFolder(folder)
    config = held.config()
    if held.is_finished():
        click.echo(f"{folder} is finished; there is nothing to resume")
        return
    _fetch(config, quiet=quiet)
    with RunDisplay(config.rounds, quiet=quiet) as display, _explaining_resume(folder):
        display.begin(config.method.name, held.saved_rounds())
        resume_run(folder, display.show, quiet=quiet)
    report_on([folder], folder / REPORT)


def _fetch(config: "Config", *, quiet: bool) -> None:
    """Fetch data and weights before the display starts, since a download has its own progress display."""
    for source in config.sources():
        source.fetch(quiet=quiet)


@contextmanager
def _explaining_resume(folder: Path, kept: Path | None = None) -> Iterator[None]:
    """Add the command that continues the run to the message of a stop, if the run has written its config (`kept`)."""
    remedy, kept = f"feddle resume {folder}", kept or folder / CONFIG
    try:
        yield
    except KeyboardInterrupt:
        done = f"; the rounds so far are in {folder}; to continue: {remedy}" if kept.exists() else ""
        _stop(f"interrupted{done}", code=130)
    except (StoppedError, OSError, MemoryError) as error:
        if not kept.exists():
            raise
        raise FeddleError(f"{_explain(error)}; to continue once that is fixed: {remedy}") from error


@app.command()
def methods() -> None:
    """List the methods."""
    from feddle.methods.options import AnyMethod

    rows = [(member.model_fields["name"].default, member.__doc__) for member in get_args(AnyMethod)]
    print_table(("method", "description"), rows)


@app.command()
@click.option("--markdown", is_flag=True, help="Print a reference in Markdown instead.")
def schema(markdown: bool) -> None:
    """Print the JSON Schema of a config file, for completion in editors."""
    from feddle.run.plan import Config
    from feddle.run.reference import reference

    click.echo(reference() if markdown else json.dumps(Config.model_json_schema(), indent=2))


@app.group()
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


@app.group()
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


def _stop(text: str, code: int = 2) -> NoReturn:
    click.echo(f"feddle: {text}", err=True)
    sys.exit(code)


def _explain(error: Exception) -> str:
    match error:
        case click.ClickException():
            return error.format_message()
        case OSError(strerror=reason, filename=name) if reason:
            return f"{reason}: {name}" if name else reason
        case MemoryError():
            return f"out of memory: {error}" if str(error) else "out of memory; make the model or the atlas smaller"
        case _:
            return str(error)


def main() -> None:
    """Run the command line. An error that the user can fix prints one line and exits with code 2."""
    debug = "--debug" in sys.argv
    try:
        # click accepts the option of a group only before the subcommand; --debug may be anywhere
        app(args=[a for a in sys.argv[1:] if a != "--debug"], standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except BrokenPipeError:  # the program that read our output has ended, as in `feddle methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (FeddleError, click.ClickException, OSError, MemoryError) as error:
        if debug:
            traceback.print_exc()
        _stop(_explain(error))
    except (KeyboardInterrupt, click.Abort):
        _stop("interrupted", code=130)
