"""A search that several processes share: worked examples, properties, runs, and errors."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from command import run_feddle, run_process, wait_for_end
from feddle.core.atlas import FloatRows, SearchSpace
from feddle.core.blocks import Blocks, Segment
from feddle.core.errors import StoppedError
from feddle.core.layout import Weights
from feddle.core.ranks import EndError, Ranks
from feddle.core.streamed import StreamedRows
from feddle.run.checkpoint import MANIFEST
from feddle.run.folder import RunFolder, resume_run, run_config
from feddle.training.ranked import Member, ShardedRows, SharedObjective, follow
from feddle.training.search import AnnealedSearch, LbfgsSearch, PaperSearch, SearchTask, SgdSearch
from killing import METHODS, kept, small
from many_ranks import environment, feddle_ranks, free_port, in_ranks, results_of
from needs import linux
from test_resume import CutError, cut_after, stop_at
from three_numbers import Targets, weights
from waiting import cpu_times, patient, wait_until

pytestmark = [linux, patient]


def member_of(ranks: Ranks, capacity: int, targets: Tensor, blocks: Blocks | None = None) -> Member:
    size = targets.shape[1]
    own = FloatRows.empty(len(range(ranks.rank, capacity, ranks.size)), size)
    return Member(ranks, own, Targets(targets), blocks, weights(*[0.0] * size))


def lead_or_follow(
    ranks: Ranks, member: Member, folder: Path, capacity: int
) -> tuple[ShardedRows, SharedObjective] | None:
    """Return the rows and the objective at rank 0. The other ranks follow until rank 0 ends the search."""
    if ranks.rank == 0:
        files = StreamedRows.empty(folder / "rows", capacity, len(member.size.vector), 10**6)
        ranks.agree({})
        return ShardedRows(member, files, capacity), SharedObjective(member)
    ranks.agree({})
    with pytest.raises(EndError):
        follow(member)
    return None


# --- worked out by hand


def test_two_ranks_worked_out(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> Any:
        targets = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 6.0, 0.0]])
        both = lead_or_follow(ranks, member_of(ranks, 2, targets), tmp_path, 2)
        if both is None:
            return "followed"
        rows, objective = both
        rows.put(0, torch.tensor([1.0, 2.0, 3.0]))  # at rank 0
        rows.put(1, torch.tensor([10.0, 0.0, -10.0]))  # at rank 1
        objective.begin(weights(0.0, 0.0, 0.0), 0)
        point = rows.combine(torch.ones(3), torch.tensor([2.0, 3.0]))
        loss, gradient = objective.loss_and_gradient(Weights(point, torch.zeros(0)), torch.tensor([0, 1, 2]))
        found = point.tolist(), loss, gradient.tolist(), rows.project(gradient).tolist()
        other = rows.project(torch.tensor([1.0, 10.0, 100.0])).tolist()
        ranks.end(0)
        return *found, other

    (point, loss, gradient, slopes, other), followed = in_ranks(2, tmp_path, work)
    assert followed == "followed"
    assert point == [33.0, 5.0, -23.0], "(1, 1, 1) + 2·(1, 2, 3) + 3·(10, 0, −10)"
    # rank 0 has the targets (0, 0, 0) and (3, 0, 0), rank 1 has (0, 6, 0); their mean is (1, 2, 0)
    assert gradient == pytest.approx([32.0, 3.0, -23.0])
    # ½·(33² + 5² + 23²), ½·(30² + 5² + 23²), ½·(33² + 1² + 23²): 821.5, 727, 809.5
    assert loss == pytest.approx((821.5 + 727 + 809.5) / 3)
    assert slopes == pytest.approx([32 + 6 - 69, 320 + 230])
    assert other == [321.0, -990.0]


# --- properties


def compared(folder: Path, seed: int, ranks: Ranks) -> dict[str, float]:
    """The largest difference of ĉ between one rank and several, by search."""
    generator = torch.Generator().manual_seed(seed)
    capacity, size = ranks.size + seed % 4, 30
    matrix, targets = torch.randn(capacity, size, generator=generator), torch.randn(7, size, generator=generator)
    blocks = Blocks(("a", "b", "c"), (Segment(0, 1, 10, 0), Segment(10, 2, 10, 1))) if seed % 2 else None
    member = member_of(ranks, capacity, targets, blocks)
    both = lead_or_follow(ranks, member, folder / str(seed), capacity)
    if both is None:
        return {}
    rows, objective = both
    for row, anchor in enumerate(matrix):
        rows.put(row, anchor)
    count = max(1, capacity - seed % 3)
    worst: dict[str, float] = {}
    for search in (PaperSearch(batch_size=2), AnnealedSearch(epochs=2, batch_size=3), LbfgsSearch(), SgdSearch()):
        found = []
        for anchors, loss in ((rows.first(count), objective), (FloatRows(matrix[:count]), Targets(targets))):
            space = SearchSpace(weights(*[0.5] * size), anchors, torch.full((count,), 0.7), blocks)
            start = space.in_every_block(torch.full((count,), 0.1))
            loss.begin(space.point(start), 0)
            found.append(search(SearchTask(space, loss, start, regularisation=0.1, seed=seed)))
        worst[search.name] = float((found[0].coefficients - found[1].coefficients).abs().max())
    ranks.end(0)
    ranks.agreed = False
    return worst


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_number_of_ranks_finds_the_same_coefficients(tmp_path: Path, count: int) -> None:
    found = in_ranks(count, tmp_path, lambda ranks: [compared(tmp_path, seed, ranks) for seed in range(6)])
    # near a minimum, a line search cannot distinguish losses that differ by rounding (1e-7), so ĉ may differ by √1e-7
    bounds = {"paper": 1e-5, "annealed": 1e-5, "sgd": 1e-5, "lbfgs": 2e-3}
    assert all(value < bounds[search] for each in found[0] for search, value in each.items()), found[0]


# --- runs


def config_file(folder: Path, method: str, **changes: Any) -> Path:
    config = small(method, **changes)
    file = folder / f"{method}.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return file


QUICK = ("feddle", "feddle+", "feddle-distil")
SEARCHING = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name, method in METHODS.items()
    if method["name"] in ("feddle", "feddle+") and "disk" not in name
]


def coefficients(folder: Path) -> list[list[float]]:
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [line.get("coefficients", []) for line in lines]


def close(found: Path, expected: Path) -> bool:
    pairs = list(zip(coefficients(found), coefficients(expected), strict=True))
    return all(a == pytest.approx(b, abs=2e-3) for a, b in pairs)


@pytest.mark.parametrize("method", SEARCHING)
def test_two_ranks_run_every_kind_of_search(tmp_path: Path, method: str) -> None:
    file, out = config_file(tmp_path, method, rounds=4), tmp_path / "run"
    arguments = ("run", file, "-q", "--out", out)
    with feddle_ranks(tmp_path, arguments, arguments) as children:
        first, second = results_of(tmp_path, children)
    assert (first.code, first.err) == (0, "")
    assert "Report: " in first.out
    assert (second.code, second.text) == (0, "")
    assert sorted(path.name for path in (tmp_path / "rank-1").iterdir()) == ["stderr", "stdout"], "it writes no files"
    (out / "report.html").unlink()
    kept(out)
    run_config(small(method, rounds=4), tmp_path / "one", quiet=True)
    assert close(out, tmp_path / "one")


def test_a_run_continues_with_any_number_of_ranks(tmp_path: Path) -> None:
    run_config(small("feddle"), tmp_path / "whole", quiet=True)
    out = tmp_path / "run"
    cut_after(3, out, "feddle", checkpoint={"every": 3})
    for count in (3, 2):
        with feddle_ranks(tmp_path, *[("resume", out, "-q")] * count) as children:
            if count == 3:
                wait_until(lambda: RunFolder(out).saved_rounds() == 6, "the next checkpoint", out)
                os.kill(children[0], signal.SIGKILL)
            codes = [result.code for result in results_of(tmp_path, children)]
        assert codes == ([-9, 2, 2] if count == 3 else [0, 0])
    assert close(out, tmp_path / "whole")


@pytest.mark.parametrize("who", ["another rank is killed", "torchrun stops rank 0"])
def test_a_run_stops_if_a_rank_dies_and_can_be_resumed(tmp_path: Path, who: str) -> None:
    file, out = config_file(tmp_path, "feddle", rounds=100_000), tmp_path / "run"
    with feddle_ranks(tmp_path, *[("run", file, "-q", "--out", out)] * 3) as children:
        wait_until((out / "checkpoint" / MANIFEST).exists, "a checkpoint", out)
        if who == "torchrun stops rank 0":
            os.kill(children[0], signal.SIGTERM)
        else:
            os.kill(children[2], signal.SIGKILL)
        first, second, third = results_of(tmp_path, children)
    assert (first.code, first.out, first.err.count("\n")) == (2, "", 1), first.text
    assert "rank" in first.err
    assert first.err.endswith(f"to continue once that is fixed: feddle resume {out}\n")
    assert (second.code, second.text) == (2, "")
    assert third.text == ""
    with pytest.raises(CutError):
        resume_run(out, partial(stop_at, RunFolder(out).saved_rounds() + 2), quiet=True)


# --- bad use


def refused(folder: Path, *commands: Sequence[str | Path]) -> str:
    """Return the error line of rank 0; the other ranks print nothing."""
    with feddle_ranks(folder, *commands) as children:
        first, *others = results_of(folder, children)
    assert (first.code, first.out, first.err.count("\n")) == (2, "", 1), first.text
    assert [(other.code, other.text) for other in others] == [(2, "")] * len(others)
    assert not (folder / "run").exists()
    return first.err


BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "a method that does not search": (
        "fedbuff",
        {},
        2,
        "share the search of feddle and feddle+, but the method is fedbuff",
    ),
    "convex": ("convex", {}, 2, "but the method is convex; start one process"),
    "more ranks than anchors": (
        "feddle",
        {"options": {"atlas_size": 2}},
        3,
        "at most one rank per anchor, 2, but there are 3",
    ),
    "anchors on disk": ("feddle-on-disk", {}, 2, "method.storage: disk is for a single process"),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_use_is_reported_in_one_line_by_rank_0(tmp_path: Path, reason: str) -> None:
    method, changes, count, text = BAD[reason]
    file = config_file(tmp_path, method, **changes)
    assert text in refused(tmp_path, *[("run", file, "-q", "--out", tmp_path / "run")] * count)


def test_ranks_with_different_configs_are_refused(tmp_path: Path) -> None:
    file, out = config_file(tmp_path, "feddle"), ("-q", "--out", tmp_path / "run")
    other = ("run", file, "-o", "method.atlas_size=8", *out)
    error = refused(tmp_path, ("run", file, *out), ("run", file, *out), other)
    assert (
        error
        == "feddle: rank 2 has another config than rank 0; start all ranks with the same command, files and versions\n"
    )


def test_a_rank_without_its_config_is_reported(tmp_path: Path) -> None:
    file, out = config_file(tmp_path, "feddle"), ("-q", "--out", tmp_path / "run")
    error = refused(tmp_path, ("run", file, *out), ("run", tmp_path / "missing.yaml", *out))
    assert error.startswith("feddle: rank 1: ")
    assert "missing.yaml" in error
    assert "missing.yaml" in refused(tmp_path, ("run", tmp_path / "missing.yaml", *out), ("run", file, *out))


def test_other_commands_are_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        for name, value in environment(rank, 2, 1).items():
            monkeypatch.setenv(name, value)
        result = run_feddle("compare", "x.yaml")
        assert result.code == 2
        assert (
            result.text == ""
            if rank
            else "share the search of `feddle run` or `feddle resume`, but found 2" in result.err
        )


def test_a_rank_that_does_not_answer_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "join", partial(Ranks.join, timedelta(seconds=5)))

    def work(ranks: Ranks) -> str:
        if ranks.rank:
            while not (tmp_path / "0.json").exists():
                time.sleep(0.05)
            return "silent"
        with pytest.raises(StoppedError, match="one of them has ended or does not answer") as caught:
            ranks.add(torch.ones(3))
        return str(caught.value)

    assert in_ranks(2, tmp_path, work)[1] == "silent"


ALONE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def torchrun(count: int, *arguments: str | Path) -> list[str]:
    """Return a command that starts this many ranks of `feddle ARGUMENTS`."""
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--master-port", str(free_port())]
    return [sys.executable, *start, "-m", "feddle", *map(str, arguments)]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 2])
def test_a_rank_lost_under_torchrun_is_reported_in_one_line(tmp_path: Path, killed: int) -> None:
    file, out, output = config_file(tmp_path, "feddle", rounds=100_000), tmp_path / "run", tmp_path / "output"
    command = torchrun(3, "run", file, "-q", "--out", out)
    with output.open("wb") as stream:
        process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **ALONE}, stdout=stream, stderr=stream)
    try:
        wait_until((out / "checkpoint" / MANIFEST).exists, "a checkpoint", out, details=output.read_text)
        of_rank = [pid for pid in cpu_times(os.getpid()) if f"\0RANK={killed}\0" in environment_of(pid)]
        os.kill(of_rank[0], signal.SIGKILL)
    finally:
        wait_for_end(process, output)
    lines = [line for line in output.read_text().splitlines() if line.startswith("feddle: ")]
    assert len(lines) == 1, output.read_text()
    assert ("rank 0 has ended without a message" in lines[0]) == (killed == 0)
    assert "feddle resume" in lines[0]
    with pytest.raises(CutError):
        resume_run(out, partial(stop_at, RunFolder(out).saved_rounds() + 2), quiet=True)


def environment_of(pid: int) -> str:
    try:
        return "\0" + Path(f"/proc/{pid}/environ").read_text()
    except OSError:  # it has just ended
        return ""


@pytest.mark.slow
def test_a_run_under_torchrun_matches_one_process(tmp_path: Path) -> None:
    file, out = config_file(tmp_path, "feddle"), tmp_path / "run"
    result = run_process(*torchrun(2, "run", file, "-q", "--out", out), cwd=tmp_path, env=ALONE)
    assert result.code == 0, result.text
    run_config(small("feddle"), tmp_path / "one", quiet=True)
    assert close(out, tmp_path / "one")


def test_the_other_ranks_stop_if_rank_0_fails_within_a_step(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> str:
        ranks.agree({})
        if ranks.rank == 0:
            ranks.announce(1)  # the others now wait for its numbers, not for a command
            ranks.end(2, "it was stopped")
            ranks.leave()
            return "left"
        ranks.next_command()
        with pytest.raises(StoppedError, match="one of them has ended"):
            ranks.add(torch.zeros(1))
        return "stopped"

    assert in_ranks(3, tmp_path, work) == ["left", "stopped", "stopped"]
