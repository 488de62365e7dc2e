"""Stopped runs continue bit-identically, whatever stopped them."""

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, get_args

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import TensorDataset

from command import FEDDLE, Completed, run_feddle
from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.core.state import load, without_prefix
from feddle.data.examples import FromDataset
from feddle.data.source import Unusable
from feddle.methods.options import AnyMethod
from feddle.run.checkpoint import MANIFEST, Checkpoint, Pace
from feddle.run.folder import RunFolder, go_to_the_end, resume_run, run_config
from feddle.run.problem import Problem, build_problem
from feddle.run.progress import RunDisplay
from feddle.run.run import Line
from feddle.run.simulate import simulated
from feddle.runtimes.workers import WorkerPool
from feddle.server import ENOUGH, ServerState
from killing import METHODS, SMALL, KillPoint, in_a_process, kept, run_or_resume, small
from needs import linux
from three_numbers import weights
from waiting import patient, wait_until

Whole = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The files of a method's run that was never stopped and made no checkpoints."""
    done: dict[str, dict[str, Any]] = {}

    def of(method: str) -> dict[str, Any]:
        if method not in done:
            folder = tmp_path_factory.mktemp("whole") / "run"
            run_config(small(method, checkpoint={"every": 0}), folder, quiet=True)
            done[method] = kept(folder)
        return done[method]

    return of


class CutError(Exception):
    """Stops a run."""


def cut_after(rounds: int, folder: Path, method: str, /, **changes: Any) -> None:
    def listener(line: Line) -> None:
        if line["round"] == rounds:
            raise CutError

    with pytest.raises(CutError):
        run_config(small(method, **changes), folder, listener, quiet=True)


# --- continuing bit-identically


def test_every_method_is_among_the_methods_that_are_stopped() -> None:
    assert {method["name"] for method in METHODS.values()} == {member.named() for member in get_args(AnyMethod)}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_continues_bit_identically(tmp_path: Path, whole: Whole, method: str) -> None:
    cut_after(5, tmp_path / "run", method, checkpoint={"every": 3})
    lines: list[Line] = []
    run = resume_run(tmp_path / "run", lines.append, quiet=True)
    assert [line["round"] for line in lines] == [4, 5, 6, 7, 8], "it continues from the checkpoint of round 3"
    assert run is not None
    assert len(run.history) == 8
    assert kept(tmp_path / "run") == whole(method)


@linux
def test_the_number_of_workers_does_not_matter(tmp_path: Path, whole: Whole) -> None:
    for workers in (1, 3):
        cut_after(4, tmp_path / str(workers), "feddle", workers=workers, checkpoint={"every": 2})
        resume_run(tmp_path / str(workers), quiet=True)
        assert kept(tmp_path / str(workers)) == whole("feddle")


def test_a_run_may_be_stopped_repeatedly(tmp_path: Path, whole: Whole) -> None:
    folder = tmp_path / "run"
    cut_after(1, folder, "ca2fl-on-disk")
    for rounds in range(2, 8):
        with pytest.raises(CutError):
            resume_run(folder, partial(stop_at, rounds), quiet=True)
        assert RunFolder(folder).saved_rounds() == rounds
    resume_run(folder, quiet=True)
    assert kept(folder) == whole("ca2fl-on-disk")


def stop_at(rounds: int, line: Line) -> None:
    if line["round"] == rounds:
        raise CutError


def test_a_run_without_a_checkpoint_starts_from_the_beginning(tmp_path: Path, whole: Whole) -> None:
    cut_after(2, tmp_path / "run", "fedbuff", checkpoint={"every": 3})
    lines: list[Line] = []
    resume_run(tmp_path / "run", lines.append, quiet=True)
    assert [line["round"] for line in lines] == list(range(1, 9))
    assert kept(tmp_path / "run") == whole("fedbuff")


