"""The `feddle` command: run methods, compare them, and show the results."""

import csv
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from feddle.cli.catalogue import data, methods, schema, weights
from feddle.cli.display import error_line, stop
from feddle.cli.federation import federation
from feddle.cli.options import (
    PATH,
    folder_argument,
    folder_name,
    load_options,
    load_run,
    names_in,
    quiet_option,
    seeds_in,
    track_option,
)
from feddle.cli.plan import plan
from feddle.cli.reports import report, report_on
from feddle.cli.reproduce import reproduce
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.launched import count_here, rank_here
from feddle.records import COMPARISON, CONFIG, REPORT
from feddle.run.progress import RunDisplay
from feddle.version import __version__

if TYPE_CHECKING:
    from feddle.run.plan import Config
    from feddle.run.run import Listener
    from feddle.run.trackers import TrackerName

# Importing torch takes a second or two, so commands import what needs torch when they run.


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="feddle", message="feddle %(version)s")
@click.option(
    "--debug", is_flag=True, help="Show the traceback of an error. The option may be anywhere on the command line."
)
@click.pass_context
def app(context: click.Context, debug: bool) -> None:  # noqa: ARG001
    """Asynchronous federated learning on hybrid data.

    Client updates become anchors; the server's own data guides how they are merged.
    """
    if count_here() > 1 and context.invoked_subcommand not in ("run", "resume"):
        found = f"{count_here()} ranks (WORLD_SIZE) and `feddle {context.invoked_subcommand}`"
        raise click.UsageError(f"several ranks share the search of `feddle run` or `feddle resume`, but found {found}")


for command in (data, federation, methods, plan, report, reproduce, schema, weights):
    app.add_command(command)


@app.command()
@load_options
@click.option("--out", type=PATH, help="The run folder. By default a new folder in runs/.")
@track_option
def run(out: Path | None, track: "tuple[TrackerName, ...]", **options: Any) -> None:
    """Run the federation that a YAML file (CONFIG) describes.

    With torchrun, several processes share the search: torchrun --nproc-per-node 4 -m feddle run CONFIG
    """
    from feddle.run.folder import check_free, run_config
    from feddle.run.ranked import all_ranks, follow_config

    with all_ranks() as ranks:
        follows = ranks is not None and ranks.rank > 0
        config, stem = load_run(**{**options, "quiet": options["quiet"] or follows})
        if ranks is not None and follows:
            follow_config(config, ranks)
        out = out or _new_folder(f"{stem}-{folder_name(config.method.name)}-seed{config.seed}")
        check_free(out)
        _run_all({out: config}, out, _tracked(partial(run_config, ranks=ranks), track), quiet=options["quiet"])


def _tracked(run_one: Callable[..., object], track: "tuple[TrackerName, ...]") -> Callable[..., None]:
    """A function that runs a config like `run_one`, and also reports it to other tools."""
    from feddle.run.trackers import tracking

    def run_tracked(config: "Config", folder: Path, listener: "Listener", *, quiet: bool) -> None:
        with tracking(track, folder, config, listener) as tracked:
            run_one(config, folder, tracked, quiet=quiet)

    return run_tracked


@app.command()
@load_options
@click.option(
    "--methods", help="Names or import paths, separated by commas. By default CONFIG's own method, fedbuff and fedavg."
)
@click.option("--seeds", callback=seeds_in, help="Several seeds, such as 0,1,2, instead of one.")
@click.option("--out", type=PATH, help="The folder for the runs. By default a new folder in runs/.")
@track_option
def compare(
    methods: str | None, seeds: list[int], out: Path | None, track: "tuple[TrackerName, ...]", **options: Any
) -> None:
    """Compare several methods on CONFIG, with the same clients, delays and initial weights.

    The method in CONFIG keeps its options; the other methods have their default options. With several seeds, the table
    has means and standard deviations, and the charts have bands.
    """
    if seeds and options["seed"] is not None:
        raise click.UsageError("expected --seed or --seeds, but found both")
    own, stem = load_run(**options)
    names = list(dict.fromkeys([own.method.name, "fedbuff", "fedavg"])) if methods is None else names_in(methods)
    if not names:
        raise FeddleError("--methods: expected at least one method, but found none; `feddle methods` lists them")
    configs = {}
    for name in names:
        other = {**options, "overrides": [*options["overrides"], f"method={name}"], "quiet": True}
        try:
            configs[folder_name(name)] = own if name == own.method.name else load_run(**other)[0]
        except FeddleError as error:
            raise FeddleError(str(error).replace(f"-o method={name}: method", "--methods")) from error
    configs = _with_seeds(configs, seeds)
    out = out or _new_folder(stem)
    from feddle.run.folder import begin_comparison, run_or_resume

    begin_comparison(out, configs, quiet=options["quiet"])
    folders = {out / name: config for name, config in configs.items()}
    _run_all(folders, out, _tracked(run_or_resume, track), quiet=options["quiet"])


def _with_seeds(configs: "dict[str, Config]", seeds: Sequence[int]) -> "dict[str, Config]":
    """The configs with each of the seeds, by name; seed by seed, so that a whole table is complete early."""
    if len(seeds) == 1:
        return {name: config.model_copy(update={"seed": seeds[0]}) for name, config in configs.items()}
    several = [(seed, name, config) for seed in seeds for name, config in configs.items()]
    found = {f"{name}-seed{seed}": config.model_copy(update={"seed": seed}) for seed, name, config in several}
    return found or configs


