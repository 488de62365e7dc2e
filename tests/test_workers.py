"""Worker processes: bit-identical results, whatever happens to them."""

import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import feddle
import needs
from feddle.clients.work import Work
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.runtimes.workers import WorkerPool
from three_numbers import weights
from waiting import LIMIT, patient, wait_until

pytestmark = [needs.linux, patient]
START = weights(1.0, 2.0, 3.0, buffers=[4.0])


def double(job: Job, start: Weights) -> Update:
    return Update(job, start.vector * 2 + job.client, start.buffers + 1, 10 + job.client, {"loss": 0.5}, "layout")


def pool(work: Work, workers: int = 2, *, horizon: int = 100, ahead: int = 100) -> WorkerPool:
    return WorkerPool(work, START, workers, horizon=horizon, ahead=ahead)


def logged(path: Path, job: Job) -> None:
    with path.open("a") as file:
        file.write(f"{job.client}\n")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_are_complete_in_any_order(workers: int) -> None:
    jobs = [Job(client, 0, 0) for client in range(7)]
    with pool(double, workers) as trainer:
        for i, job in enumerate(jobs):
            trainer.submit(job, START, due=i)
        for job in reversed(jobs):
            update = trainer.result(job)
            expected = double(job, START)
            assert torch.equal(update.delta, expected.delta)
            assert torch.equal(update.buffers, expected.buffers)
            assert (update.job, update.num_examples, update.metrics) == (job, 10 + job.client, {"loss": 0.5})
            assert update.digest == "layout"
    assert not multiprocessing.active_children()


def test_jobs_may_be_submitted_before_there_are_workers() -> None:
    trainer = pool(double)
    trainer.submit(Job(1, 0, 0), START, due=0)
    assert not multiprocessing.active_children(), "a run that is never started leaves no process"
    with trainer:
        assert torch.equal(trainer.result(Job(1, 0, 0)).delta, double(Job(1, 0, 0), START).delta)


def test_workers_have_a_lower_priority_than_the_server() -> None:
    def work(job: Job, start: Weights) -> Update:
        return Update(job, start.vector, start.buffers, os.getpriority(os.PRIO_PROCESS, 0) + 100, {}, "layout")

    with pool(work, workers=1) as trainer:
        trainer.submit(Job(0, 0, 0), START, due=0)
        nice = trainer.result(Job(0, 0, 0)).num_examples - 100
    assert nice == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)


