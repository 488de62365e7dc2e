"""Simulation on Ray: bit-identical to local workers, whatever happens to a node."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import needs
from clusters import ENVIRONMENT, STORE, RunningCluster, RunningNode, cluster
from command import FEDDLE, Completed, fork_feddle, run_process
from feddle.clients.work import Work
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.data.examples import FromDataset, Images, Selection
from feddle.grids import cluster as grid_on_ray
from feddle.grids.cells import Ended, Task, is_done
from feddle.grids.cluster import Files, cell, keep_files
from feddle.run.checkpoint import MANIFEST
from feddle.run.folder import RunFolder, resume_run, run_config
from feddle.run.load import parse_config
from feddle.run.problem import build_problem
from feddle.run.run import Listener, Run
from feddle.run.simulate import simulated
from feddle.runtimes import cluster as joining
from feddle.runtimes.cluster import Node, StoreNeed, count_workers, join, nodes_of, require_store, store_size
from feddle.runtimes.packing import pack, unpack
from feddle.runtimes.ray import RayOptions, RayPool
from feddle.runtimes.simulation import Simulation
from killing import KillPoint, end_of
from needs import mounts
from test_reproduce import CNN, SMALL, reproduce
from test_resume import CutError, stop_at
from three_numbers import weights
from tiny import tiny
from waiting import patient, wait_until

pytestmark = [needs.linux, patient]
START = weights(1.0, 2.0, 3.0, buffers=[4.0])


@pytest.fixture(scope="module", autouse=True)
def _token() -> Iterator[None]:
    """The token of the clusters of this module; Ray reads it once per process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[RunningCluster]:
    with cluster(1, 1) as running:
        yield running


