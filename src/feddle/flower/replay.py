"""Replaying a real federation: the same updates in the same order on a new server."""

from collections.abc import Iterable, Mapping
from typing import Any

from feddle.clients.work import Work
from feddle.core.errors import FeddleError
from feddle.core.messages import Job
from feddle.server import Server
from feddle.training.machine import one_thread


def replay(history: Iterable[Mapping[str, Any]], server: Server, work: Work) -> None:
    """Send and merge the jobs of a history in the same order; `work` computes the updates again.

    `server` is a new server with the same start, method and seed. Its final vector is bit-identical to that of the real
    federation.
    """
    with one_thread():  # as in the real federation, for the same order of summation
        for line in history:
            for sent in (Job(*row) for row in line["sent"]):
                if (job := server.dispatch(sent.client)) != sent:
                    raise FeddleError(f"expected job {sent}, got {job}; start with a new server")
            for job in (Job(*row) for row in line["jobs"]):
                if not server.receive(work(job, server.start_of(job))):
                    raise FeddleError(f"the server refused the update of {job}: {dict(server.refused)}; check `work`")
            server.advance()