def test_a_finished_run_with_a_checkpoint_left_is_finished(tmp_path: Path, whole: Whole) -> None:
    cut_after(5, tmp_path / "run", "fedbuff", checkpoint={"every": 3})
    checkpoint = shutil.copytree(tmp_path / "run" / "checkpoint", tmp_path / "left")
    resume_run(tmp_path / "run", quiet=True)
    shutil.copytree(checkpoint, tmp_path / "run" / "checkpoint")
    assert resume_run(tmp_path / "run", quiet=True) is None
    assert kept(tmp_path / "run") == whole("fedbuff")


@pytest.mark.parametrize("damaged", ['{"finished": true}', '{"finished": true, "rounds": "x"}', "[1]"])
def test_a_damaged_result_of_a_finished_run_raises_no_exception(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "result.json").write_text(damaged)
    assert RunFolder(tmp_path).saved_rounds() == 0


def test_a_finished_run_with_a_damaged_result_is_not_repeated(tmp_path: Path) -> None:
    run_config(small("fedbuff"), tmp_path / "run", quiet=True)
    history = (tmp_path / "run" / "history.jsonl").read_bytes()
    (tmp_path / "run" / "result.json").write_text("{")
    result = run_feddle("resume", tmp_path / "run", "-q")
    assert (result.code, result.err.count("\n")) == (2, 1), result.text
    assert f"{tmp_path / 'run' / 'result.json'} is damaged; restore it, or remove it" in result.err
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == history