class Double:
    """Work whose result is easy to check; each job is logged when it begins."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, job: Job, start: Weights) -> Update:
        (self.log / f"begun-{job.client}-{os.getpid()}").touch()
        return doubled(job, start)


class Gated(Double):
    """Work that waits for a file."""

    def __call__(self, job: Job, start: Weights) -> Update:
        update = super().__call__(job, start)
        while not (self.log / "gate").exists():
            time.sleep(0.02)
        return update


class Deadly(Double):
    def __call__(self, job: Job, start: Weights) -> Update:
        super().__call__(job, start)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Broken(Double):
    def __call__(self, job: Job, start: Weights) -> Update:
        super().__call__(job, start)
        raise OSError("the disk is gone")


def doubled(job: Job, start: Weights) -> Update:
    return Update(job, start.vector * 2 + job.client, start.buffers + 1, 10 + job.client, {"loss": 0.5}, "layout")


def pool(work: Work, address: str | None, workers: int | None = None, *, ahead: int = 100) -> RayPool:
    options = RayOptions(address=address)
    limits = {"cores": 2, "horizon": 100, "ahead": ahead, "versions": 5}
    return RayPool(work, torch.nn.Linear(1, 1), START, options, workers, **limits)


def begun(log: Path) -> list[tuple[int, int]]:
    """The client and the process of each job that was started."""
    return [(int(client), int(pid)) for _, client, pid in (p.name.split("-") for p in log.glob("begun-*"))]


def go(config: Any, listener: Listener | None = None) -> Run[Simulation]:
    run = simulated(config, build_problem(config))
    run.go(listener)
    return run


def same(run: Run[Simulation], other: Run[Simulation]) -> bool:
    return torch.equal(run.server.model.vector, other.server.model.vector) and run.history == other.history


# without a cluster


def test_without_ray_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FeddleError, match=r"executor: ray needs the package ray .*; pip install 'feddle\[ray\]'"):
        simulated(tiny(executor="ray"), build_problem(tiny()))


def test_a_config_without_executor_keeps_its_text_and_its_hash() -> None:
    from feddle.grids.cells import config_hash

    assert "executor" not in tiny().model_dump(mode="json")
    assert config_hash(tiny()) == config_hash(tiny(executor="local")) == config_hash(tiny(executor="ray", workers=3))


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        ({"address": "h:1"}, "expected options with a name"),
        ({"name": "ray", "adress": "h:1"}, "did you mean 'address'"),
        ({"name": "ray", "address": "nowhere"}, "expected host:port"),
        ({"name": "ray", "address": "ray://h:1"}, "expected host:port"),
        ({"name": "ray", "address": "h:99999"}, "expected host:port"),
        ({"name": "ray", "cpus": 0}, "greater than 0"),
        ({"name": "ray", "gpus": 1.5}, "a share of one GPU or a whole number"),
        ("dask", "dask"),
    ],
)
def test_wrong_options_are_reported_in_one_line(executor: Any, message: str) -> None:
    with pytest.raises(FeddleError, match=message) as caught:
        parse_config({"executor": executor})
    assert "\n" not in str(caught.value)


def test_zero_workers_on_ray_are_refused() -> None:
    with pytest.raises(FeddleError, match="workers is 0, but executor is ray"):
        parse_config({"executor": "ray", "workers": 0})


def test_the_number_of_workers_is_what_fits_on_the_nodes() -> None:
    # 4 CPUs and 1 GPU, 3 CPUs and 2 GPUs: with 0.5 GPUs and 1 CPU each, 2 on the first and 3 on the second
    nodes = [Node("a", 4, 1, 0), Node("b", 3, 2, 0)]
    assert count_workers(nodes, None, 1, 0.5) == 5
    assert count_workers(nodes, None, 1, 0) == 7
    assert count_workers(nodes, 3, 1, 1) == 3
    assert count_workers([Node("a", 0.3, 0, 0)], None, 0.1, 0) == 3  # 0.3 / 0.1 is a little less than 3
    with pytest.raises(
        FeddleError, match=r"needs 4 workers .* but the cluster has 7 CPUs and 3 GPUs .* set workers to 3"
    ):
        count_workers(nodes, 4, 1, 1)
    with pytest.raises(FeddleError, match=r"room for 0; lower executor\.cpus"):
        count_workers(nodes, None, 8, 0)


def test_a_store_that_is_too_small_is_refused() -> None:
    need = StoreNeed(100 << 20, 50 << 20, 10 << 20)
    require_store([Node("head", 0, 0, 0), Node("a", 2, 0, need.total)], need, 1, 0)  # the head has no worker
    with pytest.raises(FeddleError, match=rf"node a has 100 MB, but the run needs 160 MB .*={store_size(need)}"):
        require_store([Node("a", 2, 0, 100 << 20)], need, 1, 0)


def test_dead_nodes_do_not_count() -> None:
    listed = [
        {"NodeManagerAddress": "a", "Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0, "object_store_memory": 7.0}},
        {"NodeManagerAddress": "b", "Alive": False, "Resources": {}},
    ]
    assert nodes_of(listed) == [Node("a", 2, 1, 7)]


def test_shared_memory_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 64 << 20}))
    with (
        pytest.raises(FeddleError, match=r"needs 128 MB of shared memory, but /dev/shm has 64\.0 MB free"),
        joining.started(1, STORE),
    ):
        pass


@pytest.mark.parametrize("listens", [True, False])
def test_an_address_without_ray_is_refused_at_once(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_REACH", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        with pytest.raises(FeddleError, match=rf"expected a Ray cluster at 127\.0\.0\.1:{port}, but"):
            join(f"127.0.0.1:{port}")


def test_packing_shares_data_and_copies_what_may_be_changed() -> None:
    pixels, labels = torch.arange(2 * 3 * 4, dtype=torch.uint8).reshape(2, 1, 3, 4), torch.tensor([0, 1])
    rows = torch.randn(50, 3)
    column = np.arange(4.0)
    weight = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    content = {
        "images": Selection(Images(pixels, labels, 1), torch.tensor([1])),
        "own": FromDataset(Subset(TensorDataset(rows, rows[:, 0].long()), [3])),
        "slice": rows[10:20],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "weight": weight,
        "column": column,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(2.5),
        "function": lambda x: x + 1,
    }
    packed = pack(content)
    arrays = [np.frombuffer(array.tobytes(), np.uint8) for array in packed.arrays]  # read-only, as in the store
    got = unpack(packed.content, arrays)
    for name in ("slice", "parameter", "weight", "half", "empty", "number"):
        assert torch.equal(got[name], content[name]), name  # type: ignore[arg-type]
        assert got[name].stride() == content[name].stride()  # type: ignore[attr-defined]
    assert torch.equal(got["images"].take(torch.tensor([0]))[0], content["images"].take(torch.tensor([0]))[0])  # type: ignore[attr-defined]
    addresses = {array.ctypes.data for array in arrays}
    assert got["images"].examples.pixels.data_ptr() in addresses
    assert got["own"].dataset.dataset.tensors[0].data_ptr() in addresses
    assert got["slice"].data_ptr() not in addresses
    got["parameter"].data.add_(1)
    got["slice"].add_(1)
    got["column"][0] = 1
    assert got["function"](1) == 2
    assert packed.num_bytes < 8000, "a slice is sent without the rest of its memory"


def test_content_that_cannot_be_sent_is_reported_in_one_line(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file, pytest.raises(FeddleError, match=r"cannot send the model or the data"):
        pack(file)


# on a cluster


@pytest.mark.slow
def test_results_are_complete_in_any_order(two_nodes: RunningCluster, tmp_path: Path) -> None:
    jobs = [Job(client, 0, client % 3) for client in range(7)]
    trainer = pool(Double(tmp_path), two_nodes.address)
    trainer.submit(jobs[0], START, due=0)  # a resumed run submits jobs before it enters the context
    with trainer:
        for job in jobs[1:]:
            trainer.submit(job, START, due=job.client)
        for job in reversed(jobs):
            update, expected = trainer.result(job), doubled(job, START)
            assert torch.equal(update.delta, expected.delta)
            assert torch.equal(update.buffers, expected.buffers)
            assert (update.job, update.num_examples, update.metrics) == (job, 10 + job.client, {"loss": 0.5})
        assert not trainer._versions, "a version is freed with its last job"


@pytest.mark.slow
def test_the_number_of_waiting_updates_is_bounded(two_nodes: RunningCluster, tmp_path: Path) -> None:
    with pool(Double(tmp_path), two_nodes.address, 1, ahead=2) as trainer:
        for client in range(6):
            trainer.submit(Job(client, 0, 0), START, due=client)
        wait_until(lambda: len(begun(tmp_path)) >= 2, "two jobs", tmp_path)
        time.sleep(0.5)
        assert len(begun(tmp_path)) == 2
        assert [trainer.result(Job(client, 0, 0)).job.client for client in range(6)] == list(range(6))


@pytest.mark.slow
def test_a_job_that_always_fails_ends_the_run(two_nodes: RunningCluster, tmp_path: Path) -> None:
    for kind, message in (
        (Broken, "failed 2 times: OSError: the disk is gone"),
        (Deadly, "failed 5 times: its worker was lost"),
    ):
        with pool(kind(tmp_path), two_nodes.address, 1) as trainer:
            trainer.submit(Job(42, 1, 7), START, due=0)
            with pytest.raises(StoppedError, match=rf"client 42 \(its job 1, from version 7\) {message}"):
                trainer.result(Job(42, 1, 7))


@pytest.mark.slow
def test_a_run_is_bit_identical_to_local_workers(two_nodes: RunningCluster) -> None:
    ray = {"name": "ray", "address": two_nodes.address}
    for changes in ({}, {"attack": "sign-flip", "training": {"epochs": 1, "optimizer": "sgd"}}):
        assert same(go(tiny(**changes, executor=ray)), go(tiny(**changes, workers=2)))


@pytest.mark.slow
def test_a_cluster_that_is_too_small_is_reported_at_once(two_nodes: RunningCluster) -> None:
    ray = {"name": "ray", "address": two_nodes.address}
    with pytest.raises(
        FeddleError, match=r"needs 1 worker with 8 CPUs .* has 2 CPUs and 0 GPUs on 2 nodes, room for 0"
    ):
        go(tiny(executor={**ray, "cpus": 8}))
    with pytest.raises(FeddleError, match=r"needs 1 worker with 1 CPUs and 0\.5 GPUs .* room for 0"):
        go(tiny(executor={**ray, "gpus": 0.5}))
    with pytest.raises(FeddleError, match="set workers to 2"):
        go(tiny(executor=ray, workers=3))


@pytest.mark.slow
def test_a_run_is_stopped_and_resumed(two_nodes: RunningCluster, tmp_path: Path) -> None:
    ray = {"name": "ray", "address": two_nodes.address}
    whole = go(tiny(rounds=8, workers=2))

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(tiny(rounds=8, executor=ray, checkpoint={"every": 1}), tmp_path / "run", stop)
    resumed = resume_run(tmp_path / "run")
    assert resumed is not None
    assert same(resumed, whole)


@pytest.mark.slow
def test_only_the_jobs_of_a_lost_node_are_repeated(tmp_path: Path) -> None:
    jobs = [Job(client, 0, 0) for client in range(6)]
    with cluster(1, 1) as running, pool(Gated(tmp_path), running.address) as trainer:
        for job in jobs:
            trainer.submit(job, START, due=job.client)
        wait_until(lambda: len(begun(tmp_path)) == 2, "a job on each node", tmp_path)
        kill(running.nodes[1], dict(begun(tmp_path)))
        (tmp_path / "gate").touch()
        for job in jobs:
            assert torch.equal(trainer.result(job).delta, doubled(job, START).delta)
    again = [client for client, _ in begun(tmp_path)]
    assert sorted(set(again)) == list(range(6))
    assert len(again) == 7, "one job was started twice"


def kill(node: RunningNode, busy: dict[int, int]) -> None:
    """End a node that is busy with one of these jobs."""
    assert set(busy.values()) & set(node.processes())
    node.kill()


@pytest.mark.slow
def test_a_run_survives_a_lost_node() -> None:
    config = {"rounds": 30, "training": {"epochs": 3}}
    whole = go(tiny(**config, workers=2))
    with cluster(1, 1) as running:

        def listen(line: dict[str, Any]) -> None:
            if line["round"] == 5:
                running.nodes[1].kill()

        assert same(go(tiny(**config, executor={"name": "ray", "address": running.address}), listen), whole)


@pytest.mark.slow
@pytest.mark.parametrize("with_workers", [False, True])
def test_a_lost_head_stops_the_run_which_can_be_resumed(tmp_path: Path, with_workers: bool) -> None:
    out = tmp_path / "run"
    with cluster(0, 1) as running:
        ray = {"name": "ray", "address": running.address}
        config = tiny(rounds=100_000, executor=ray, checkpoint={"every": 1})
        (tmp_path / "config.yaml").write_text(json.dumps(config.model_dump(mode="json")))
        child = fork_feddle("run", "config.yaml", "-q", "--out", str(out), cwd=tmp_path, fresh=True)
        wait_until((out / "checkpoint" / MANIFEST).exists, "a checkpoint", out, tmp_path)
        running.nodes[0].kill_head()
        for pid in named(running.nodes[1], "ray::RayWorker") if with_workers else ():
            os.kill(pid, signal.SIGKILL)  # it cannot be replaced without the head
        result = end_of_command(child, tmp_path)
    assert (result.code, result.out) == (2, ""), result.text
    _, last = result.err.splitlines()  # the first is about the object store
    assert last.startswith(f"feddle: executor: the head of the Ray cluster at {running.address} is lost (")
    assert last.endswith(f"to continue once that is fixed: feddle resume {out}")
    with pytest.raises(FeddleError, match="expected a Ray cluster"):
        resume_run(out, quiet=True)
    local = {**config.model_dump(mode="json"), "executor": "local", "workers": 0}
    (out / "config.yaml").write_text(json.dumps(local))
    with pytest.raises(CutError):
        resume_run(out, partial(stop_at, RunFolder(out).saved_rounds() + 2), quiet=True)


@pytest.mark.slow
def test_ray_on_this_machine_listens_only_on_loopback(tmp_path: Path) -> None:
    tmp_path.joinpath("config.yaml").write_text(json.dumps(tiny(executor="ray", workers=2).model_dump(mode="json")))
    code = """
