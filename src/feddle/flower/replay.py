"""The order in which a real federation's updates arrived, taken through a server once more."""

from collections.abc import Iterable, Mapping
from typing import Any

from feddle.clients.work import Work
from feddle.core.errors import FeddleError
from feddle.core.messages import Job
from feddle.server import Server
from feddle.training.machine import one_thread


def replay(history: Iterable[Mapping[str, Any]], server: Server, work: Work) -> None:
    """Send and merge what a history says was sent and merged, with updates made by `work`.

    The server is a new one with the same start, method and seed; it ends with the vector of the real federation.
    """
    with one_thread():  # as everywhere: sums come in one order
        for line in history:
            _replay_round(line, server, work)


def _replay_round(line: Mapping[str, Any], server: Server, work: Work) -> None:
    for client, number, version in line["sent"]:
        job = server.dispatch(client)
        if job != Job(client, number, version):
            raise FeddleError(f"expected job {Job(client, number, version)}, this server sends {job}; take a new one")
    for row in line["jobs"]:
        job = Job(*row)
        if not server.receive(work(job, server.start_of(job))):
            raise FeddleError(f"the update of {job} is refused here: {dict(server.refused)}")
    server.advance()
