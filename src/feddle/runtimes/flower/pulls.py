"""Fetching replies one by one; a slow reply does not delay the others."""

from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import BoundedSemaphore, Thread

from flwr.app import Message
from flwr.serverapp import Grid


@dataclass(eq=False)
class Pulls:
    """Asks a grid for the reply to one message at a time, so that a broken or large reply affects no other.

    Flower waits in `pull_messages` until all pieces of a reply have arrived, which takes as long as its node likes. A
    slow pull continues in the background, and a later call returns its result. The threads are daemons, unlike those of
    an executor, so that the process can end without waiting for an upload.
    """

    grid: Grid
    patience: float = 2.0  # seconds that a call waits; after that the reply is fetched in the background
    at_once: int = 256  # largest number of threads; one is enough while no reply is slow

    def __post_init__(self) -> None:
        self._free = BoundedSemaphore(self.at_once)
        self._slow: dict[str, Future[list[Message]]] = {}

    def ask(self, asked: str) -> list[Message]:
        """The replies to a message that have arrived by now; raises what the grid raised."""
        pull = self._slow.pop(asked, None)
        if pull is None:
            if not self._free.acquire(blocking=False):
                return []  # try again at the next check
            pull = Future()
            Thread(target=self._pull, args=(asked, pull), daemon=True).start()
            wait([pull], self.patience)
        if not pull.done():
            self._slow[asked] = pull
            return []
        return pull.result()

    def forget(self, asked: str) -> None:
        """Discard what still arrives for a message, since it will not be requested again."""
        self._slow.pop(asked, None)

    def _pull(self, asked: str, pull: Future[list[Message]]) -> None:
        try:
            pull.set_result(list(self.grid.pull_messages([asked])))
        except BaseException as error:  # raised again in `ask`
            pull.set_exception(error)
        finally:
            self._free.release()
