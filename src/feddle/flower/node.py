"""A node: Flower's SuperNode, with what it is refused for in one line."""

import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import IO, Any

from feddle.core.errors import FeddleError
from feddle.flower.commands import environment, found

_NOT_ACTIVATED = b"[code: 2004]"  # what Flower says to a node that it does not know, or that is there already
_PATIENCE = 10.0  # seconds


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
    said = _Forward(process.stdout)
    code = process.wait()
    said.join(1.0)  # what the node started may hold the pipe a little longer
    if said.refused:
        raise FeddleError(
            f"the SuperLink at {superlink} refused this node: its key is not registered (`flwr supernode register "
            f"{'' if key is None else key.with_suffix('.pub').name}`), or a node with this key was connected until "
            "a moment ago; that is forgotten about a minute after it was killed, so try again"
        )
    if code:
        raise FeddleError(f"the SuperNode ended with code {code}; what it said is above")


def check_certificate(superlink: str, root: Path) -> None:
    """Refuse a SuperLink whose certificate is not signed by `root`; one that is not there yet is left to Flower."""
    host, _, port = superlink.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=root)
    except (OSError, ssl.SSLError) as error:
        raise FeddleError(f"{root} is no certificate that can be read: {error}") from error
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise FeddleError(
            f"the certificate of the SuperLink at {superlink} does not fit {root}: {error.verify_message}; "
            "take the federation's own ca.crt, and an address that its server certificate names"
        ) from error
    except ssl.SSLError as error:
        raise FeddleError(f"the SuperLink at {superlink} does not speak TLS: {error.reason}") from error
    except ValueError as error:
        raise FeddleError(f"expected the SuperLink's address as host:port, got {superlink!r}") from error
    except OSError:
        return


class _Forward(Thread):
    """Passes on what a process says, and notes if it was refused."""

    def __init__(self, stream: IO[Any]) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.refused = False
        self.start()

    def run(self) -> None:
        """Until the process and all that it started have ended."""
        for line in self.stream:
            self.refused |= _NOT_ACTIVATED in line
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