import sys, subprocess, feddle
def listen(line):
    if line["round"] == 1:
        print(subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout)
run = feddle.run_config(feddle.load_config("config.yaml"), "run", listen)
"""
    done = run_process(sys.executable, "-c", code, cwd=tmp_path, env=ENVIRONMENT)
    assert done.code == 0, done.text
    listening = [line.split()[3] for line in done.out.splitlines() if "ray" in line or "gcs" in line]
    assert listening, done.out
    assert all("127.0.0.1" in address for address in listening)
    assert "the object store of a node needs up to" in done.err
    whole = go(tiny(workers=2))
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == whole.history


@pytest.mark.slow
def test_a_grid_is_spread_over_the_cluster(two_nodes: RunningCluster, tmp_path: Path) -> None:
    here = reproduce(tmp_path / "here", "--jobs", "2")
    there = reproduce(tmp_path / "there", "--executor", "ray", "--address", two_nodes.address)
    assert (here.code, there.code) == (0, 0), there.text
    histories = [sorted((tmp_path / name).rglob("history.jsonl")) for name in ("here", "there")]
    assert len(histories[0]) == len(histories[1]) == 2
    for one, other in zip(*histories, strict=True):
        assert one.read_text() == other.read_text()
    assert not list((tmp_path / "there").glob(".shared*"))


def test_a_node_without_the_grids_folder_sends_its_files(tmp_path: Path) -> None:
    task = Task("cell", tmp_path / "elsewhere", tiny(workers=0))
    *lines, files, ended = cell(task, tmp_path / "missing", Path.cwd())
    assert isinstance(files, Files)
    assert isinstance(ended, Ended)
    assert (len(lines), ended.reason) == (4, "")
    assert not task.folder.exists(), "the node does not write to a folder that it does not share"
    keep_files(files, task.folder)
    assert is_done(task)


def start_grid(out: Path, address: str, **overrides: Any) -> int:
    """Start a grid of two cells on a cluster in a new process. Its output goes to files next to the folder."""
    small = [f"-o{key}={value}" for key, value in {**SMALL, **overrides}.items()]
    only = ["--quick", "--cells", "fashion-mnist/dir0.1/sigma20", "--methods", "feddle-id,fedbuff"]
    arguments = ["reproduce", CNN, "--out", str(out), *only, *small, "--executor", "ray", "--address", address]
    return fork_feddle(*arguments, cwd=out.parent, fresh=True)


def checkpoints(out: Path) -> list[Path]:
    return list(out.rglob(f"checkpoint/{MANIFEST}"))


def end_of_command(child: int, folder: Path) -> Completed:
    """Wait until a command of `fork_feddle` has ended."""
    code = end_of(child, folder, KillPoint())
    return Completed(code, (folder / "stdout").read_text(), (folder / "stderr").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("shares", [True, pytest.param(False, marks=mounts)])
def test_a_cell_whose_node_is_killed_is_run_again(tmp_path: Path, shares: bool) -> None:
    here = reproduce(tmp_path / "here", "--jobs", "1", rounds=40)
    assert here.code == 0, here.text
    out = tmp_path / "there"
    hidden = None if shares else out
    with cluster(1, 1, hidden=hidden) as running:
        child = start_grid(out, running.address, rounds=40, **{"checkpoint.every": 1})
        wait_until(
            lambda: len(checkpoints(out)) == 1 + shares and named(running.nodes[1], "ray::cell"),
            "a cell on each node",
            out,
        )
        running.nodes[1].kill()
        result = end_of_command(child, tmp_path)
    assert result.code == 0, result.text
    assert same_histories(tmp_path / "here", out)


@mounts
@pytest.mark.slow
def test_a_node_that_does_not_share_the_folder_loses_no_cell(tmp_path: Path) -> None:
    assert reproduce(tmp_path / "here", "--jobs", "1").code == 0
    out = tmp_path / "there"
    with cluster(0, 1, hidden=out) as running:  # all cells are on the node without the folder
        result = end_of_command(start_grid(out, running.address), tmp_path)
    assert result.code == 0, result.text
    assert same_histories(tmp_path / "here", out)


@pytest.mark.slow
def test_a_cell_without_files_is_reported(
    two_nodes: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished(*_: object) -> Iterator[Ended]:
        yield Ended(score=1.0)

    monkeypatch.setattr(grid_on_ray, "cell", finished)
    result = reproduce(tmp_path / "grid", "--executor", "ray", "--address", two_nodes.address)
    assert result.code == 2
    assert "has no result; the same command tries again" in result.err


@pytest.mark.slow
def test_a_lost_head_stops_a_grid(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    with cluster(0, 2) as running:
        child = start_grid(out, running.address, rounds=10_000, **{"checkpoint.every": 1})
        wait_until(lambda: len(checkpoints(out)) == 2, "a checkpoint of each cell", out, tmp_path)
        running.nodes[0].kill_head()
        result = end_of_command(child, tmp_path)
    assert result.code == 2, result.text
    last = result.err.splitlines()[-1]
    assert last.startswith(f"feddle: executor: the head of the Ray cluster at {running.address} is lost (")
    assert last.endswith(f"the same command continues the runs in {out}")


def named(node: RunningNode, name: str) -> list[int]:
    """The processes of a node whose command begins with a name."""
    found = []
    for pid in node.processes():
        with suppress(OSError):  # it has just ended
            found += [pid] * Path(f"/proc/{pid}/cmdline").read_text().startswith(name)
    return found


def same_histories(one: Path, other: Path) -> bool:
    texts = [[path.read_text() for path in sorted(folder.rglob("history.jsonl"))] for folder in (one, other)]
    return len(texts[0]) == 2 and texts[0] == texts[1]


def test_incompatible_options_of_reproduce_are_refused(tmp_path: Path) -> None:
    for arguments, expected in (
        (["--address", "127.0.0.1:6379"], "add --executor ray"),
        (["--executor", "ray", "--address", "nowhere"], "expected host:port"),
        (["--executor", "ray", "--address", "127.0.0.1:1"], "it does not answer"),
        (["-o", "executor=ray"], "--executor ray"),
    ):
        result = reproduce(tmp_path / "grid", *arguments)
        assert result.code == 2
        assert expected in result.err
        assert not (tmp_path / "grid").exists()


@pytest.mark.slow
def test_errors_of_the_command_line_are_reported_in_one_line(tmp_path: Path) -> None:
    tmp_path.joinpath("config.yaml").write_text(json.dumps(tiny().model_dump(mode="json")))
    for override, expected in (
        ("executor={name: ray, address: '127.0.0.1:1'}", "it does not answer"),
        ("executor={name: ray, cpus: 4000}", "executor.cpus"),
        ("executor={name: ray, cpus: 1000}", "room for 0"),
    ):
        done = run_process(*FEDDLE, "run", "config.yaml", "-o", override, "--out", "run", cwd=tmp_path, env=ENVIRONMENT)
        assert (done.code, done.out) == (2, ""), done.text
        assert expected in done.err
        assert done.err.count("\n") == 1
        assert not (tmp_path / "run").exists()
