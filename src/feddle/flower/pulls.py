"""Replies are fetched one by one, and one that comes slowly holds up nobody."""

from concurrent.futures import Future, ThreadPoolExecutor, wait

from flwr.app import Message
from flwr.serverapp import Grid

_PATIENCE = 2.0  # seconds that a look waits for one reply; after that it is fetched beside the loop
_AT_ONCE = 256  # threads at most; there is one as long as nobody is slow


class Pulls:
    """Asks a grid for the reply to one message at a time: none spoils another, and no two large ones come at once.

    Flower waits in `pull_messages` until all pieces of a reply are there, which takes as long as its node likes. A
    pull that takes long goes on beside the loop, and what it brings is handed out at a later look.
    """

    def __init__(self, grid: Grid, patience: float = _PATIENCE) -> None:
        self.grid = grid
        self.patience = patience
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        self._slow: dict[str, Future[list[Message]]] = {}

    def ask(self, asked: str) -> list[Message]:
        """What has come back to a message by now; raises what the grid raised."""
        pull = self._slow.pop(asked, None)
        if pull is None:
            pull = self._threads.submit(self._pull, asked)
            wait([pull], self.patience)
        if not pull.done():
            self._slow[asked] = pull
            return []
        return pull.result()

    def forget(self, asked: str) -> None:
        """Nobody will ask again."""
        if pull := self._slow.pop(asked, None):
            pull.cancel()

    def _pull(self, asked: str) -> list[Message]:
        return list(self.grid.pull_messages([asked]))
