"""`feddle plan`: estimate the cost of a run or a federation before it starts."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from feddle.cli.display import print_table
from feddle.cli.options import load_options, load_run
from feddle.core.errors import FeddleError
from feddle.report.numbers import counted, duration

if TYPE_CHECKING:  # these import torch, which takes a second or two
    from feddle.run.estimate import Time
    from feddle.run.forecast import Forecast

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_LARGEST = 10**12  # parameters


class Whole(click.ParamType):  # type: ignore[type-arg]  # older releases of click take no argument
    """A whole number from 1 up, which may be written as 1e6."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (1 <= number <= _LARGEST and number == int(number)):
            self.fail(f"expected a whole number from 1 to 1e12, such as 500 or 1e6, but found {value!r}", param, ctx)
        return int(number)


WHOLE = Whole()
_KEYS = {  # options that set a key of the config
    "clients": "clients.count",
    "per_round": "clients.per_round",
    "rounds": "rounds",
    "sigma": "delays.sigma",
    "method": "method",
    "atlas_size": "method.atlas_size",
    "server_examples": "data.server.samples",
}


@click.command()
@load_options
@click.option("--params", type=WHOLE, help="Plan on paper, without CONFIG: the number of trainable parameters.")
@click.option("--statistics", type=WHOLE, help="On paper: the number of BatchNorm's running statistics.")
@click.option("--examples", type=WHOLE, help="On paper: the average number of examples of a client.")
@click.option("--clients", type=WHOLE, help="The number of clients, such as 1e6.")
@click.option("--per-round", type=WHOLE, help="The number of clients sampled each round.")
@click.option("--rounds", type=WHOLE, help="The number of rounds.")
@click.option("--sigma", type=float, help="The scale of the delays, in rounds.")
@click.option("--method", help="The method.")
@click.option("--atlas-size", type=WHOLE, help="The largest number of anchors.")
@click.option("--server-examples", type=WHOLE, help="The number of examples at the server.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: bytes and seconds.")
def plan(params: int | None, statistics: int | None, examples: int | None, as_json: bool, **options: Any) -> None:
    """Estimate the cost of a run before it starts: time, memory, bytes sent and checkpoints.

    The data is read, and fetched if necessary, and a few training steps are measured. Nothing is trained and nothing is
    written. With --params instead of CONFIG, a federation is planned on paper, without data or a model.
    """
    began = time.process_time()
    short = {key: options.pop(name) for name, key in _KEYS.items()}
    chosen = [f"{key}={value}" for key, value in short.items() if value is not None]
    options["overrides"] = [*chosen, *options["overrides"]]
    if params is None and (statistics or examples):
        given = "--examples" if examples else "--statistics"
        raise click.UsageError(f"{given} is for a plan on paper; add --params, or leave it out")
    try:
        found = _on_paper(params, statistics, examples, **options) if params else _measured(began, **options)
    except FeddleError as error:
        raise FeddleError(_as_typed(str(error), short)) from error
    if as_json:
        click.echo(json.dumps(_tree(found), indent=2))
    else:
        _print(found)


def _as_typed(text: str, short: Mapping[str, Any]) -> str:
    """The text of an error, with each override replaced by the short option that the user gave."""
    for name, key in _KEYS.items():
        text = text.replace(f"-o {key}={short[key]}: {key}", f"--{name.replace('_', '-')}")
    return text


def _on_paper(
    params: int,
    statistics: int | None,
    examples: int | None,
    config: Path | None,
    data: Path | None,
    overrides: Sequence[str],
    seed: int | None,
    quiet: bool,  # noqa: ARG001
) -> "Forecast":
    if config is not None or data is not None:
        found = f"CONFIG {config}" if config is not None else f"--data {data}"
        raise click.UsageError(f"expected CONFIG, --data or --params, but found --params and {found}; leave one out")
    from feddle.run.estimate import Sizes
    from feddle.run.forecast import forecast_on_paper
    from feddle.run.load import parse_config

    overrides = [*overrides, *([] if seed is None else [f"seed={seed}"])]
    return forecast_on_paper(parse_config({}, overrides), Sizes(params, statistics or 0), examples)


