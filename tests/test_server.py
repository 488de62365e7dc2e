"""The server core: versions, pins, checks."""

import pytest
import torch

from feddle.core.messages import Job, Update
from feddle.server import Server
from feddle.strategies.fedavg import FedAvg
from three_numbers import close, weights


def update(job: Job, *delta: float, examples: int = 1) -> Update:
    return Update(job, torch.tensor(delta), torch.zeros(0), examples)


def server() -> Server:
    return Server(weights(0.0, 0.0, 0.0), FedAvg("add_deltas"))


def test_staleness_is_a_difference_of_versions_and_start_is_what_the_client_began_from() -> None:
    core = server()
    early = core.dispatch(1)
    core.receive(update(core.dispatch(2), 1.0, 0.0, 0.0))
    core.advance()
    core.advance()
    core.receive(update(early, 0.0, 1.0, 0.0))
    [arrival] = core.advance()
    assert arrival.staleness == 2
    assert close(arrival.start.vector, 0.0, 0.0, 0.0)
    assert close(core.model.vector, 1.0, 1.0, 0.0)
    assert core.version == 3


def test_versions_are_shared_and_freed_with_their_last_job() -> None:
    core = server()
    first, second = core.dispatch(1), core.dispatch(2)
    assert core.start_of(first) is core.start_of(second)
    core.receive(update(first, 1.0, 0.0, 0.0))
    core.advance()
    assert list(core._pinned) == [0]
    core.forget(second)
    assert not core._pinned


def test_jobs_of_a_client_are_numbered() -> None:
    core = server()
    assert [core.dispatch(4).number, core.dispatch(5).number, core.dispatch(4).number] == [0, 0, 1]


@pytest.mark.parametrize(
    ("delta", "examples", "reason"),
    [
        ((1.0, 2.0), 1, "wrong length"),
        ((1.0, float("nan"), 0.0), 1, "not finite"),
        ((1.0, float("inf"), 0.0), 1, "not finite"),
        ((1e30, 0.0, 0.0), 1, "not finite"),  # its norm overflows
        ((1.0, 0.0, 0.0), 0, "no examples"),
        ((1.0, 0.0, 0.0), -3, "no examples"),
    ],
)
def test_a_bad_update_is_refused_counted_and_changes_nothing(
    delta: tuple[float, ...], examples: int, reason: str
) -> None:
    core = server()
    assert not core.receive(update(core.dispatch(1), *delta, examples=examples))
    assert not core.advance()
    assert core.refused == {reason: 1}
    assert close(core.model.vector, 0.0, 0.0, 0.0)


def test_a_job_that_is_not_in_flight_is_refused() -> None:
    core = server()
    job = core.dispatch(1)
    assert core.receive(update(job, 1.0, 0.0, 0.0))
    assert not core.receive(update(job, 1.0, 0.0, 0.0)), "a duplicate"
    assert not core.receive(update(Job(9, 0, 5), 1.0, 0.0, 0.0)), "never sent"
    assert core.refused == {"not in flight": 2}
    assert len(core.advance()) == 1


def test_a_zero_update_is_counted() -> None:
    core = server()
    assert core.receive(update(core.dispatch(1), 0.0, 0.0, 0.0))
    assert core.zero_updates == 1
    assert not core.advance(), "it says nothing, so no strategy sees it"


def test_a_restored_server_goes_on_the_same() -> None:
    core = server()
    bad, zero, slow = core.dispatch(1), core.dispatch(2), core.dispatch(3)
    core.receive(update(bad, float("nan"), 0.0, 0.0))
    core.receive(update(zero, 0.0, 0.0, 0.0))
    core.receive(update(core.dispatch(4), 1.0, 0.0, 0.0))
    core.advance()
    late = core.dispatch(1)
    restored = server()
    restored.load_state_dict(core.state_dict())
    for one in (core, restored):
        assert (one.version, one.refused, one.zero_updates) == (1, {"not finite": 1}, 1)
        assert not one.receive(update(bad, 1.0, 0.0, 0.0)), "it is no longer in flight"
        assert one.dispatch(1).number == 2
        assert close(one.start_of(slow).vector, 0.0, 0.0, 0.0)
        assert close(one.start_of(late).vector, 1.0, 0.0, 0.0)
        assert one.receive(update(slow, 0.0, 4.0, 0.0))
        assert sorted(one._pinned) == [1], "version 0 is freed with its last job"
        [arrival] = one.advance()
        assert arrival.staleness == 1
        assert close(one.model.vector, 1.0, 4.0, 0.0)
