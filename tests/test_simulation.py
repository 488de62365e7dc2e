"""The virtual clock: sampling, arrival times, and restored simulations."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.data.partition import even
from feddle.methods.fedavg import FedAvg, FedAvgOptions, Late
from feddle.runtimes.simulation import Delays, Simulation
from feddle.server import Server
from three_numbers import close, weights


class Scripted:
    """A trainer whose clients always add (1, 0, 0), with a log of its calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.starts: dict[Job, Weights] = {}

    def submit(self, job: Job, start: Weights, due: int) -> None:
        self.starts[job] = start
        self.log.append(f"submit {job.client} due {due}")

    def result(self, job: Job) -> Update:
        self.log.append(f"train {job.client} from {self.starts.pop(job).vector[0]:g}")
        return Update(job, torch.tensor([1.0, 0.0, 0.0]), torch.zeros(0), 1)


class FixedDelays(Delays):
    fixed: tuple[int, ...]

    def draw(self, job: Job, seed: int) -> int:  # noqa: ARG002
        return self.fixed[job.client]


def simulation(delays: Sequence[int], *, per_round: int, late: Late = "add_deltas") -> tuple[Simulation, Scripted]:
    trainer = Scripted()
    server = Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late=late)))
    eligible = np.arange(len(delays))
    drawn = FixedDelays(fixed=tuple(delays))
    return Simulation(server, trainer, drawn, eligible=eligible, per_round=per_round, seed=0), trainer


def test_updates_arrive_when_due_and_start_from_the_version_of_their_dispatch() -> None:
    world, trainer = simulation([0, 2], per_round=2)
    staleness = []
    for _ in range(3):
        happened = world.step()
        staleness.append([a.staleness for a in happened.arrivals])
    # client 1 is dispatched in round 0 and arrives in round 2, two versions old; client 0 is back every round
    assert staleness == [[0], [0], [2, 0]]
    assert [line for line in trainer.log if line.startswith("train")] == [
        "train 0 from 0",
        "train 0 from 1",
        "train 1 from 0",
        "train 0 from 2",
    ]
    assert close(world.server.model.vector, 3.0, 0.0, 0.0)  # each round's mean is (1, 0, 0)


def test_a_client_in_flight_is_not_sampled_again() -> None:
    world, trainer = simulation([3, 3, 3], per_round=2)
    dispatched = [world.step().dispatched for _ in range(5)]
    # two, then the one that is left, then none, until the first two are back in round 3 and sampled again in round 4
    assert dispatched == [2, 1, 0, 0, 2]
    assert len(trainer.log) == len(set(trainer.log))


def test_ties_arrive_in_order_of_dispatch() -> None:
    world, trainer = simulation([1, 0, 1], per_round=3)
    world.step()
    world.step()
    submitted = [line.split()[1] for line in trainer.log if line.startswith("submit")][:3]
    trained = [line.split()[1] for line in trainer.log if line.startswith("train")]
    assert trained[1:3] == [c for c in submitted if c != "1"]


def test_updates_to_be_discarded_are_not_trained_but_take_their_time_and_bytes() -> None:
    world, trainer = simulation([0, 1], per_round=2, late="discard")
    first, second, third = world.step(), world.step(), world.step()
    assert (first.dispatched, first.returned, len(first.arrivals)) == (2, 1, 1)
    assert (second.dispatched, second.returned, len(second.arrivals)) == (1, 2, 1)
    assert third.dispatched == 2
    assert not [line for line in trainer.log if " 1 " in line]
    assert not world.server.refused


def test_delays_are_half_normal_in_whole_rounds() -> None:
    delays = np.array([Delays(sigma=20.0).draw(Job(client, 0, 0), seed=0) for client in range(4000)])
    assert delays.min() == 0
    # the mean of ⌊|N(0, 20)|⌋ is about 20·√(2/π) − ½ = 15.5, and P(0) = P(|N| < 1/20) = 0.04
    assert delays.mean() == pytest.approx(15.46, abs=0.6)
    assert (delays == 0).mean() == pytest.approx(0.04, abs=0.012)


def test_delays_per_client_are_constant_and_delays_per_job_vary() -> None:
    by_client, by_job = Delays(sigma=20.0, per="client"), Delays(sigma=20.0, per="job")
    assert len({by_client.draw(Job(5, n, n), 0) for n in range(20)}) == 1
    assert len({by_job.draw(Job(5, n, n), 0) for n in range(20)}) > 5
    assert Delays(sigma=0.0, per="job").draw(Job(5, 0, 0), 0) == 0


def test_a_million_clients_start_within_seconds_and_need_little_state() -> None:
    began = time.process_time()
    partition = even(60_000, clients=1_000_000, seed=0)
    eligible = partition.sizes.nonzero().flatten().numpy()
    server = Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")))
    delays = Delays(sigma=20.0)
    world = Simulation(server, Scripted(), delays, eligible=eligible, per_round=10, seed=0)
    for _ in range(100):
        world.step()
    assert time.process_time() - began < 30  # seconds; it takes about a fifth of that
    # state is kept for jobs in flight and for sampled clients, not for all clients
    assert len(server.in_flight) == len(world.state.queue) < 100 * 10
    assert len(server.state.pinned) <= 100
    assert len(server.state.jobs_of) <= 100 * 10


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 12))
def test_every_job_returns_once_and_only_needed_versions_stay_pinned(
    delays: list[int], per_round: int, rounds: int
) -> None:
    world, _ = simulation(delays, per_round=min(per_round, len(delays)))
    steps = [world.step() for _ in range(rounds)]
    in_flight = len(world.state.queue)
    assert sum(s.dispatched for s in steps) == sum(s.returned for s in steps) + in_flight
    assert len(world.server.in_flight) == in_flight == len({event.client for event in world.state.queue})
    assert set(world.server.state.pinned) == {event.version for event in world.state.queue}
    assert all(s.dispatched <= per_round for s in steps)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_a_restored_simulation_continues(delays: list[int], per_round: int, rounds: int, discard: bool) -> None:
    late: Late = "discard" if discard else "add_deltas"
    (world, log), (restored, again) = (
        simulation(delays, per_round=min(per_round, len(delays)), late=late) for _ in range(2)
    )
    for _ in range(rounds):
        world.step()
    restored.load_state_dict(world.state_dict())
    log.log.clear()
    again.log.clear()
    for _ in range(10):
        one, other = world.step(), restored.step()
        assert (one.dispatched, one.returned) == (other.dispatched, other.returned)
        assert [(a.update.job, a.staleness) for a in one.arrivals] == [
            (a.update.job, a.staleness) for a in other.arrivals
        ]
    assert again.log == log.log, "the same clients from the same models, in the same order"
    assert torch.equal(world.server.model.vector, restored.server.model.vector)
