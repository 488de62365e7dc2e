"""`feddle federation`: a real one, on Flower."""

import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from feddle.cli.federation_display import FederationDisplay
from feddle.cli.reports import report_on
from feddle.core.errors import FeddleError, StoppedError

if TYPE_CHECKING:
    from feddle.flower.local import LocalFederation

_ASK_EVERY = 5.0  # seconds; each time starts a process of Flower's


@click.group()
def federation() -> None:
    """A real federation on Flower: see it work here, then on many machines (docs/flower.md)."""


folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@federation.command()
@click.option("--nodes", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many SuperNodes.")
@click.option("-o", "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a key of the run config.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/federation"), show_default=True)
@click.option("--app", "app_folder", type=click.Path(path_type=Path), help="Another app; `feddle federation new`.")
@click.option("-q", "--quiet", is_flag=True, help="No live view.")
def up(nodes: int, overrides: tuple[str, ...], out: Path, app_folder: Path | None, quiet: bool) -> None:
    """Start a SuperLink, SuperNodes and a run on this machine, with TLS and authentication; stop them all at the end.

    A run in --out that was stopped goes on.
    """
    from feddle.flower import require_flower
    from feddle.run.folder import RunFolder

    require_flower()
    from feddle.flower.app_folder import APP, check_settings
    from feddle.flower.local import LocalFederation
    from feddle.flower.run import check_no_simulation

    check_no_simulation(out)
    if RunFolder(out).is_finished():
        if (out / "report.html").exists():
            raise FeddleError(f"{out} holds a federation that is finished; name another folder with --out")
        report_on([out], out / "report.html")  # it was stopped just before its page was written
        return
    settings = {"clients.count": nodes, "clients.per_round": min(2, nodes), **_settings(overrides)}
    settings |= {"out": str(out.resolve())}
    check_settings(app_folder or APP, settings)
    again = _command(nodes, out, app_folder, overrides)
    signal.signal(signal.SIGTERM, _interrupt)
    with FederationDisplay(out, quiet=quiet, since=time.time()) as display:
        try:
            display.say(f"starting a SuperLink and {nodes} SuperNodes, with TLS and authentication")
            with LocalFederation(out / "flower", nodes, app=app_folder or APP) as local:
                display.say(f"SuperLink at {local.address}; logs in {local.logs}")
                _follow(local, local.start_run(settings), display, again)
        except KeyboardInterrupt:
            display.say(f"all of it is stopped; to go on: {again}")
            raise
    report_on([out], out / "report.html")


def _command(nodes: int, out: Path, app_folder: Path | None, overrides: tuple[str, ...]) -> str:
    """What starts the same again; a checkpoint is refused to other settings."""
    app = [] if app_folder is None else ["--app", str(app_folder)]
    settings = [part for override in overrides for part in ("-o", override)]
    return shlex.join(["feddle", "federation", "up", "--nodes", str(nodes), "--out", str(out), *app, *settings])


def _follow(local: "LocalFederation", run: int, display: FederationDisplay, again: str) -> None:
    """Show a run until it is finished."""
    asked = time.monotonic()
    while not display.is_finished():
        display.refresh()
        time.sleep(0.5)
        if time.monotonic() - asked < _ASK_EVERY:
            continue
        local.keep_up()
        try:
            status, asked = local.run_status(run), time.monotonic()
        except FeddleError as error:
            raise StoppedError(f"{error}; to go on once that is mended: {again}") from error
        if status.startswith("finished") and not display.is_finished():
            words = _last_words(local.run_log(run))
            raise StoppedError(f"the ServerApp ended ({status}): {words}; to go on once that is mended: {again}")
    display.refresh()


def _last_words(log: str) -> str:
    errors = [line for line in log.splitlines() if "Error: " in line]
    return errors[-1].partition("Error: ")[2] if errors else "see the logs"


def _settings(overrides: tuple[str, ...]) -> dict[str, Any]:
    from feddle.run.load import parse_override

    settings = dict(map(parse_override, overrides))
    if "out" in settings:
        raise FeddleError("the run folder is named with --out, not with -o out")
    return settings


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


@federation.command()
@folder_argument
def watch(folder: Path) -> None:
    """Watch the federation whose run folder is DIR: nodes, versions, staleness, accuracy."""
    from feddle.run.load import holds_simulation

    if not folder.is_dir():
        raise FeddleError(f"{folder}: expected the run folder of a federation, but there is no such folder")
    if holds_simulation(folder):
        raise FeddleError(f"{folder}: expected the run folder of a federation, but it holds a simulation")
    with FederationDisplay(folder) as display:
        while not display.is_finished():
            display.refresh()
            time.sleep(0.5)
        display.refresh()


@federation.command()
@folder_argument
def new(folder: Path) -> None:
    """Copy the app to DIR, to change its model and its data, a file each."""
    from feddle.flower.app_folder import APP

    if folder.exists():
        raise FeddleError(f"{folder} is there already; name a new folder")
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("model", "client_data", "server_data"):
        click.echo(folder / "federation" / f"{name}.py")


@federation.command()
@folder_argument
@click.option(
    "--host", "hosts", multiple=True, required=True, help="A name or address of the server; several are fine."
)
@click.option("--nodes", type=click.IntRange(0, 10_000), default=3, show_default=True, help="Key pairs in all.")
def certificates(folder: Path, hosts: tuple[str, ...], nodes: int) -> None:
    """Make the certificates and keys of a federation in DIR; what is there is kept."""
    from feddle.flower import require_flower

    require_flower()
    from feddle.flower.certificates import Certificates

    for path in Certificates(folder).make(hosts, nodes):
        click.echo(path)


@federation.command(context_settings={"ignore_unknown_options": True})
@click.option("--superlink", required=True, metavar="HOST:PORT", help="Where the SuperLink is.")
@click.option("--ca", type=click.Path(path_type=Path), help="The federation's ca.crt; without it there is no TLS.")
@click.option("--key", type=click.Path(path_type=Path), help="This node's private key.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def node(superlink: str, ca: Path | None, key: Path | None, more: tuple[str, ...]) -> None:
    """Run a SuperNode; MORE is passed on to flower-supernode (--node-config, --port)."""
    from feddle.flower.node import run_node

    run_node(superlink, root=ca, key=key, more=more)