def test_jobs_are_trained_in_order_of_arrival_time(tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    def work(job: Job, start: Weights) -> Update:
        logged(log, job)
        wait_until(gate.exists, "the gate")
        return double(job, start)

    with pool(work, workers=1) as trainer:
        trainer.submit(Job(0, 0, 0), START, due=9)
        wait_until(log.exists, "a job", log)
        for client, due in [(1, 5), (2, 3), (3, 5), (4, 4)]:
            trainer.submit(Job(client, 0, 0), START, due)
        gate.touch()
        wait_until(lambda: len(log.read_text().split()) == 5, "five jobs", log)
    # client 0 was the only job at first; the others are ordered by time, ties in order of dispatch
    assert log.read_text().split() == ["0", "2", "4", "1", "3"]


def test_jobs_due_after_the_last_round_are_not_trained(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work(job: Job, start: Weights) -> Update:
        logged(log, job)
        return double(job, start)

    with pool(work, horizon=5) as trainer:
        trainer.submit(Job(0, 0, 0), START, due=5)
        trainer.submit(Job(1, 0, 0), START, due=4)
        trainer.result(Job(1, 0, 0))
        time.sleep(0.2)
    assert log.read_text().split() == ["1"]


def test_the_number_of_waiting_updates_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work(job: Job, start: Weights) -> Update:
        logged(log, job)
        return double(job, start)

    with pool(work, workers=1, ahead=2) as trainer:
        for client in range(6):
            trainer.submit(Job(client, 0, 0), START, due=client)
        wait_until(lambda: log.exists() and len(log.read_text().split()) >= 2, "two jobs", log)
        time.sleep(0.3)
        assert len(log.read_text().split()) == 2
        # an update that is requested is trained anyway
        for client in range(6):
            assert trainer.result(Job(client, 0, 0)).job.client == client


def test_a_killed_worker_is_replaced_and_its_job_is_repeated(tmp_path: Path) -> None:
    died = tmp_path / "died"

    def work(job: Job, start: Weights) -> Update:
        if job.client == 3 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return double(job, start)

    jobs = [Job(client, 0, 0) for client in range(8)]
    before: set[int | None] = set()
    with pool(work) as trainer:
        for job in jobs:
            trainer.submit(job, START, due=job.client)
            before = before or {w.process.pid for w in trainer._workers}
        for job in jobs:
            assert torch.equal(trainer.result(job).delta, double(job, START).delta)
        after = {w.process.pid for w in trainer._workers}
        assert len(before & after) == 1
    assert died.exists()


def test_idle_workers_that_are_killed_are_replaced() -> None:
    with pool(double) as trainer:
        trainer.submit(Job(0, 0, 0), START, due=0)
        trainer.result(Job(0, 0, 0))
        assert len(trainer._workers) == 2
        for worker in trainer._workers:
            worker.process.kill()
        trainer.submit(Job(1, 0, 0), START, due=0)
        assert torch.equal(trainer.result(Job(1, 0, 0)).delta, double(Job(1, 0, 0), START).delta)


def test_jobs_that_fail_while_no_room_is_left_are_repeated(tmp_path: Path) -> None:
    def work(job: Job, start: Weights) -> Update:
        failed = tmp_path / str(job.client)
        if job.client and not failed.exists():
            failed.touch()
            raise OSError("once")
        return double(job, start)

    with pool(work, workers=1, ahead=1) as trainer:
        for client in range(4):
            trainer.submit(Job(client, 0, 0), START, due=3)
        wait_until(lambda: trainer._backlog.tasks[Job(0, 0, 0)].outcome is not None, "an update")
        for client in (3, 2, 1, 0):
            assert trainer.result(Job(client, 0, 0)).job.client == client


def test_a_failure_of_a_thread_is_raised_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(WorkerPool, "_hear", broken)
    with pool(double) as trainer:
        trainer.submit(Job(1, 0, 0), START, due=0)
        task = trainer._backlog.tasks[Job(1, 0, 0)]
        wait_until(lambda: task.outcome is not None, "a failure")  # before anybody waits
        with pytest.raises(MemoryError, match="no room"):
            trainer.result(Job(1, 0, 0))


def test_workers_that_die_before_they_begin_are_not_replaced_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddle.runtimes.workers._serve", lambda *_: os._exit(1))
    with pool(double, workers=1) as trainer:
        trainer.submit(Job(1, 0, 0), START, due=0)
        with pytest.raises(FeddleError, match=r"client 1 .* failed 10 times: its worker process died"):
            trainer.result(Job(1, 0, 0))


def test_a_job_that_fails_twice_ends_the_run_with_client_and_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def broken(job: Job, _: Weights) -> Update:
        logged(log, job)
        raise OSError("the disk is gone")

    def deadly(job: Job, start: Weights) -> Update:
        os.kill(os.getpid(), signal.SIGKILL)
        return double(job, start)

    for work, cause in ((broken, "OSError: the disk is gone"), (deadly, "its worker process died")):
        with pool(work) as trainer:
            trainer.submit(Job(42, 1, 7), START, due=0)
            with pytest.raises(FeddleError, match=rf"client 42 \(its job 1, from version 7\) failed 2 times: {cause}"):
                trainer.result(Job(42, 1, 7))
    assert log.read_text().split() == ["42", "42"]


def test_a_user_error_is_reported_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def diverges(job: Job, _: Weights) -> Update:
        logged(log, job)
        raise FeddleError("lower training.lr")

    with pool(diverges) as trainer:
        trainer.submit(Job(1, 0, 0), START, due=0)
        with pytest.raises(FeddleError, match=r"^lower training\.lr$"):
            trainer.result(Job(1, 0, 0))
    assert log.read_text().split() == ["1"]


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    parent = os.fork()
    if not parent:
        trainer = pool(double).__enter__()
        trainer.submit(Job(0, 0, 0), START, due=0)
        pids.with_suffix(".partial").write_text(" ".join(str(w.process.pid) for w in trainer._workers))
        pids.with_suffix(".partial").rename(pids)
        time.sleep(LIMIT)
        os._exit(1)
    wait_until(pids.exists, "two workers")
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    left = [Path(f"/proc/{pid}/stat") for pid in pids.read_text().split()]
    assert len(left) == 2
    for stat in left:
        wait_until(partial(gone, stat), "the end of a worker")


def gone(stat: Path) -> bool:
    """Whether a process has ended. A zombie counts as ended."""
    return not stat.exists() or stat.read_text().split()[2] == "Z"


def test_a_search_with_workers_is_bit_identical() -> None:
    examples = TensorDataset(torch.randn(600, 4, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 2)

    def run(workers: int) -> feddle.Run[Any]:
        torch.manual_seed(0)
        return feddle.simulate(
            torch.nn.Sequential(torch.nn.Linear(4, 2)),
            [examples, examples],
            server=examples,
            per_round=2,
            rounds=3,
            method={"name": "feddle", "search": "lbfgs"},
            delays={"sigma": 0},
            workers=workers,
        )

    assert torch.equal(run(0).server.model.vector, run(2).server.model.vector)


def test_batchnorm_without_momentum_depends_on_the_job_alone() -> None:
    data = TensorDataset(torch.randn(96, 4, generator=torch.Generator().manual_seed(0)), torch.arange(96) % 2)
    clients = [torch.utils.data.Subset(data, range(i, i + 12)) for i in range(0, 96, 12)]

    def trained(workers: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8, momentum=None), torch.nn.Linear(8, 2)
        )
        plan: dict[str, Any] = {"rounds": 6, "per_round": 3, "training": {"batch_size": 4}, "delays": {"sigma": 1.0}}
        feddle.simulate(model, clients, test=data, method="fedavg", workers=workers, **plan)
        return model.state_dict()

    alone, with_workers = trained(0), trained(2)
    assert all(torch.equal(tensor, with_workers[name]) for name, tensor in alone.items())