def test_a_run_interrupted_while_it_removes_its_checkpoint_is_finished(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_config(small("fedbuff"), tmp_path / "run", quiet=True)
    monkeypatch.undo()
    assert not (tmp_path / "run" / "checkpoint" / MANIFEST).exists()
    assert resume_run(tmp_path / "run", quiet=True) is None
    assert kept(tmp_path / "run") == whole("fedbuff")


@pytest.mark.parametrize("left", ["config.yaml", "history.jsonl", "result.json", f"checkpoint/{MANIFEST}"])
def test_a_new_run_refuses_a_folder_with_files_of_another(stopped: Path, left: str) -> None:
    shutil.copy(stopped / "history.jsonl", stopped / "result.json")
    for path in [p for p in stopped.rglob("*") if p.is_file() and p != stopped / left]:
        path.unlink()
    with pytest.raises(FeddleError, match=r"already holds a run|is not empty"):
        run_config(small("fedbuff"), stopped, quiet=True)


def test_the_number_of_workers_may_change(tmp_path: Path, whole: Whole) -> None:
    cut_after(5, tmp_path / "run", "feddle", checkpoint={"every": 3})
    rewrite(tmp_path / "run" / "config.yaml", lambda tree: tree.update(workers=1))
    resume_run(tmp_path / "run", quiet=True)
    assert kept(tmp_path / "run") == whole("feddle")


@linux
def test_files_are_synced_before_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def named(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    def watch_fsync(descriptor: int) -> None:
        events.append(f"sync {named(descriptor)}")
        fsync(descriptor)

    def watch_replace(path: Path, target: Path) -> Path:
        events.append(f"name {Path(target).name}")
        return replace(path, target)

    def watch_unlink(path: Path, missing_ok: bool = False) -> None:
        events.append(f"remove {path.name}")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(Path, "replace", watch_replace)
    monkeypatch.setattr(Path, "unlink", watch_unlink)
    run_config(small("fedbuff", rounds=2), tmp_path / "run", quiet=True)
    manifest = events.index(f"name {MANIFEST}")
    assert "sync history.jsonl" in events[:manifest]
    files = {h.removeprefix("name ") for h in events[:manifest] if h.startswith("name ") and "safetensors" in h}
    assert files
    for file in files:
        assert f"sync {file}" in events[:manifest], "a tensor is on the disk before the manifest names it"
    assert events[manifest - 1] == f"sync {MANIFEST}.partial"
    assert events[manifest + 1] == "sync checkpoint"
    end = events[events.index("name model.safetensors") - 2 :]
    wanted = [
        "sync history.jsonl",
        "sync model.safetensors.partial",
        "name model.safetensors",
        "sync run",
        "sync result.json.partial",
        "name result.json",
        "sync run",
        f"remove {MANIFEST}",
    ]
    assert end[: len(wanted)] == wanted


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_whole(file, b"before")

    def fails(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, b"after that")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"file": b"before"}


def test_a_private_file_is_private_even_after_a_killed_write(tmp_path: Path) -> None:
    (tmp_path / "key.partial").write_bytes(b"half")  # readable by others
    write_whole(tmp_path / "key", b"secret", private=True)
    assert [(p.name, p.stat().st_mode & 0o777) for p in tmp_path.iterdir()] == [("key", 0o600)]


def test_an_incomplete_line_of_history_is_removed(tmp_path: Path, whole: Whole) -> None:
    cut_after(5, tmp_path / "run", "fedbuff", checkpoint={"every": 3})
    with (tmp_path / "run" / "history.jsonl").open("a") as file:
        file.write('{"round": 6, "ver')
    resume_run(tmp_path / "run", quiet=True)
    assert kept(tmp_path / "run") == whole("fedbuff")


def test_the_seconds_before_and_after_a_stop_are_added(tmp_path: Path) -> None:
    cut_after(5, tmp_path / "run", "fedbuff", checkpoint={"every": 4})
    facts = Checkpoint(tmp_path / "run" / "checkpoint").facts()
    assert facts is not None
    assert facts["seconds"] > 0
    change_facts(tmp_path / "run", seconds=1000.0)
    run = resume_run(tmp_path / "run", quiet=True)
    assert run is not None
    assert 1000 < run.result["seconds"] < 1100


def test_state_outside_the_weights_is_restored() -> None:
    # BatchNorm counts its batches; the count is not sent
    config = small("fedbuff")
    federation = build_problem(config)
    federation = replace(federation, model=nn.Sequential(federation.model, nn.BatchNorm1d(10, momentum=None)))
    run = simulated(config, federation)
    states: list[dict[str, torch.Tensor]] = []
    run.go(lambda _: states.append({n: t.clone() for n, t in run.state_dict().items()}))
    again = simulated(config, federation)
    again.load_state_dict(states[4], run.history[:5], 0.0)
    again.go()
    assert again.history == run.history
    whole, end = run.state_dict(), again.state_dict()
    assert whole.keys() == end.keys()
    assert all(torch.equal(t, end[n]) for n, t in whole.items())


# norms that the server remembers, changes that clients make to their updates, and diagnostics
SETTINGS: dict[str, dict[str, Any]] = {
    "norms": {"checks": {"max_norm_ratio": 4.0}, "attack": {"name": "scale", "share": 0.2}},
    "random": {"attack": {"name": "random", "share": 0.5}},
    "label-flip": {"attack": {"name": "label-flip", "share": 0.5}},
    "private": {"privacy": {"noise_multiplier": 0.01}},
    "all": {
        "attack": {"name": "sign-flip", "share": 0.3},
        "privacy": {"noise_multiplier": 0.01},
        "diagnostics": {"every": 2, "clients": 3},
    },
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_checks_attacks_and_privacy_continue(tmp_path: Path, setting: str) -> None:
    changes: dict[str, Any] = {"rounds": 14, **SETTINGS[setting]}
    run_config(small("feddle", checkpoint={"every": 0}, **changes), tmp_path / "whole", quiet=True)
    cut_after(10, tmp_path / "run", "feddle", checkpoint={"every": 8}, **changes)
    saved = ServerState(weights())
    load(saved, without_prefix("server", Checkpoint(tmp_path / "run" / "checkpoint").state()))
    assert len(saved.norms) >= ENOUGH, "so that the bound applies at once"
    resume_run(tmp_path / "run", quiet=True)
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")
    result = kept(tmp_path / "run")["result"]
    if setting == "norms":
        assert result["refused"]["too long"] > 0
    if "privacy" in changes:
        assert result["privacy"]["updates"] > max(saved.jobs_of.values()) > 1, "jobs before the stop count"


# --- killed


@linux
@patient
@pytest.mark.parametrize(
    ("method", "workers", "points"),
    [
        # in the middle of a checkpoint, again, and then by the clock
        ("feddle-calibrated", 2, [KillPoint(touch=60), KillPoint(touch=41), KillPoint(seconds=0.6)]),
        ("feddle-on-disk", 2, [KillPoint(touch=60), KillPoint(touch=301), KillPoint(seconds=0.6)]),
        ("ca2fl-on-disk", 0, [KillPoint(touch=1), KillPoint(touch=3), KillPoint(touch=101), KillPoint(seconds=0.5)]),
    ],
)
def test_a_killed_run_continues_bit_identically(
    tmp_path: Path, whole: Whole, method: str, workers: int, points: list[KillPoint]
) -> None:
    config, folder = small(method, workers=workers), tmp_path / "run"
    killed = [in_a_process(config, folder, point) for point in points]
    assert killed[0]
    run_or_resume(config, folder)
    assert kept(folder) == whole(method)


@linux
@pytest.mark.slow
@patient
def test_a_hundred_kill_points(tmp_path: Path, whole: Whole) -> None:
    draw = random.Random(7)  # noqa: S311
    methods = list(METHODS)
    seconds = []  # of a whole run in such a process; the first also loads what is loaded lazily
    for name in ("first", "second"):
        began = time.perf_counter()
        in_a_process(small("feddle"), tmp_path / name, KillPoint())
        seconds.append(time.perf_counter() - began)
    killed = trial = 0
    while killed < 100:
        assert trial < 300, "too many runs ended before they were killed"
        method = methods[trial % len(methods)]
        config, folder = small(method, workers=draw.choice([0, 0, 2])), tmp_path / str(trial)
        for _ in range(draw.choice([1, 1, 2])):
            by_clock = KillPoint(seconds=draw.uniform(0, min(seconds)))
            killed += in_a_process(config, folder, draw.choice([by_clock, KillPoint(touch=draw.randint(1, 160))]))
        run_or_resume(config, folder)
        assert kept(folder) == whole(method), f"{method}, trial {trial}"
        trial += 1


@pytest.mark.slow
@patient
def test_time_and_memory_do_not_grow_in_a_long_run(tmp_path: Path) -> None:
    rounds = 5000
    config = small("feddle", rounds=rounds, checkpoint={"every": 50}, evaluation={"every": 100})
    points = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    cloud = [FromDataset(TensorDataset(x, (x.prod(1) > 0).long())) for x in points.view(20, 20, 4)]
    clients, server, test = cloud[:16], cloud[16], cloud[17]
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    run = simulated(config, Problem(model, clients, torch.full((16,), 20), server, test))
    folder = RunFolder(tmp_path / "run")
    seconds, resident, sizes = [], [], []

    def listener(_: Line) -> None:
        seconds.append(time.process_time())  # the machine may have other work
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"))
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoint").iterdir()))

    with folder.locked():
        go_to_the_end(run, folder, Pace(50), listener)
    a_round = [after - before for before, after in pairwise(seconds)]
    quarter = rounds // 4
    quarters = [median(a_round[first : first + quarter]) for first in range(0, rounds, quarter)]
    grown = median(resident[-quarter:]) - median(resident[quarter : 2 * quarter])
    history = (tmp_path / "run" / "history.jsonl").stat().st_size
    print("a round:", *(f"{1e3 * q:.2f}" for q in quarters), f"ms; resident memory grew by {grown / 1e6:.1f} MB")
    print(f"history: {history / 1e6:.1f} MB; checkpoint: at most {max(sizes) / 1e3:.0f} kB")
    assert quarters[-1] < 1.5 * quarters[0]
    assert grown < 10e6, "except for the history, which is kept in memory: less than 2 kB per round here"
    assert max(sizes[-quarter:]) <= 1.5 * max(sizes[:quarter])


# --- refused


@pytest.fixture(scope="module")
def once_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    cut_after(5, folder, "feddle", checkpoint={"every": 3})
    return folder


@pytest.fixture
def stopped(tmp_path: Path, once_stopped: Path) -> Path:
    return Path(shutil.copytree(once_stopped, tmp_path / "run"))


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    tree = yaml.safe_load(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def change_facts(folder: Path, **facts: Any) -> None:
    """Save the checkpoint again with changed facts."""
    checkpoint = Checkpoint(folder / "checkpoint")
    checkpoint.save(checkpoint.state(), {**(checkpoint.facts() or {}), **facts})


def one_blob(folder: Path) -> Path:
    return max((folder / "checkpoint").glob("*.safetensors"), key=lambda path: path.stat().st_size)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another config": (
        lambda f: rewrite(f / "config.yaml", lambda tree: tree.update(rounds=9)),
        r"config\.yaml has been changed since the checkpoint",
    ),
    "another feddle": (
        lambda f: change_facts(f, feddle="0.0.1"),
        r"was made with feddle 0\.0\.1, this is",
    ),
    "another format": (lambda f: change_facts(f, format=1), r"was made with format 1, this is"),
    "another numpy": (lambda f: change_facts(f, numpy="0.9"), r"was made with numpy 0\.9, this is"),
    "another device": (lambda f: change_facts(f, device="tpu"), r"was made with device tpu, this is"),
    "another processor": (lambda f: change_facts(f, cpu="MMX"), r"was made with cpu MMX, this is"),
    "a manifest that says something else": (
        lambda f: rewrite(f / "checkpoint" / MANIFEST, lambda tree: tree["facts"].update(round="four")),
        r"manifest\.json is missing or damaged",
    ),
    "another torch": (
        lambda f: change_facts(f, torch="1.0"),
        r"was made with torch 1\.0, this is",
    ),
    "a file cut short": (lambda f: os.truncate(one_blob(f), 1000), r"missing or damaged.* remove .*checkpoint"),
    "a bit flipped": (
        lambda f: one_blob(f).write_bytes(one_blob(f).read_bytes()[:-1] + b"\x7f"),
        r"missing or damaged",
    ),
    "a file gone": (lambda f: one_blob(f).unlink(), r"missing or damaged"),
    "no manifest that can be read": (
        lambda f: (f / "checkpoint" / MANIFEST).write_text('{"facts'),
        r"manifest\.json is",
    ),
    "a manifest of something else": (lambda f: (f / "checkpoint" / MANIFEST).write_text("{}"), r"manifest\.json is"),
    "a shorter history": (lambda f: os.truncate(f / "history.jsonl", 10), r"history\.jsonl has been changed"),
    "another history": (
        lambda f: (f / "history.jsonl").write_text("x" * (f / "history.jsonl").stat().st_size),
        r"history\.jsonl has been changed",
    ),
    "no run": (lambda f: (f / "config.yaml").unlink(), r"holds no run \(no config\.yaml\); name a folder"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_run_that_cannot_continue_is_refused_in_one_line(stopped: Path, reason: str) -> None:
    harm, text = REFUSED[reason]
    harm(stopped)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(FeddleError, match=text) as caught:
        resume_run(stopped, quiet=True)
    assert "\n" not in str(caught.value)
    left = {path: path.read_bytes() for path in before}
    assert left == before, "no file was changed"


def test_the_commands_of_a_stopped_run(stopped: Path, whole: Whole) -> None:
    above = run_feddle("resume", stopped.parent)
    assert (above.code, above.err.count("\n")) == (2, 1)
    assert f"holds no run (no config.yaml); name one of the folders in it: {stopped}" in above.err
    again = run_feddle("run", stopped / "config.yaml", "--out", stopped)
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert f"feddle resume {stopped}" in again.err
    resumed = run_feddle("resume", stopped, "--quiet")
    assert (resumed.code, resumed.err) == (0, "")
    assert "Report: " in resumed.out
    assert run_feddle("resume", stopped) == Completed(0, f"{stopped} is finished; there is nothing to resume\n", "")
    (stopped / "report.html").unlink()
    assert kept(stopped) == whole("feddle")


@linux
@patient
def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**SMALL, "method": "fedavg", "rounds": 100_000, "workers": 2}))
    out = tmp_path / "run"
    with subprocess.Popen([*FEDDLE, "run", config, "-q", "--out", out]) as first:
        try:
            wait_until((out / "checkpoint" / MANIFEST).exists, "a checkpoint", out)
            with pytest.raises(FeddleError, match=rf"another process is using {out}"):
                resume_run(out, quiet=True)
        finally:
            first.kill()
    with pytest.raises(CutError):  # its workers do not block the folder
        resume_run(out, partial(stop_at, RunFolder(out).saved_rounds() + 1), quiet=True)