def _new_folder(name: str) -> Path:
    """A folder in runs/ that does not exist yet."""
    names = (name if i == 1 else f"{name}-{i}" for i in range(1, sys.maxsize))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def _run_all(configs: "Mapping[Path, Config]", out: Path, run_one: Callable[..., object], *, quiet: bool) -> None:
    """Run one config or those of a comparison, each in its folder, one after the other, then report all of them.

    If a run stops, the message says how to continue it, unless it stopped before anything was written.
    """
    from feddle.run.folder import RunFolder

    for source in next(iter(configs.values())).sources():  # all have the same data and model
        source.fetch(quiet=quiet)  # before the display starts, since a download has its own
    several = len({config.seed for config in configs.values()}) > 1
    try:
        with RunDisplay(quiet=quiet) as display:
            for folder, config in configs.items():
                label = folder.name if several else config.method.name
                display.begin(label, config.rounds, RunFolder(folder).saved_rounds())
                run_one(config, folder, display.show, quiet=quiet)
    except (KeyboardInterrupt, StoppedError, OSError, MemoryError) as error:
        if not any((out / kept).exists() for kept in (CONFIG, COMPARISON)):
            raise
        remedy = f"feddle resume {out}"
        if isinstance(error, KeyboardInterrupt):
            stop(f"interrupted; the rounds so far are in {out}; to continue: {remedy}", code=130)
        raise FeddleError(f"{_explain(error)}; to continue once that is fixed: {remedy}") from error
    report_on(list(configs), out / REPORT)


@app.command()
@folder_argument
@quiet_option
def resume(folder: Path, quiet: bool) -> None:
    """Continue the run or comparison in DIR from its last checkpoint.

    A run may be continued with another number of ranks: torchrun --nproc-per-node 2 -m feddle resume DIR
    """
    from feddle.run.folder import RunFolder, comparison, run_or_resume
    from feddle.run.ranked import all_ranks, follow_config

    with all_ranks() as ranks:
        configs = {folder / name: config for name, config in comparison(folder).items()}
        if configs and ranks is not None:
            raise FeddleError(
                f"{folder} holds a comparison, but several ranks can continue only a single run; start one process"
            )
        held = RunFolder(folder)
        configs = configs or {folder: held.config()}
        if ranks is not None and ranks.rank:
            follow_config(configs[folder], ranks)
        killed_at_the_end = held.checkpoint.folder.exists() or not (folder / REPORT).exists()
        if folder in configs and held.is_finished() and not killed_at_the_end:
            click.echo(f"{folder} is finished; there is nothing to resume")
            return
        _run_all(configs, folder, partial(run_or_resume, ranks=ranks), quiet=quiet)


@app.command()
@click.argument("run", type=PATH)
@click.argument("path", type=PATH)
def predict(run: Path, path: Path) -> None:
    """Predict the classes of the images or texts at PATH with the model of RUN, and print them as CSV.

    RUN is a folder of `feddle run`. PATH is an image, a folder of images, a .csv file with a column of paths or texts,
    or an .npz file with an array of images.
    """
    from feddle.run.trained import predict

    found = predict(run, path)
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("image", "class", "probability"))
    rows.writerows((each.image, each.class_name, f"{each.probability:.4f}") for each in found)


@app.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in SHELL.

    To turn it on, add a line to the file that your shell reads when it starts:

    \b
    bash, ~/.bashrc:  eval "$(feddle completion bash)"
    zsh, ~/.zshrc:    autoload -U compinit && compinit && eval "$(feddle completion zsh)"
    fish, ~/.config/fish/config.fish:  feddle completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "feddle", "_FEDDLE_COMPLETE").source())


def _show_whole_lines(group: click.Group) -> None:
    """Show the first sentence of each command in the list of commands; click would cut it off at the margin."""
    for each in group.commands.values():
        each.short_help = each.get_short_help_str(limit=sys.maxsize)
        if isinstance(each, click.Group):
            _show_whole_lines(each)


_show_whole_lines(app)


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
    """Run the command line. An error that the user can fix prints one line and exits with code 2.

    Warnings of libraries are printed after a command that succeeds, and not at all before the line of an error. With
    --debug or Python's own settings (PYTHONWARNINGS, -W), Python prints them at once.
    """
    debug = "--debug" in sys.argv
    with warnings.catch_warnings(record=not (debug or sys.warnoptions)) as caught:
        _run_command(debug)
    for text in dict.fromkeys(f"{each.category.__name__}: {each.message}" for each in caught or ()):
        click.echo(f"feddle: warning: {error_line(text)}", err=True)


def _run_command(debug: bool) -> None:
    try:
        # click accepts the option of a group only before the subcommand; --debug may be anywhere
        app(args=[a for a in sys.argv[1:] if a != "--debug"], prog_name="feddle", standalone_mode=False)
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
        if rank_here() and not isinstance(error, FeddleError):  # rank 0 has the same error
            sys.exit(2)
        stop(_explain(error))
    except (KeyboardInterrupt, click.Abort):
        stop("interrupted", code=130)
