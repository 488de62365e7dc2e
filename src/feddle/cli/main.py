"""`feddle`: run, compare, and look at federations."""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

import click
from rich.console import Console
from rich.table import Table

from feddle.cli.display import RunDisplay
from feddle.cli.federation import federation
from feddle.cli.reports import report, report_on
from feddle.cli.reproduce import reproduce, track_option
from feddle.core.errors import FeddleError, StoppedError
from feddle.data.kinds import ENDINGS
from feddle.version import __version__

if TYPE_CHECKING:
    from feddle.run.plan import Config
    from feddle.run.trackers import TrackerName

# torch takes a second or two to import: commands that do not need it import nothing that does


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="feddle", message="feddle %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error (anywhere on the line).")
def app(debug: bool) -> None:
    """Asynchronous federated learning on hybrid data.

    Client updates become anchors; the server's own data guides how they are merged.
    """


app.add_command(federation)
app.add_command(report)
app.add_command(reproduce)

overrides_option = click.option(
    "-o",
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key: -o method.atlas_size=20",
)
seed_option = click.option("--seed", type=click.IntRange(min=0), help="The run's seed; overrides the file's.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress display.")
config_argument = click.argument("config", type=click.Path(path_type=Path), required=False)
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Your own data: a .csv of path,label,client, a .npz, a folder of images or a Hugging Face dataset on disk. "
    "CONFIG may then be left out.",
)


@app.command()
@config_argument
@data_option
@overrides_option
@seed_option
@click.option("--out", type=click.Path(path_type=Path), help="The run folder; by default a new one below runs/.")
@track_option
@quiet_option
def run(
    config: Path | None,
    data: Path | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    track: "tuple[TrackerName, ...]",
    quiet: bool,
) -> None:
    """Run the federation that CONFIG, a YAML file, describes."""
    checked, stem = _load(config, data, _with_seed(overrides, seed), quiet=quiet)
    out = out or _new_folder(f"{stem}-{checked.method.name}-seed{checked.seed}")
    from feddle.run.folder import check_free, run_config
    from feddle.run.trackers import tracking

    check_free(out)
    _fetch(checked, quiet=quiet)
    with RunDisplay(checked.rounds, quiet=quiet) as display:
        display.begin(checked.method.name)
        with _telling_how_to_resume(out), tracking(track, out, checked, display.show) as listener:
            run_config(checked, out, listener, quiet=quiet)
    report_on([out], out / "report.html")


@app.command()
@config_argument
@data_option
@click.option("--methods", default="feddle,fedbuff,fedavg", show_default=True, help="The methods, separated by commas.")
@overrides_option
@seed_option
@click.option("--out", type=click.Path(path_type=Path), help="A folder for the runs; by default a new one.")
@quiet_option
def compare(
    config: Path | None,
    data: Path | None,
    methods: str,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    quiet: bool,
) -> None:
    """Run CONFIG with several methods, side by side: same clients, delays and start for all.

    The method that CONFIG names keeps its options there; the others take their defaults.
    """
    overrides = _with_seed(overrides, seed)
    own, stem = _load(config, data, overrides, quiet=quiet)
    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not names:
        raise FeddleError("--methods names no method; `feddle methods` lists them")
    others = {n: _load(config, data, [*overrides, f"method={n}"], quiet=True)[0] for n in names if n != own.method.name}
    configs = {name: others.get(name, own) for name in names}
    out = out or _new_folder(stem)
    from feddle.run.comparison import begin_comparison

    begin_comparison(out, configs)
    _compare_all(configs, out, quiet=quiet)


def _load(file: Path | None, data: Path | None, overrides: Sequence[str], *, quiet: bool) -> "tuple[Config, str]":
    """The config of a file, of your own data, or of both; and a name for the run."""
    if data is not None:
        from feddle.run.own import config_for

        config, line = config_for(data, file, overrides)
        if not quiet:
            click.echo(line, err=True)
        return config, (file or data).stem
    if file is None:
        raise click.UsageError("name a CONFIG (a YAML file), or your own data with --data")
    if file.is_dir() or file.suffix.lower() in ENDINGS:
        raise FeddleError(f"{file} is no config file; if it is your own data, name it with --data {file}")
    from feddle.run.load import load_config

    return load_config(file, overrides), file.stem


def _with_seed(overrides: Sequence[str], seed: int | None) -> tuple[str, ...]:
    return (*overrides, *([] if seed is None else [f"seed={seed}"]))


def _new_folder(name: str) -> Path:
    """A folder below runs/ that does not exist yet."""
    root = Path("runs")
    names = (name if i == 1 else f"{name}-{i}" for i in range(1, sys.maxsize))
    return next(root / n for n in names if not (root / n).exists())