# --- faults


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk; to enable: run the tests as root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        reason = mounted.stderr.decode().strip()
        pytest.skip(f"needs to mount a small disk ({reason}); to enable: run outside of a container, or with SYS_ADMIN")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def test_a_full_disk_then_a_read_only_one(small_disk: Path, tmp_path: Path) -> None:
    config, out = small("feddle", rounds=12, options={"atlas_size": 40}), small_disk / "run"
    file = tmp_path / "config.yaml"  # each anchor takes 4 KB, so checkpoints grow
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    remedy = f"to continue once that is fixed: feddle resume {out}"
    expected = f"feddle: cannot write to {out}: No space left on device; {remedy}\n"
    assert run_feddle("run", file, "-q", "--out", out) == Completed(2, "", expected)
    rounds = RunFolder(out).saved_rounds()
    assert 0 < rounds < 12
    assert not list(out.rglob("*.partial"))
    remount(small_disk, "ro")
    with pytest.raises(FeddleError, match=f"cannot write to {out}: Read-only file system"):
        resume_run(out, quiet=True)
    remount(small_disk, "rw,size=20m")
    lines: list[Line] = []
    resume_run(out, lines.append, quiet=True)
    assert lines[0]["round"] == rounds + 1
    run_config(config, tmp_path / "whole", quiet=True)
    assert kept(out) == kept(tmp_path / "whole")


