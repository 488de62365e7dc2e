"""The wall time of a run, from the time of its parts: workers train ahead of time while the server merges."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from feddle.run.traffic import Scheduled


@dataclass(frozen=True)
class Walked:
    """The seconds of all rounds, and the largest number of finished updates that wait for their arrival."""

    seconds: float
    waiting: int


def walk(
    jobs: Sequence[Scheduled], work: Sequence[float], server: Sequence[float], *, workers: int, cores: int, ahead: int
) -> Walked:
    """Simulate the rounds: `work` is the time of each job and `server` that of each round at the server.

    Workers train in the order in which jobs are due, also while the server merges, and then have one core less. At most
    `ahead` finished updates wait. The jobs that a round requires are shared evenly by the workers. Without workers, a
    job is trained when its update arrives.
    """
    if not workers:
        return Walked(sum(work) + sum(server), 0)
    together, beside = min(workers, cores), min(workers, cores - 1)
    starting: dict[int, list[tuple[int, int]]] = {}
    for number, job in enumerate(jobs):
        starting.setdefault(job.start, []).append((job.due, number))
    left, seconds, most = list(work), 0.0, 0
    pending: list[tuple[int, int]] = []  # by due: not finished
    done: list[tuple[int, int]] = []  # by due: finished, but not arrived
    for now, merging in enumerate(server):
        for entry in starting.get(now, ()):
            heappush(pending, entry)
        needed = 0.0
        while pending and pending[0][0] <= now:
            needed += left[heappop(pending)[1]]
        seconds += needed / together + merging
        done = [entry for entry in done if entry[0] > now]
        room = merging * beside
        while pending and room > 0 and len(done) < ahead:
            number = pending[0][1]
            taken = min(room, left[number])
            room, left[number] = room - taken, left[number] - taken
            if left[number] <= 0:
                done.append(heappop(pending))
        most = max(most, len(done))
    return Walked(seconds, most)
