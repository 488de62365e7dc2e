"""Flower's own commands, and a node: its SuperNode, with a one-line message if it is refused."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import IO

from feddle.core.errors import FeddleError

_NOT_ACTIVATED = b"[code: 2004]"  # Flower's answer to a node that it does not know, or that is already connected
_PATIENCE = 10.0  # seconds


def found(command: str) -> str:
    """The path of a command. The folder in which feddle is installed is searched first."""
    path = shutil.which(command, path=environment()["PATH"])
    if path is None:
        raise FeddleError(f"a real federation needs Flower's {command}; pip install 'feddle[flower]'")
    return path


def environment() -> dict[str, str]:
    """The environment of this process, without telemetry and without installations at run time."""
    own = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # otherwise uv would fetch torch with CUDA
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **own}


def run_node(superlink: str, *, root: Path | None, key: Path | None, more: Sequence[str] = ()) -> None:
    """Run a SuperNode until it ends; without a root certificate and a key there is neither TLS nor authentication."""
    trust = ["--insecure"] if root is None else ["--root-certificates", str(root)]
    known = [] if key is None else ["--auth-supernode-private-key", str(key)]
    if root is not None:
        check_certificate(superlink, root)
    if key is not None and not key.is_file():
        raise FeddleError(f"no key file {key}; `feddle federation certificates` makes them")
    command = [found("flower-supernode"), "--superlink", superlink, *trust, *known, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())  # noqa: S603
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.terminate())
    assert process.stdout is not None
    refused = Event()
    forward = Thread(target=_forward, args=(process.stdout, refused), daemon=True)
    forward.start()
    code = process.wait()
    forward.join(1.0)  # processes that the node started may hold the pipe a little longer
    if refused.is_set():
        raise FeddleError(
            f"the SuperLink at {superlink} refused this node: its key is not registered (`flwr supernode register "
            f"{'' if key is None else key.with_suffix('.pub').name}`), or a node with this key is still counted as "
            "connected; that lasts for about a minute after it was killed, so try again"
        )
    if code:
        raise FeddleError(f"the SuperNode ended with code {code}; its output is above")


def check_certificate(superlink: str, root: Path) -> None:
    """Refuse a SuperLink whose certificate `root` did not sign; if it does not answer, Flower waits for it later."""
    address, _, port = superlink.rpartition(":")
    host = address.strip("[]")  # of an IPv6 address
    try:
        context = ssl.create_default_context(cafile=root)
    except (OSError, ssl.SSLError) as error:
        raise FeddleError(f"{root} is not a readable certificate: {error}; use the federation's ca.crt") from error
    try:
        with socket.create_connection((host, int(port)), _PATIENCE) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        raise FeddleError(
            f"the certificate of the SuperLink at {superlink} does not match {root}: {error.verify_message}; "
            "use the federation's own ca.crt, and an address that its server certificate contains"
        ) from error
    except ssl.SSLError as error:
        raise FeddleError(f"the SuperLink at {superlink} does not use TLS: {error.reason}") from error
    except ValueError as error:
        raise FeddleError(f"expected the SuperLink's address as host:port, got {superlink!r}") from error
    except OSError:
        return  # there is no answer yet


def _forward(stream: IO[bytes], refused: Event) -> None:
    """Print the output of a process until it ends; set `refused` if the SuperLink refuses the node."""
    for line in stream:
        if _NOT_ACTIVATED in line:
            refused.set()
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