@linux
def test_a_worker_that_is_killed_changes_nothing(whole: Whole) -> None:
    config = small("feddle", workers=2)
    run = simulated(config, build_problem(config))

    killed = 0

    def kill_one(line: Line) -> None:
        nonlocal killed
        pool = run.runtime.trainer
        assert isinstance(pool, WorkerPool)
        with pool._changed:  # a job that fails twice ends the run, so nothing is killed after a failure
            failed = any(task.faults and task.outcome is None for task in pool._backlog.tasks.values())
            if pool._workers and not failed:
                pool._workers[line["round"] % len(pool._workers)].process.kill()
                killed += 1

    run.go(kill_one)
    assert killed > len(run.history) // 2
    expected = [json.loads(line) for line in whole("feddle")["history.jsonl"].splitlines()]
    assert run.history == expected


def test_a_truncated_data_file_is_fetched_again(tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_after(5, tmp_path / "run", "fedbuff", checkpoint={"every": 3})
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "data"))
    build_problem(small("fedbuff"))
    data = tmp_path / "data" / "digits.safetensors"
    size = data.stat().st_size
    os.truncate(data, size // 2)
    # digits is always available; a data set that is not available is an error of one line
    with monkeypatch.context() as gone:
        for source in ("Folder", "Official", "Package"):
            gone.setattr(f"feddle.data.fetch.origins.{source}.collect", unavailable)
        with pytest.raises(
            FeddleError, match=r"the cached file .*digits\.safetensors is broken and no source"
        ) as caught:
            resume_run(tmp_path / "run", quiet=True)
        assert "\n" not in str(caught.value)
    resume_run(tmp_path / "run", quiet=True)
    assert data.stat().st_size == size
    assert kept(tmp_path / "run") == whole("fedbuff")


def unavailable(*_: object) -> Path:
    raise Unusable("it is not there")


# --- a comparison


def test_a_stopped_comparison_is_finished_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "config.yaml", tmp_path / "all"
    config = small("fedbuff", checkpoint={"every": 3}, rounds=6)
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    arguments = ("compare", str(file), "--methods", "fedavg,fedbuff,fedasync", "-q", "--out")
    shown: list[tuple[str, int]] = []

    def show(display: RunDisplay, line: Line) -> None:
        shown.append((display.bars.tasks[-1].description, line["round"]))
        if shown[-1] == ("fedbuff", 5) and shown.count(shown[-1]) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(RunDisplay, "show", show)
        expected = f"feddle: interrupted; the rounds so far are in {out}; to continue: feddle resume {out}\n"
        assert run_feddle(*arguments, out) == Completed(130, "", expected)
        assert not (out / "fedasync").exists()
        assert not (out / "report.html").exists()
        resumed = run_feddle("resume", out, "-q")
    assert resumed.code == 0
    assert shown == [
        *(("fedavg", i) for i in range(1, 7)),
        *(("fedbuff", i) for i in range(1, 6)),
        *(("fedbuff", i) for i in range(4, 7)),
        *(("fedasync", i) for i in range(1, 7)),
    ], "finished runs are not repeated"
    assert all(name in resumed.out for name in ("fedavg", "fedbuff", "fedasync"))
    assert (out / "report.html").exists()
    assert run_feddle(*arguments, tmp_path / "whole").code == 0
    for name in ("fedavg", "fedbuff", "fedasync"):
        assert kept(out / name) == kept(tmp_path / "whole" / name)
    assert run_feddle(*arguments, out).code == 2
    (out / "compare.yaml").write_text("fedavg: 3")
    changed = run_feddle("resume", out)
    assert (changed.code, changed.err.count("\n")) == (2, 1)
    assert "compare.yaml has been changed" in changed.err


# --- when and what is written


def test_checkpoints_are_made_by_rounds_or_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    assert [r for r in range(1, 8) if Pace(3).due(r)] == [3, 6]
    assert not any(Pace(0).due(r) for r in range(1, 8))
    pace, made = Pace(None, now), []
    for second in range(400):
        now = float(second)
        if pace.due(1):
            made.append(second)
            with pace.making():
                now += 2 if len(made) == 1 else 7
    # a minute after the start; that one takes 2 s, so a minute after its end at 62; that one takes 7 s, so the next is
    # due 20 × 7 = 140 s after its end at 129
    assert made == [60, 122, 269]


def test_unchanged_tensors_are_not_written_again(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    pinned, twin = torch.rand(2000), torch.rand(2000)
    state = {"pinned": pinned, "same": pinned, "twin": twin, "small": torch.arange(3), "empty": torch.zeros(0)}
    checkpoint.save(state, {"round": 1})
    first = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert len(first) == 3, "pinned, twin, and one for the small ones"
    twin.add_(1)
    checkpoint.save(state, {"round": 2})
    second = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    assert len(second) == 3
    assert len(first.items() & second.items()) == 2, "the same files, untouched"
    saved = Checkpoint(tmp_path)
    assert saved.facts() == {"round": 2}
    assert all(torch.equal(tensor, state[name]) for name, tensor in saved.state().items())
    assert saved.state().keys() == state.keys()


def test_pinned_versions_and_cached_updates_are_written_once(tmp_path: Path) -> None:
    sizes: list[int] = []
    seen: set[str] = set()

    def listener(_: Line) -> None:
        now = {path.name for path in (tmp_path / "run" / "checkpoint").glob("*.safetensors")}
        sizes.append(len(now - seen))
        seen.update(now)

    changes = {"clients": {"count": 12, "per_round": 1}, "delays": {"sigma": 20.0}, "rounds": 30}
    run_config(small("ca2fl", **changes), tmp_path / "run", listener, quiet=True)
    # of up to 12 pinned versions and 12 cached updates: the model, the small ones, the buffer, and what is new
    assert max(sizes) <= 9
    assert median(sizes) <= 6
