"""Which folder a command may write to, and what a start that fails or is killed leaves there."""

import shutil
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml

from command import Completed, run_feddle
from feddle.core.errors import FeddleError
from feddle.flower.run import check_no_simulation
from feddle.grids.cells import Task, is_done, run_task
from feddle.methods.client_cache import ClientCache
from feddle.run.folder import RunFolder, check_free, resume_run, run_config
from feddle.run.run import Line
from killing import kept, small
from tiny import TINY, tiny

TABLE = "results-out-domain-cnn"
COMMANDS = {
    "run": ["run", "FILE", "-q"],
    "compare": ["compare", "FILE", "-q"],
    "reproduce": ["reproduce", TABLE, "--quick", "--cells", "cnn/fashion-mnist/dir0.1/sigma20/fedbuff", "-q"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**TINY, "rounds": 2, "workers": 0, "method": "fedbuff"}))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def command(name: str, file: Path, out: Path) -> Completed:
    return run_feddle(*(str(file) if word == "FILE" else word for word in COMMANDS[name]), "--out", out)


def stopped_run(folder: Path) -> None:
    def stop(line: Line) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(small("fedbuff"), folder, stop, quiet=True)


def fill(kind: str, folder: Path, file: Path) -> None:
    """Put a run, a comparison, a grid or a federation in a folder."""
    if kind == "stopped run":
        stopped_run(folder)
    elif kind == "run":
        assert command("run", file, folder).code == 0
    elif kind == "comparison":
        assert run_feddle("compare", file, "-q", "--methods", "fedbuff", "--out", folder).code == 0
    else:
        names = {"grid": "grid.json", "federation": "config.yaml"}
        folder.mkdir()
        text = '{"grid": "atlas-size", "quick": false, "cells": {}}' if kind == "grid" else "federation: {}"
        (folder / names[kind]).write_text(text)


KINDS = ["stopped run", "run", "comparison", "grid", "federation"]


@pytest.mark.parametrize(("name", "kind"), list(product(COMMANDS, KINDS)))
def test_commands_refuse_a_folder_that_holds_something_else(name: str, kind: str, tmp_path: Path, file: Path) -> None:
    out = tmp_path / "out"
    fill(kind, out, file)
    before = content(out)
    refused = command(name, file, out)
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused.text
    expected = "holds full runs of atlas-size" if (name, kind) == ("reproduce", "grid") else "already holds a"
    assert f"{out} {expected}" in refused.err
    assert "with --out" in refused.err
    assert content(out) == before
    if kind == "stopped run":
        resume_run(out, quiet=True)
        assert kept(out)
    with nullcontext() if kind == "federation" else pytest.raises(FeddleError, match="not a federation"):
        check_no_simulation(out)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "file_name",
    ["model.safetensors", "report.html", "client-updates.f32", "checkpoint/x.safetensors", "notes.txt", ".hidden"],
)
def test_the_files_of_a_user_are_never_replaced(name: str, file_name: str, tmp_path: Path, file: Path) -> None:
    path = tmp_path / "out" / file_name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    refused = command(name, file, tmp_path / "out")
    first = file_name.partition("/")[0]
    assert refused == Completed(
        2, "", f"feddle: {tmp_path / 'out'} is not empty (it holds {first}); name a new or empty folder with --out\n"
    )
    assert content(tmp_path / "out") == {file_name: b"mine"}


def test_the_root_of_the_disk_is_not_empty() -> None:
    # a direct call, because a command that is not refused would write there
    with pytest.raises(FeddleError, match="/ is not empty"):
        check_free(Path("/"))


@pytest.mark.parametrize("left", ["", "checkpoint/lock", "config.yaml.partial", "compare.yaml.partial"])
@pytest.mark.parametrize("name", ["run", "compare"])
def test_files_of_an_interrupted_start_do_not_prevent_the_next(
    name: str, left: str, tmp_path: Path, file: Path
) -> None:
    path = tmp_path / "out" / left
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if left else path.mkdir()
    done = command(name, file, tmp_path / "out")
    assert done.code == 0, done.err


