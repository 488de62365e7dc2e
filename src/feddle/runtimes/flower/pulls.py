"""Replies are fetched one by one, and one that comes slowly holds up nobody."""

from concurrent.futures import Future, wait
from threading import BoundedSemaphore, Thread

from flwr.app import Message
from flwr.serverapp import Grid

_PATIENCE = 2.0  # seconds that a look waits for one reply; after that it is fetched beside the loop
_AT_ONCE = 256  # threads at most; there is one as long as nobody is slow


class Pulls:
    """Asks a grid for the reply to one message at a time: none spoils another, and no two large ones come at once.

    Flower waits in `pull_messages` until all pieces of a reply are there, which takes as long as its node likes. A
    pull that takes long goes on beside the loop, and what it brings is handed out at a later look. The threads are
    daemons, which an executor's are not: a process that is to end waits for nobody's upload.
    """

    def __init__(self, grid: Grid, patience: float = _PATIENCE, at_once: int = _AT_ONCE) -> None:
        self.grid = grid
        self.patience = patience
        self._free = BoundedSemaphore(at_once)
        self._slow: dict[str, Future[list[Message]]] = {}

    def ask(self, asked: str) -> list[Message]:
        """What has come back to a message by now; raises what the grid raised."""
        pull = self._slow.pop(asked, None)
        if pull is None:
            if not self._free.acquire(blocking=False):
                return []  # asked again at the next look
            pull = Future()
            Thread(target=self._pull, args=(asked, pull), daemon=True).start()
            wait([pull], self.patience)
        if not pull.done():
            self._slow[asked] = pull
            return []
        return pull.result()

    def forget(self, asked: str) -> None:
        """Nobody will ask again; what still comes is thrown away."""
        self._slow.pop(asked, None)

    def _pull(self, asked: str, pull: Future[list[Message]]) -> None:
        try:
            replies = list(self.grid.pull_messages([asked]))
        except BaseException as error:  # raised where it is asked for
            pull.set_exception(error)
        else:
            pull.set_result(replies)
        finally:
            self._free.release()
