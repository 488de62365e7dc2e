"""How many updates a run sends and when, without training: replayed from a config, or expected on paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
import torch

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Job, Merged, Update
from feddle.methods.strategy import max_staleness
from feddle.runtimes.simulation import Delays, Simulation
from feddle.server import Server

_LONGEST = 4000  # rounds; longer delays take too much memory to expect
_EXTREME = 2.0  # standard deviations from the mean number of arrivals in a round to the largest one of a run


@dataclass(frozen=True)
class Traffic:
    """The updates of a run. Expected numbers may be fractions."""

    rounds: int
    dispatched: float  # jobs, each of which sends the model to a client
    returned: float  # updates that clients send back before the run ends
    used: float  # of these, how many the method uses; the others are not trained
    most_used: float  # in one round
    in_flight: float  # jobs at a time, at most
    pinned: float  # versions that jobs in flight started from, at most
    reported: float  # clients whose update was used at least once


def none(rounds: int) -> Traffic:
    """The traffic of a method that uses no updates."""
    return Traffic(rounds, *[0.0] * 7)


@dataclass(frozen=True)
class Scheduled:
    """A job that is trained."""

    client: int
    start: int  # the round in which it is dispatched
    due: int  # the round in which its update arrives


@dataclass(frozen=True)
class Schedule:
    """The traffic of a run, its trained jobs in the order of dispatch, and the versions pinned after each round."""

    traffic: Traffic
    jobs: Sequence[Scheduled]
    pinned: Sequence[frozenset[int]]


@dataclass(frozen=True, eq=False)
class _Unmoved:
    """A method that leaves the model as it is, with the staleness limit of another one."""

    max_staleness: int | None

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:  # noqa: ARG002
        return Merged(model)


@dataclass(frozen=True, eq=False)
class _Untrained:
    """A trainer whose updates are zero."""

    submitted: list[Scheduled] = field(default_factory=list)

    def submit(self, job: Job, start: Weights, due: int) -> None:  # noqa: ARG002
        self.submitted.append(Scheduled(job.client, job.version, due))

    def result(self, job: Job) -> Update:
        return Update(job, torch.zeros(1), torch.zeros(0), 1)


def replayed(simulation: Simulation, rounds: int) -> Schedule:
    """The schedule of a new simulation: the same clients and delays as in the run, with a model of one number."""
    trainer = _Untrained()
    model = Weights(torch.zeros(1), torch.zeros(0))
    server = Server(model, _Unmoved(max_staleness(simulation.server.strategy)))
    copy = replace(simulation, server=server, trainer=trainer)
    dispatched, returned, used = [], [], []
    flights, pins, pinned = [0], [0], []
    for _ in range(rounds):
        before, flying = len(server.state.pinned), len(server.state.in_flight)
        happened = copy.step()
        dispatched.append(happened.dispatched)
        returned.append(happened.returned)
        used.append(len(happened.arrivals))
        flights.append(flying + happened.dispatched)
        pins.append(before + bool(happened.dispatched))
        pinned.append(frozenset(server.state.pinned))
    jobs = [job for job in trainer.submitted if job.due < rounds]
    reported = len({job.client for job in jobs})
    totals = sum(dispatched), sum(returned), sum(used), max(used), max(flights), max(pins), reported
    return Schedule(Traffic(rounds, *totals), jobs, pinned)


def expected(clients: int, per_round: int, rounds: int, delays: Delays, limit: int | None = None) -> Traffic:
    """The mean traffic, by the share of clients with each delay; `limit` is the largest staleness that is used.

    Clients with the same delay are counted, not drawn, so a million of them take no longer than ten. After four times
    the longest delay, every round is like the last one.
    """
    if limit == -1:
        return none(rounds)
    shares = delay_shares(delays.sigma, rounds)
    longest = len(shares) - 1
    ages, in_time = np.arange(longest + 1), slice(None if limit is None else limit + 1)
    sent = np.zeros((longest + 1, longest + 1), dtype=np.float32)  # by round, modulo the longest delay, and by delay
    busy = np.zeros(longest + 1)
    dispatched, returned, used, flights = [], [], [], []
    for now in range(min(rounds, 4 * longest + 10)):
        idle = clients * shares - busy if delays.per == "client" else shares * (clients - busy.sum())
        idle = np.maximum(idle, 0)
        count = min(per_round, idle.sum())
        new = count * idle / max(idle.sum(), 1e-9)
        sent[now % len(sent)] = new
        busy += new
        flights.append(busy.sum())
        due = np.where(ages <= now, sent[(now - ages) % len(sent), ages], 0.0)
        busy = np.maximum(busy - due, 0)
        dispatched.append(count)
        returned.append(due.sum())
        used.append(due[in_time].sum())
    totals = [sum(each) + (rounds - len(each)) * each[-1] for each in (dispatched, returned, used)]
    able = clients * (shares[in_time].sum() if delays.per == "client" else 1.0)  # whose updates can be used
    reported = able * -math.expm1(-totals[2] / able)
    most = max(used) + (_EXTREME * math.sqrt(max(used)) if longest else 0.0)
    late = 1 - np.minimum(np.cumsum(new) / max(new.sum(), 1e-9), 1.0)[: rounds - 1]  # share in flight, by age
    above = _above(rounds / (1 + late.sum()))
    flying = min(max(flights) + above * math.sqrt(count * (late * (1 - late)).sum()), clients)
    return Traffic(rounds, *map(float, (*totals, most, flying, _pinned(late, count, above, rounds), reported)))


def delay_shares(sigma: float, rounds: int) -> np.ndarray:
    """P(⌊|Normal(0, σ)|⌋ = d) for d = 0, 1, …; the last entry has all delays that are longer.

    A delay of `rounds` or more is never seen to end, and one of 5σ is rarer than one in a million.
    """
    longest = min(rounds, math.ceil(5 * sigma))
    if longest > _LONGEST:
        raise FeddleError(
            f"expected delays of at most {_LONGEST} rounds (5σ), but σ is {sigma:g} in {rounds} rounds; lower --sigma"
        )
    below = [math.erf(d / (sigma * math.sqrt(2))) for d in range(1, longest + 1)] if sigma else []
    return np.diff([0.0, *below, 1.0])


def _above(times: float) -> float:
    """How many standard deviations the largest value of a number in a run is above its mean.

    All jobs are replaced `times` times. The number also varies in between, so it is treated as twice as many
    independent values.
    """
    return NormalDist().inv_cdf(2 * times / (2 * times + 1))


def _pinned(late: np.ndarray, count: float, above: float, rounds: int) -> float:
    """The largest number of pinned versions, if a share `late[a]` of a version's jobs is in flight after a rounds.

    A version of `count` jobs is pinned until all have arrived: with probability 1 − (1 − late)^count. The mean number
    of such versions is their sum; the largest one is `above` standard deviations more.
    """
    held = 1 - (1 - late) ** max(count, 1.0)
    return float(min(1 + held.sum() + above * math.sqrt((held * (1 - held)).sum()), rounds))