def test_tracking_starts_in_an_empty_folder(tmp_path: Path, file: Path) -> None:
    done = run_feddle("run", file, "-q", "--track", "tensorboard", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert len(list((tmp_path / "out" / "tensorboard").iterdir())) == 1


def test_a_second_comparison_gets_a_new_folder_by_default(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = run_feddle("compare", file, "-q", "--methods", "fedbuff", "-o", "rounds=1")
        assert done.code == 0, done.err
    assert "runs/config-2/report.html" in done.out
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["config", "config-2"]


def test_a_cache_on_disk_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "client-updates.f32").write_text("mine")
    cache = ClientCache(3, 5, limit=1, folder=tmp_path)
    cache.put(1, torch.arange(5.0))
    assert cache[1].tolist() == [0, 1, 2, 3, 4]
    assert content(tmp_path) == {"client-updates.f32": b"mine"}


def test_a_cache_in_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FeddleError, match=r"cannot keep the last updates .*: Not a directory; name another folder"):
        ClientCache(3, 5, limit=1, folder=tmp_path / "file" / "inside")


# --- killed while finishing


def test_a_run_killed_while_finishing_is_completed_by_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_run(out)
    left = shutil.copytree(out / "checkpoint", tmp_path / "left")
    resume_run(out, quiet=True)
    shutil.copytree(left, out / "checkpoint")  # as if it had been killed after result.json
    before = content(tmp_path / "run")["result.json"]
    resumed = run_feddle("resume", out, "-q")
    assert (resumed.code, resumed.err) == (0, "")
    assert f"Report: {out / 'report.html'}" in resumed.out
    assert sorted(p.name for p in out.iterdir()) == [
        "config.yaml",
        "data.json",
        "history.jsonl",
        "model.safetensors",
        "report.html",
        "result.json",
    ]
    assert content(out)["result.json"] == before
    assert run_feddle("resume", out) == Completed(0, f"{out} is finished; there is nothing to resume\n", "")


def test_a_cell_killed_while_finishing_is_completed(tmp_path: Path) -> None:
    task = Task("a", tmp_path / "a", tiny(workers=0, rounds=2))
    run_task(task, lambda _: None)
    assert is_done(task)
    (tmp_path / "a" / "checkpoint").mkdir()
    assert not is_done(task)
    assert run_task(task, lambda _: None).reason == ""
    assert is_done(task)
    assert not (tmp_path / "a" / "checkpoint").exists()


# --- impossible comparisons


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.server.samples=0", "feddle uses the server's data, but there is none"),
        ("clients={count: 3000, per_round: 3000}", "clients have data, but clients.per_round"),
        ("data.name=mars", "unknown data set 'mars'"),
        ("data.server.samples=100000", "server"),
        ("data.channels=2", "data.channels"),
    ],
)
def test_an_impossible_comparison_creates_no_folder(override: str, message: str, tmp_path: Path, file: Path) -> None:
    out, methods = tmp_path / "all", ("--methods", "fedbuff,feddle")
    refused = run_feddle("compare", file, "-q", *methods, "-o", override, "--out", out)
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused.text
    assert message in refused.err
    assert not out.exists()
    assert run_feddle("compare", file, "-q", *methods, "--out", out).code == 0


def test_a_comparison_with_a_cache_on_disk(tmp_path: Path, file: Path) -> None:
    method = "method={name: ca2fl, cache_limit: 0.001}"
    done = run_feddle("compare", file, "-q", "-o", method, "--methods", "ca2fl", "--out", tmp_path / "all")
    assert done.code == 0, done.err
    assert RunFolder(tmp_path / "all" / "ca2fl").is_finished()


def test_resume_of_a_grid_names_the_command_that_continues_it(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text("{}")
    refused = run_feddle("resume", tmp_path)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"{tmp_path} holds a grid; to continue it: repeat its `feddle reproduce` command" in refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "empty.yaml", "-o", "metrics=f1_macro"],
            "metrics: expected a list such as [f1_macro], got 'f1_macro'",
        ),
        (
            ["run", "empty.yaml", "-o", "method=bug:"],
            "method: expected an import path such as mypackage.module:Name, got 'bug:'",
        ),
        (["report", __file__], "expected a run folder, but it is a file"),
    ],
)
def test_errors_name_the_wrong_argument(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.yaml").touch()
    refused = run_feddle(*arguments)
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused.text
    assert message in refused.err
