"""The server core: versions, pins, checks."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Merged, Update
from feddle.methods.fedavg import FedAvg, FedAvgOptions
from feddle.methods.fedbuff import FedBuff, FedBuffOptions
from feddle.server import Server
from three_numbers import close, state, weights


def update(job: Job, *delta: float, examples: int = 1) -> Update:
    return Update(job, torch.tensor(delta), torch.zeros(0), examples)


def server() -> Server:
    return Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")))


def test_staleness_counts_versions_and_start_is_the_model_that_the_client_received() -> None:
    core = server()
    early = core.dispatch(1)
    core.receive(update(core.dispatch(2), 1.0, 0.0, 0.0))
    core.advance()
    core.advance()
    core.receive(update(early, 0.0, 1.0, 0.0))
    [arrival], _ = core.advance()
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
    assert list(core.state.pinned) == [0]
    core.forget(second)
    assert not core.state.pinned


def test_jobs_of_a_client_are_numbered() -> None:
    core = server()
    assert [core.dispatch(4).number, core.dispatch(5).number, core.dispatch(4).number] == [0, 0, 1]


def bad(job: Job, **fields: Any) -> Update:
    """An update of (1, 0, 0) with some fields replaced by whatever a client may send."""
    return replace(update(job, 1.0, 0.0, 0.0), **fields)


NAN, INF = float("nan"), float("inf")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"delta": torch.zeros(2)}, "wrong length"),
    ({"delta": torch.zeros(1, 3)}, "wrong length"),
    ({"buffers": torch.zeros(1)}, "wrong length"),
    ({"delta": torch.tensor([1.0, NAN, 0.0])}, "not a number"),
    ({"delta": torch.tensor([INF, NAN, 0.0])}, "not a number"),
    ({"delta": torch.tensor([1.0, -INF, 0.0])}, "infinite"),
    ({"delta": torch.tensor([1e30, 0.0, 0.0])}, "too long"),  # its norm overflows
    ({"delta": [1.0, 0.0, 0.0]}, "wrong type"),
    ({"delta": None}, "wrong type"),
    ({"delta": torch.zeros(3, dtype=torch.float64)}, "wrong type"),
    ({"delta": torch.zeros(3, dtype=torch.int32)}, "wrong type"),
    ({"delta": torch.zeros(3).to_sparse()}, "wrong type"),
    ({"delta": torch.zeros(3, device="meta")}, "wrong type"),
    ({"delta": torch.zeros(3, requires_grad=True)}, "wrong type"),
    ({"digest": "another"}, "wrong layout"),
    ({"digest": None}, "wrong layout"),
    *(
        ({"num_examples": n}, "bad example count")
        for n in (0, -3, True, 1.0, NAN, "7", None, 10**12 + 1, 10**400, [1], torch.tensor(1))
    ),
    ({"metrics": {"loss": NAN}}, "bad metrics"),
    ({"metrics": {"loss": "low"}}, "bad metrics"),
    ({"metrics": {"loss": 10**400}}, "bad metrics"),
    ({"metrics": [1.0]}, "bad metrics"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD, ids=[f"{r}-{i}" for i, (_, r) in enumerate(BAD)])
def test_a_bad_update_is_refused_counted_and_changes_nothing(fields: dict[str, Any], reason: str) -> None:
    core = server()
    job = core.dispatch(1)
    before = state(core)
    assert not core.receive(bad(job, **fields))
    assert core.refused == {reason: 1}
    assert state(core) == before
    assert core.receive(update(job, 1.0, 0.0, 0.0)), "the job's own update may still arrive"


def test_running_statistics_are_checked_too() -> None:
    core = Server(weights(0.0, 0.0, 0.0, buffers=[1.0]), FedAvg(FedAvgOptions(late="add_deltas")))
    job = core.dispatch(1)
    for value, reason in ((NAN, "not a number"), (INF, "infinite")):
        assert not core.receive(bad(job, buffers=torch.tensor([value])))
        assert core.refused[reason] == 1
    assert core.receive(bad(job, buffers=torch.tensor([2.0])))


def test_an_update_must_name_the_layout_of_the_server() -> None:
    core = Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")), digest="ours")
    job = core.dispatch(1)
    assert not core.receive(bad(job))
    assert not core.receive(bad(job, digest="theirs"))
    assert core.refused == {"wrong layout": 2}
    assert core.receive(bad(job, digest="ours"))


def test_jobs_that_are_not_in_flight_are_refused_with_their_reasons() -> None:
    core = server()
    first, second, gone = core.dispatch(1), core.dispatch(2), core.dispatch(3)
    core.forget(gone)
    assert core.receive(update(first, 1.0, 0.0, 0.0))
    before = state(core)
    cases: list[tuple[Any, str]] = [
        (first, "duplicate"),
        (gone, "not in flight"),
        (Job(9, 0, 0), "never sent"),  # no such client
        (Job(2, 1, 0), "never sent"),  # its second job
        (Job(2, -1, 0), "never sent"),
        (Job(2, 0, 5), "wrong version"),
        (Job(2, 0, -1), "wrong version"),
        (Job(2, 0, False), "never sent"),  # False is 0 for Python
        (Job(2.0, 0, 0), "never sent"),  # type: ignore[arg-type]
        (Job([2], 0, 0), "never sent"),  # type: ignore[arg-type]
        (None, "never sent"),
    ]
    for job, reason in cases:
        counted = core.refused[reason]
        assert not core.receive(bad(job))
        assert core.refused[reason] == counted + 1
        assert state(core) == before
    assert core.receive(update(second, 1.0, 0.0, 0.0))
    assert len(core.advance()) == 2


def test_a_norm_is_bounded_by_the_highest_median_so_far() -> None:
    core = Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")), max_norm_ratio=5.0)
    assert core.receive(update(core.dispatch(0), 1000.0, 0.0, 0.0)), "too few to compare with"
    for i in range(19):
        assert core.receive(update(core.dispatch(1), 1.0 if i % 2 else 3.0, 0.0, 0.0))
    # norms: 1000, ten of 3, nine of 1: the median is 3, the bound 15
    job = core.dispatch(2)
    assert not core.receive(update(job, 0.0, 15.5, 0.0))
    assert core.refused == {"too long": 1}
    assert core.receive(update(job, 0.0, 14.5, 0.0))
    for _ in range(100):
        assert core.receive(update(core.dispatch(3), 0.0, 0.0, 10.0)), "the median follows"
    assert core.receive(update(core.dispatch(3), 0.0, 0.0, 49.0))
    assert len(core.state.norms) == 100
    free = Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")))
    for _ in range(50):
        free.receive(update(free.dispatch(1), 1.0, 0.0, 0.0))
    assert free.receive(update(free.dispatch(1), 1e9, 0.0, 0.0))


def test_the_bound_does_not_shrink_when_most_clients_have_nothing_left_to_learn() -> None:
    core = Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")), max_norm_ratio=100.0)
    for norm in [1.0] * 20 + [1e-9] * 100:
        assert core.receive(update(core.dispatch(0), norm, 0.0, 0.0))
    late = core.dispatch(1)
    assert not core.receive(update(late, 101.0, 0.0, 0.0)), "the highest median was 1"
    assert core.receive(update(late, 0.017, 0.0, 0.0)), "10⁷ times the last median"


def test_an_update_up_to_the_norm_of_the_model_is_not_too_long() -> None:
    core = Server(weights(3.0, 4.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")), max_norm_ratio=100.0)
    for _ in range(20):  # clients with one example each
        assert core.receive(update(core.dispatch(0), 1e-6, 0.0, 0.0))
    job = core.dispatch(1)
    assert not core.receive(update(job, 0.0, 5.1, 0.0)), "a hundred times a hundredth of the model's norm 5"
    assert core.receive(update(job, 0.0, 4.9, 0.0))


def test_a_model_that_starts_at_zero_sets_no_limit() -> None:
    core = Server(weights(0.0, 0.0, 0.0), FedBuff(FedBuffOptions(buffer_size=1, lr=0.01)), max_norm_ratio=100.0)
    for _ in range(40):  # after the first step the model's norm is 0.01, a hundredth of every update's
        assert core.receive(update(core.dispatch(0), 1.0, 0.0, 0.0))
        core.advance()
    assert not core.refused


def test_attackers_cannot_raise_the_limit_through_the_model() -> None:
    core = Server(weights(3.0, 4.0, 0.0), FedBuff(FedBuffOptions(buffer_size=1)), max_norm_ratio=100.0)
    for step in range(200):  # one client in ten sends as much as it may
        job = core.dispatch(step % 10)
        core.receive(update(job, 499.0 if step % 10 == 0 and step < 20 else 0.1, 0.0, 0.0))
        core.advance()
    late = core.dispatch(0)
    assert not core.receive(update(late, 11.0, 0.0, 0.0)), "the median was 0.1, whatever the norm of the model"


def test_until_enough_norms_are_known_the_norm_of_the_model_replaces_their_median() -> None:
    core = Server(
        weights(3.0, 4.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")), max_norm_ratio=10.0
    )  # norm 5: at most 50
    job = core.dispatch(0)
    assert not core.receive(update(job, 0.0, 50.5, 0.0))
    assert core.refused == {"too long": 1}
    assert core.receive(update(job, 0.0, 49.5, 0.0))


def test_values_that_are_not_updates_are_refused() -> None:
    core = server()
    job = core.dispatch(0)
    before = state(core)
    digests: list[Any] = [np.array(["", "b"]), np.array([""]), None, b""]
    things: list[Any] = [None, "update", {"job": job}, *(replace(update(job, 1.0, 0, 0), digest=d) for d in digests)]
    assert not any(core.receive(thing) for thing in things)
    assert core.refused == {"wrong type": 3, "wrong layout": 4}
    assert state(core) == before


def test_a_sender_cannot_change_what_was_checked() -> None:
    core = server()
    sent = update(core.dispatch(0), 1.0, 2.0, 3.0)
    assert core.receive(sent)
    sent.delta.fill_(math.nan)
    core.advance()
    assert core.model.vector.isfinite().all()


def test_a_sender_cannot_change_the_metrics_either() -> None:
    core = server()
    metrics = {"loss": 1.0}
    assert core.receive(replace(update(core.dispatch(0), 1.0, 2.0, 3.0), metrics=metrics))
    metrics["loss"] = math.nan
    [arrival], _ = core.advance()
    assert arrival.update.metrics == {"loss": 1.0}


def test_a_zero_update_counts_with_its_examples() -> None:
    core = server()
    assert core.receive(update(core.dispatch(1), 0.0, 0.0, 0.0, examples=3))
    assert core.receive(update(core.dispatch(2), 1.0, 0.0, 0.0, examples=1))
    assert core.zero_updates == 1
    core.advance()
    assert close(core.model.vector, 0.25, 0.0, 0.0)  # ¾·0 + ¼·1, as in FedAvg.merge


def test_a_refused_update_is_in_the_notes_of_its_round() -> None:
    core = server()
    job = core.dispatch(4)
    core.receive(bad(job, delta=torch.tensor([NAN, 0.0, 0.0])))
    core.receive(bad(None))  # type: ignore[arg-type]
    core.receive(update(job, 1.0, 0.0, 0.0))
    refused = [{"client": 4, "reason": "not a number"}, {"client": None, "reason": "never sent"}]
    assert core.advance()[1] == {"refused": refused}
    assert core.advance()[1] == {}
    for _ in range(1500):
        core.receive(bad(job))
    assert len(core.advance()[1]["refused"]) == 1000, "a flood does not fill the disk"
    assert core.refused["duplicate"] == 1500


def test_a_restored_server_checks_updates_like_the_first() -> None:
    first, second = (
        Server(weights(0.0, 0.0, 0.0), FedAvg(FedAvgOptions(late="add_deltas")), max_norm_ratio=5.0) for _ in range(2)
    )
    early = first.dispatch(7)
    for i in range(120):  # more than are remembered
        last = first.dispatch(1)
        assert first.receive(update(last, 0.1 if i % 2 else 0.3, 0.0, 0.0))
    assert not first.receive(update(last, 0.1, 0.0, 0.0))
    first.advance()
    second.load_state_dict(first.state_dict())
    assert state(second) == state(first)
    assert second.refused == first.refused == {"duplicate": 1}
    assert max(second.state.jobs_of.values()) == 120, "ε is computed from this"
    for core in (first, second):
        assert not core.receive(update(last, 0.1, 0.0, 0.0))
        assert not core.receive(update(early, 1.6, 0.0, 0.0))  # the highest median was 0.3, the bound is 1.5
        assert core.refused == {"duplicate": 2, "too long": 1}
        assert core.receive(update(early, 1.4, 0.0, 0.0))
        assert core.dispatch(1).number == 120
    assert state(second) == state(first)


def test_a_restored_server_continues_identically() -> None:
    core = server()
    faulty, zero, slow = core.dispatch(1), core.dispatch(2), core.dispatch(3)
    core.receive(update(faulty, float("nan"), 0.0, 0.0))
    core.forget(faulty)
    core.receive(update(zero, 0.0, 0.0, 0.0))
    core.receive(update(core.dispatch(4), 1.0, 0.0, 0.0))
    core.advance()
    late = core.dispatch(1)
    restored = server()
    restored.load_state_dict(core.state_dict())
    for one in (core, restored):
        assert (one.version, one.refused, one.zero_updates) == (1, {"not a number": 1}, 1)
        assert not one.receive(update(faulty, 1.0, 0.0, 0.0)), "it is no longer in flight"
        assert one.dispatch(1).number == 2
        assert close(one.start_of(slow).vector, 0.0, 0.0, 0.0)
        assert close(one.start_of(late).vector, 0.5, 0.0, 0.0)  # half of 1, since the zero update counts
        assert one.receive(update(slow, 0.0, 4.0, 0.0))
        assert sorted(one.state.pinned) == [1], "version 0 is freed with its last job"
        [arrival], _ = one.advance()
        assert arrival.staleness == 1
        assert close(one.model.vector, 0.5, 4.0, 0.0)


MERGES: dict[str, tuple[Any, str]] = {
    "no Merged": (weights(0.0, 0.0, 0.0), r"expected feddle\.Merged\(weights, notes\), got Weights"),
    "nothing": (None, r"expected feddle\.Merged\(weights, notes\), got NoneType"),
    "no weights": (Merged(torch.zeros(3)), r"expected feddle\.Weights\(vector, buffers\) in .*, got Tensor"),  # type: ignore[arg-type]
    "no notes": (Merged(weights(0.0, 0.0, 0.0), 3), "expected a mapping as the notes .*, got int"),  # type: ignore[arg-type]
    "too short": (Merged(weights(0.0, 0.0)), r"weights\.vector to be a .* of shape \(3,\).*, got a .* of shape \(2,\)"),
    "other type": (Merged(Weights(torch.zeros(3).double(), torch.zeros(0))), r"got a torch\.float64 tensor"),
    "statistics": (Merged(weights(0.0, 0.0, 0.0, buffers=[1.0])), r"weights\.buffers to be .*\(0,\).*, got .*\(1,\)"),
    "not finite": (Merged(weights(0.0, math.nan, 0.0)), r"weights\.vector holds numbers that are not finite; lower"),
}


@pytest.mark.parametrize("case", MERGES)
def test_the_return_value_of_a_strategy_is_checked_and_the_error_names_the_strategy(case: str) -> None:
    returned, message = MERGES[case]

    class Wrong:
        def merge(self, model: Weights, arrivals: Any, round: int) -> Any:  # noqa: ARG002
            return returned

    core = Server(weights(0.0, 0.0, 0.0), Wrong())
    with pytest.raises(FeddleError, match=rf"^Wrong\.merge, round 1: .*{message}"):
        core.advance()
    assert core.version == 0


def test_running_statistics_that_a_strategy_does_not_change_are_averaged() -> None:
    class Latest:
        def merge(self, model: Weights, arrivals: Any, round: int) -> Merged:  # noqa: ARG002
            return Merged(Weights(model.vector + 1, model.buffers if keep is None else keep))

    keep: torch.Tensor | None = None
    core = Server(weights(0.0, 0.0, 0.0, buffers=[0.0]), Latest())
    for value, examples in ((1.0, 1), (5.0, 3)):
        core.receive(replace(update(core.dispatch(0), 1.0, 0.0, 0.0, examples=examples), buffers=torch.tensor([value])))
    core.advance()
    assert core.model.buffers.tolist() == [4.0]  # ¼·1 + ¾·5
    core.advance()
    assert core.model.buffers.tolist() == [4.0], "no update arrived"
    keep = torch.tensor([7.0])
    core.receive(replace(update(core.dispatch(0), 1.0, 0.0, 0.0), buffers=torch.tensor([2.0])))
    core.advance()
    assert core.model.buffers.tolist() == [7.0], "a strategy may compute its own"


def test_the_deployed_model_is_a_moving_average() -> None:
    # versions 4 and 10: the average starts at 4. With decay ½, version 2 has the decay 2/12: 4 + (1 − 1/6)·6 = 9. With
    # decay 0.1 it is 4 + 0.9·6 = 9.4. Clients start from the last version.
    for decay, expected in ((0.5, 9.0), (0.1, 9.4), (0.0, 10.0)):
        core = Server(weights(0.0), FedAvg(FedAvgOptions(late="add_deltas")), averaging=decay)
        for delta in (4.0, 6.0):
            core.receive(update(core.dispatch(0), delta))
            core.advance()
        assert core.model.vector.item() == 10.0
        assert core.deployed.vector.item() == pytest.approx(expected)
        again = Server(weights(0.0), FedAvg(FedAvgOptions(late="add_deltas")), averaging=decay)
        again.load_state_dict(core.state_dict())
        assert torch.equal(again.deployed.vector, core.deployed.vector)