def _compare_all(configs: "Mapping[str, Config]", out: Path, *, quiet: bool) -> None:
    """Run what is not finished of a comparison, one after the other, then show all of it."""
    from feddle.run.comparison import done_rounds, run_or_resume

    folders = [out / name for name in configs]
    first = next(iter(configs.values()))  # all have the same data, model and rounds
    _fetch(first, quiet=quiet)
    with RunDisplay(first.rounds, quiet=quiet) as display:
        for config, folder in zip(configs.values(), folders, strict=True):
            display.begin(config.method.name, done_rounds(folder))
            with _telling_how_to_resume(out, kept=out / "compare.yaml"):
                run_or_resume(config, folder, display.show, quiet=quiet)
    report_on(folders, out / "report.html")


@app.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@quiet_option
def resume(folder: Path, quiet: bool) -> None:
    """Go on with what is in DIR and was stopped: a run, from its last checkpoint, or a comparison."""
    from feddle.run.comparison import comparison, is_comparison
    from feddle.run.folder import RunFolder, resume_run

    if is_comparison(folder):
        _compare_all(comparison(folder), folder, quiet=quiet)
        return
    held = RunFolder(folder)
    config = held.config()
    if held.is_finished():
        click.echo(f"{folder} is finished; there is nothing to resume")
        return
    _fetch(config, quiet=quiet)
    with RunDisplay(config.rounds, quiet=quiet) as display, _telling_how_to_resume(folder):
        display.begin(config.method.name, held.saved_rounds())
        resume_run(folder, display.show, quiet=quiet)
    report_on([folder], folder / "report.html")


def _fetch(config: "Config", *, quiet: bool) -> None:
    """Get data and weights before the display starts, since a download shows progress of its own."""
    for source in config.sources():
        source.fetch(quiet=quiet)


@contextmanager
def _telling_how_to_resume(folder: Path, kept: Path | None = None) -> Iterator[None]:
    """Say how to go on after a stop that the run itself is not to blame for, once its config is `kept`."""
    remedy, kept = f"feddle resume {folder}", kept or folder / "config.yaml"
    try:
        yield
    except KeyboardInterrupt:
        done = f"; what was done is in {folder}; to go on: {remedy}" if kept.exists() else ""
        _stop(f"interrupted{done}", code=130)
    except (StoppedError, OSError, MemoryError) as error:
        if not kept.exists():
            raise
        raise FeddleError(f"{_explain(error)}; to go on once that is mended: {remedy}") from error


@app.command()
def methods() -> None:
    """List the methods."""
    from feddle.methods.options import AnyMethod

    table = Table("method", "what it does", box=None, pad_edge=False)
    for member in get_args(AnyMethod):
        table.add_row(member.model_fields["name"].default, member.__doc__)
    Console().print(table)


@app.command()
@click.option("--markdown", is_flag=True, help="A reference for people instead.")
def schema(markdown: bool) -> None:
    """Print the JSON Schema of a config file, for editors."""
    from feddle.run.plan import Config
    from feddle.run.reference import reference

    click.echo(reference() if markdown else json.dumps(Config.model_json_schema(), indent=2))


@app.group()
def data() -> None:
    """Get data sets and see which are here."""


@data.command("list")
def list_data() -> None:
    """List the data sets, and which are here."""
    from feddle.data.datasets import DATASETS

    table = Table("name", "images", "train", "test", "classes", "download", "here", box=None, pad_edge=False)
    for source in DATASETS:
        table.add_row(source.name, *source.facts, "yes" if source.is_here() else "no")
    Console().print(table)
    click.echo("Files of your own needed: `feddle data fetch NAME` tells where to get them and where to put them.")


@data.command("fetch")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="Read the official files from this folder.")
@quiet_option
def fetch_data(name: str, folder: Path | None, quiet: bool) -> None:
    """Get the data set NAME into the cache ($FEDDLE_DATA)."""
    from feddle.data.datasets import named

    source = named(name, folder)
    source.read(quiet=quiet)  # checks official files too
    click.echo(source.place)


@app.group()
def weights() -> None:
    """Get pretrained weights and see which are here."""


@weights.command("list")
def list_weights() -> None:
    """List the pretrained weights, and which are here."""
    from feddle.models.weights import WEIGHTS

    table = Table("name", "what they are", "download", "here", box=None, pad_edge=False)
    for source in WEIGHTS:
        table.add_row(source.name, source.title, f"{source.megabytes:g} MB", "yes" if source.is_here() else "no")
    Console().print(table)


@weights.command("fetch")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="Read the official file from this folder.")
@quiet_option
def fetch_weights(name: str, folder: Path | None, quiet: bool) -> None:
    """Get the weights NAME into the cache ($FEDDLE_DATA)."""
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
    """The console command: an error that the user can mend is one line and exit code 2."""
    debug = "--debug" in sys.argv
    try:
        # a group's option must come first on the line; this one may stand anywhere
        app(args=[a for a in sys.argv[1:] if a != "--debug"], standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except BrokenPipeError:  # what read our output has gone: there is nobody left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (FeddleError, click.ClickException, OSError, MemoryError) as error:
        if debug:
            traceback.print_exc()
        _stop(_explain(error))
    except (KeyboardInterrupt, click.Abort):
        _stop("interrupted", code=130)