def _measured(began: float, **options: Any) -> "Forecast":
    if options["config"] is None and options["data"] is None:
        raise click.UsageError(
            "expected a CONFIG (a YAML file), --data with your own data, or --params, but found none"
        )
    config, _ = load_run(**options)
    from feddle.run.forecast import forecast

    for source in config.sources():
        source.fetch(quiet=options["quiet"])  # before the status line, since a download has its own
    with _status("reading the data and measuring a few training steps", quiet=options["quiet"]):
        return forecast(config, began, quiet=options["quiet"])


def _status(text: str, *, quiet: bool) -> AbstractContextManager[object]:
    """A line on stderr while something takes long."""
    console = Console(stderr=True, quiet=quiet)
    if console.is_terminal:
        return console.status(text)
    console.print(f"{text} …", highlight=False)
    return nullcontext()


def _tree(found: "Forecast") -> Mapping[str, Any]:
    """The estimate for scripts."""
    tree = asdict(found.estimate)
    if found.estimate.time is not None:
        tree["time"]["cpu"] = found.estimate.time.cpu
    return {
        "method": found.config.method.name,
        "rounds": found.config.rounds,
        "clients": found.held.clients,
        "parameters": found.sizes.parameters,
        "statistics": found.sizes.buffers,
        **tree,
        "remarks": list(found.remarks),
    }


def _print(found: "Forecast") -> None:
    config, network, space = found.config, found.estimate.network, found.estimate.space
    click.echo(
        f"{config.method.name}: {config.rounds:,} rounds with {config.clients.per_round:,} of {found.held.clients:,} "
        f"clients, {found.sizes.parameters:,} trainable parameters"
    )
    rows = [*_time_rows(found.estimate.time)]
    if space.run is not None:
        rows.append(("memory of the run", amount(space.run), "all processes, data and libraries"))
    rows += [
        ("memory of the server", amount(space.server), "models, arrivals and what the method keeps"),
        ("memory of a client", amount(space.client), _client_words(found)),
        ("sent by clients", amount(network.bytes_up), f"{network.updates:,.0f} updates"),
        ("sent to clients", amount(network.bytes_down), f"{found.traffic.dispatched:,.0f} jobs"),
        *_work_rows(found),
        ("jobs in flight", f"{network.in_flight:,.0f}", "at most"),
        ("pinned versions", f"{network.pinned:,.0f}", "models that jobs in flight started from"),
        ("checkpoint on disk", amount(space.checkpoint), _checkpoint_words(found)),
    ]
    if space.cache_file:
        rows.append(("cache on disk", amount(space.cache_file), "clients' last updates, above cache_limit"))
    print_table(("estimate", "", ""), rows)
    for remark in found.remarks:
        click.echo(remark)


def _time_rows(time: "Time | None") -> Iterator[tuple[str, str, str]]:
    if time is not None:
        parts = {"clients": time.clients, "server": time.server, "evaluation": time.evaluation, "start": time.start}
        yield "time", duration(time.wall), "if nothing else runs on this machine"
        yield "CPU time", duration(time.cpu), ", ".join(f"{name} {duration(part)}" for name, part in parts.items())


def _work_rows(found: "Forecast") -> Iterator[tuple[str, str, str]]:
    if found.held.client:
        epochs = found.config.training.epochs
        count = found.traffic.used * found.held.client * epochs
        yield "examples in training", f"{count:,.0f}", f"of clients, with {counted(epochs, 'epoch')} per job"


def _client_words(found: "Forecast") -> str:
    if found.estimate.time is not None:
        return "in training, without data and libraries"
    return f"without activations; {found.config.training.optimizer}, float32"


def _checkpoint_words(found: "Forecast") -> str:
    if not found.estimate.space.checkpoint:
        return "none: " + ("checkpoint.every is 0" if found.config.checkpoint.every == 0 else "the run is too short")
    return "while one checkpoint replaces another"


def amount(count: float) -> str:
    """Bytes in a readable unit, such as 1.5 GB."""
    power = min(int(math.log10(max(count, 1)) // 3), len(_UNITS) - 1)
    value = count / 1000**power
    return f"{value:.3g} {_UNITS[power]}" if value < 999.5 or power == len(_UNITS) - 1 else f"1 {_UNITS[power + 1]}"
