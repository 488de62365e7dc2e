"""`feddle federation`: a real federation on Flower."""

import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from feddle.cli.display import FederationDisplay
from feddle.cli.options import PATH, folder_argument, overrides_option, this_command
from feddle.cli.reports import report_on
from feddle.core.errors import FeddleError, StoppedError
from feddle.records import REPORT

if TYPE_CHECKING:
    from feddle.flower.local import LocalFederation

_ASK_EVERY = 5.0  # seconds; each question starts a process of Flower


@click.group()
def federation() -> None:
    """Run a real federation on Flower, on this machine or on several (docs/flower.md)."""


@federation.command()
@click.option("--nodes", type=click.IntRange(1, 1000), default=3, show_default=True, help="Number of SuperNodes.")
@overrides_option
@click.option("--out", type=PATH, default=Path("runs/federation"), show_default=True, help="The run folder.")
@click.option("--app", "app_folder", type=PATH, help="Your own app, from `feddle federation new`.")
@click.option("-q", "--quiet", is_flag=True, help="Show no live view.")
def up(nodes: int, overrides: tuple[str, ...], out: Path, app_folder: Path | None, quiet: bool) -> None:
    """Start a SuperLink, SuperNodes and a run on this machine, with TLS and authentication.

    All processes are stopped at the end. If --out holds a stopped run, it is continued.
    """
    from feddle.flower import require_flower
    from feddle.run.folder import RunFolder
    from feddle.run.load import parse_override

    require_flower()
    from feddle.flower.local import LocalFederation
    from feddle.flower.plan import APP, check_settings
    from feddle.flower.run import check_no_simulation

    check_no_simulation(out)
    if RunFolder(out).is_finished():
        if (out / REPORT).exists():
            raise FeddleError(f"{out} holds a federation that is finished; name another folder with --out")
        report_on([out], out / REPORT)  # it was stopped just before its page was written
        return
    given = dict(map(parse_override, overrides))
    if "out" in given:
        raise FeddleError("-o out: the run folder has its own option; use --out DIR")
    settings = {"clients.count": nodes, "clients.per_round": min(2, nodes), **given, "out": str(out.resolve())}
    check_settings(app_folder or APP, settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with FederationDisplay(out, quiet=quiet, since=time.time()) as display:
        try:
            display.say(f"starting a SuperLink and {nodes} SuperNodes, with TLS and authentication")
            with LocalFederation(out / "flower", nodes, app=app_folder or APP) as local:
                display.say(f"SuperLink at {local.address}; logs in {local.logs}")
                _follow(local, local.start_run(settings), display)
        except KeyboardInterrupt:
            display.say(f"all processes are stopped; to continue: {this_command()}")
            raise
    report_on([out], out / REPORT)


def _follow(local: "LocalFederation", run: int, display: FederationDisplay) -> None:
    """Show a run until it is finished."""
    asked = time.monotonic()
    while not display.is_finished():
        display.show()
        time.sleep(0.5)
        if time.monotonic() - asked < _ASK_EVERY:
            continue
        local.keep_up()
        try:
            status, asked = local.run_status(run), time.monotonic()
            if status.startswith("finished") and not display.is_finished():
                errors = [line for line in local.run_log(run).splitlines() if "Error: " in line]
                words = errors[-1].partition("Error: ")[2] if errors else "see the logs"
                raise FeddleError(f"the ServerApp ended ({status}): {words}")
        except FeddleError as error:
            raise StoppedError(f"{error}; to continue once that is fixed: {this_command()}") from error
    display.show()


@federation.command()
@folder_argument
def watch(folder: Path) -> None:
    """Show the nodes, versions, staleness and accuracy of the federation with the run folder DIR."""
    from feddle.run.load import started_in

    if not folder.is_dir() or started_in(folder) == "run":
        found = "it holds a simulation" if folder.is_dir() else "there is no such folder"
        raise FeddleError(f"{folder}: expected the run folder of a federation, but {found}; check the path")
    with FederationDisplay(folder) as display:
        while not display.is_finished():
            display.show()
            time.sleep(0.5)
        display.show()


@federation.command()
@folder_argument
def new(folder: Path) -> None:
    """Copy the example app to DIR, so that you can edit its model and its data."""
    from feddle.flower.plan import APP

    if folder.exists():
        raise FeddleError(f"{folder} already exists; name a new folder")
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("model", "client_data", "server_data"):
        click.echo(folder / "federation" / f"{name}.py")


@federation.command()
@folder_argument
@click.option("--host", "hosts", multiple=True, required=True, help="Name or address of the server; may be repeated.")
@click.option("--nodes", type=click.IntRange(0, 10_000), default=3, show_default=True, help="Number of key pairs.")
def certificates(folder: Path, hosts: tuple[str, ...], nodes: int) -> None:
    """Make the certificates and keys of a federation in DIR. Existing ones are kept."""
    from feddle.flower import require_flower

    require_flower()
    from feddle.flower.certificates import Certificates

    for path in Certificates(folder).make(hosts, nodes):
        click.echo(path)


@federation.command(context_settings={"ignore_unknown_options": True})
@click.option("--superlink", required=True, metavar="HOST:PORT", help="Address of the SuperLink.")
@click.option("--ca", type=PATH, help="The federation's ca.crt. Without it, TLS is off.")
@click.option("--key", type=PATH, help="The private key of this node.")
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def node(superlink: str, ca: Path | None, key: Path | None, more: tuple[str, ...]) -> None:
    """Run a SuperNode. MORE options, such as --node-config and --port, are passed to flower-supernode."""
    from feddle.flower.node import run_node

    run_node(superlink, root=ca, key=key, more=more)
