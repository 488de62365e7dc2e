"""Anchors that are kept on disk: worked examples, properties, and runs."""

import errno
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import feddle
from command import Completed, run_feddle
from feddle.core import streamed
from feddle.core.atlas import Atlas, FloatRows
from feddle.core.blocks import Blocks, Segment
from feddle.core.errors import FeddleError, StoppedError
from feddle.core.messages import Job
from feddle.core.streamed import StreamedRows
from feddle.core.tensorfile import add_name, file_of, map_vector, read_part, write_vector
from feddle.run.checkpoint import Checkpoint, sha256_of
from feddle.run.folder import RunFolder, resume_run, run_config
from killing import kept, small

A, B = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 0.0, -10.0])


@pytest.fixture
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamedRows:
    """Two rows of three numbers, of which one column is in memory at a time."""
    monkeypatch.setattr(streamed, "_STEP", 1)
    rows = StreamedRows.empty(tmp_path / "rows", 2, 3, memory=8)
    assert rows.files.width == 1
    rows.put(0, A)
    rows.put(1, B)
    return rows


# --- worked out by hand


def test_a_vector_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_vector(path, A)
    assert torch.equal(load_file(path)["tensor"], A)
    part = torch.zeros(2)
    read_part(path, 3, 1, part)
    assert part.tolist() == [2.0, 3.0]
    mapped = map_vector(path)
    assert torch.equal(mapped, A)
    assert file_of(mapped) == path
    assert file_of(mapped + 0) is file_of(A) is None
    with pytest.raises(OSError, match="ends before its vector does"):
        read_part(path, 3, 2, part)


def test_a_second_name_is_the_same_file_or_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    write_vector(path, A)
    add_name(path, tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").samefile(path)

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    add_name(path, tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == path.read_bytes()
    assert not (tmp_path / "c.safetensors").samefile(path)
    assert not list(tmp_path.glob("*.partial"))


def test_products_column_by_column(narrow: StreamedRows) -> None:
    # (1, 1, 1) + 2·(1, 2, 3) + 3·(10, 0, −10)
    assert narrow.combine(torch.ones(3), torch.tensor([2.0, 3.0])).tolist() == [33.0, 5.0, -23.0]
    # 1·1 + 2·10 + 3·100, and 10·1 − 10·100
    assert narrow.project(torch.tensor([1.0, 10.0, 100.0])).tolist() == [321.0, -990.0]
    # with a coefficient for the first number and one for the other two: (2·1 + 3·10, 5·2 + 7·0, 5·3 − 7·10)
    two = Blocks(("first", "rest"), (Segment(0, 1, 1, 0), Segment(1, 1, 2, 1)))
    assert narrow.combine(torch.zeros(3), torch.tensor([[2.0, 5.0], [3.0, 7.0]]), two).tolist() == [32.0, 10.0, -55.0]
    assert narrow.project(torch.tensor([1.0, 10.0, 100.0]), two).tolist() == [[1.0, 320.0], [10.0, -1000.0]]


def test_a_range_cuts_segments() -> None:
    # six numbers as 3 × 2: the range from 1 to 5 has half of row 0, row 1 and half of row 2
    whole = Segment(0, 3, 2, 4)
    assert list(whole.within(1, 5)) == [Segment(0, 1, 1, 4), Segment(1, 1, 2, 5), Segment(3, 1, 1, 6)]
    assert list(whole.within(2, 6)) == [Segment(0, 2, 2, 5)]
    assert list(whole.within(0, 6)) == [whole]
    assert list(whole.within(6, 9)) == []
    assert list(Segment(10, 1, 5, 0).within(0, 12)) == [Segment(10, 1, 2, 0)]


def test_rows_with_zero_coefficients_are_not_read(narrow: StreamedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(path: Path, size: int, start: int, out: torch.Tensor) -> None:
        read.append(path.stem)
        read_part(path, size, start, out)

    monkeypatch.setattr(streamed, "read_part", noted)
    assert narrow.combine(torch.ones(3), torch.tensor([0.0, 1.0])).tolist() == [11.0, 1.0, -9.0]
    assert read == ["1", "1", "1"]


def test_files_are_created_and_removed_with_their_rows(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "0.safetensors").write_bytes(b"left by a process that was killed")
    rows = StreamedRows.empty(folder, 2, 3, memory=1000)
    assert len(list(folder.iterdir())) == 1, "no file is changed before the first row is written"
    rows.put(0, A)
    rows.put(1, B)
    rows.put(0, B)
    assert sorted(path.name for path in folder.iterdir()) == ["1.safetensors", "2.safetensors"]
    assert rows.project(torch.ones(3)).tolist() == [0.0, 0.0]
    del rows
    gc.collect()
    assert not folder.exists()


def test_the_error_for_too_little_memory_says_how_much_is_needed(tmp_path: Path) -> None:
    expected = r"method\.storage: 0\.001 MB of memory is not enough for 100 anchors; set memory to 0\.41 or more"
    with pytest.raises(FeddleError, match=expected):
        StreamedRows.empty(tmp_path, 100, 10_000, memory=1000)


# --- properties


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(0, 6),
    width=st.sampled_from([1, 7, 1023, 1024, 1025, 3000, 5000]),
    windows=st.sampled_from([1, 2, 10]),
    seed=st.integers(0, 99),
)
def test_products_equal_those_of_the_matrix(
    tmp_path_factory: pytest.TempPathFactory, count: int, width: int, windows: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(count, width, generator=generator) - 0.5
    vector = torch.rand(width, generator=generator) - 0.5
    memory = 4 * (count + 2) * max(min(1024, width), -(-width // windows))
    rows = StreamedRows.empty(tmp_path_factory.mktemp("rows") / "a", count + 2, width, memory)
    for row, anchor in enumerate(matrix):
        rows.put(row, anchor)
    exact, active = FloatRows(matrix), rows.first(count)
    lines = max(1, width // 100)
    cut = width - width % lines
    blocks = Blocks(
        ("body", *map(str, range(lines))),
        tuple(part for part in (Segment(0, lines, cut // lines, 1), Segment(cut, 1, width - cut, 0)) if part.width),
    )
    for used in (None, blocks):
        shape = (count,) if used is None else (count, len(blocks))
        coefficients = torch.randn(shape, generator=generator)
        coefficients[: count // 2] = 0.0
        pairs = [
            (active.combine(vector, coefficients, used), exact.combine(vector, coefficients, used)),
            (active.project(vector, used), exact.project(vector, used)),
        ]
        for got, expected in pairs:
            if rows.files.width >= width:
                assert torch.equal(got, expected), "in one window, the operations are the same"
            assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_links_the_files_and_does_not_copy_them(tmp_path: Path) -> None:
    size, checkpoint = 2000, Checkpoint(tmp_path / "checkpoint")
    atlas, again = (
        Atlas(3, size, rows=StreamedRows.empty(tmp_path / "checkpoint" / name, 3, size, 10**6)) for name in "ab"
    )
    for number in range(3):
        atlas.insert(Job(number, 0, 0), torch.full((size,), number + 1.0))
    checkpoint.save(atlas.state_dict(), {"round": 1})
    first = {path.name: path.stat().st_ino for path in tmp_path.glob("checkpoint/*.safetensors")}
    assert {path.stat().st_ino for path in tmp_path.glob("checkpoint/a/*")} < set(first.values())
    # an anchor that is evicted stays in the checkpoint until the next one is complete
    atlas.score(torch.tensor([[0.1], [0.2], [0.3]]))
    atlas.insert(Job(3, 0, 1), torch.full((size,), 4.0))
    assert len(list(tmp_path.glob("checkpoint/a/*"))) == 3
    again.load_state_dict(Checkpoint(tmp_path / "checkpoint").state())
    assert again.active().project(torch.ones(size)).tolist() == [2000.0, 4000.0, 6000.0]
    assert {path.stat().st_ino for path in tmp_path.glob("checkpoint/b/*")} < set(first.values()), "no copies either"
    checkpoint.save(atlas.state_dict(), {"round": 2})
    second = {path.name: path.stat().st_ino for path in tmp_path.glob("checkpoint/*.safetensors")}
    assert len(first.items() & second.items()) == 2, "of four files: the small tensors and one anchor are new"
    again.load_state_dict(Checkpoint(tmp_path / "checkpoint").state())
    assert again.active().project(torch.ones(size)).tolist() == [8000.0, 4000.0, 6000.0]


def test_a_checkpoint_does_not_read_the_files_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, rows = Checkpoint(tmp_path / "kept"), StreamedRows.empty(tmp_path / "rows", 2, 2000, 10**6)
    rows.put(0, torch.ones(2000))
    checkpoint.save(rows.saved(1), {"round": 1})
    rows.put(1, torch.zeros(2000))
    hashed: list[Path] = []

    def noted(path: Path) -> str:
        hashed.append(path)
        return sha256_of(path)

    monkeypatch.setattr("feddle.run.checkpoint.sha256_of", noted)
    checkpoint.save(rows.saved(2), {"round": 2})
    assert [path.name for path in hashed] == ["1.safetensors"]


# --- runs


def test_a_run_that_fits_in_one_window_is_bit_identical(tmp_path: Path) -> None:
    for name, storage in {"memory": "float32", "disk": "disk"}.items():
        run_config(small("feddle", options={"storage": storage}), tmp_path / name, quiet=True)
    assert kept(tmp_path / "disk") == kept(tmp_path / "memory"), "and nothing is left on the disk"


def test_several_windows_give_nearly_the_same_coefficients(tmp_path: Path) -> None:
    histories = []
    for name, storage in {"memory": "float32", "disk": {"name": "disk", "memory": 0.03}}.items():
        config = small("feddle", rounds=3, options={"storage": storage, "coefficients": "layer"})
        histories.append(run_config(config, tmp_path / name, quiet=True).history)
    for exact, near in zip(*histories, strict=True):
        assert np.allclose(exact.get("coefficients", []), near.get("coefficients", []), atol=1e-4)


@pytest.mark.parametrize("search", ["paper", "annealed", "lbfgs", "sgd"])
@pytest.mark.parametrize("coefficients", ["shared", "class"])
@pytest.mark.parametrize("objective", ["task", "surrogate", "distil"])
def test_every_search_and_objective(tmp_path: Path, search: str, coefficients: str, objective: str) -> None:
    method = {"coefficients": coefficients, "search": search, "objective": objective, "server_anchor": {"epochs": 1}}
    histories = [in_python(tmp_path, {**method, "storage": storage}).history for storage in ("float32", "disk")]
    assert histories[0] == histories[1]
    assert not list(tmp_path.iterdir())


def in_python(scratch: Path | None, method: dict[str, Any]) -> feddle.Run[Any]:
    examples = TensorDataset(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    torch.manual_seed(0)
    return feddle.simulate(
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
        [examples, examples],
        server=examples,
        test=examples,
        per_round=2,
        rounds=4,
        method={"name": "feddle", "atlas_size": 3, **method},
        delays={"sigma": 1},
        workers=0,
        scratch=scratch,
    )


def test_a_folder_is_required() -> None:
    with pytest.raises(FeddleError, match=r"method\.storage: disk requires a folder .* pass out= or scratch="):
        in_python(None, {"storage": "disk"})


def test_a_full_disk_is_reported_in_one_line_and_the_run_can_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = small("feddle-on-disk"), tmp_path / "run"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    left = 12

    def until_full(path: Path, vector: torch.Tensor) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_vector(path, vector)

    with monkeypatch.context() as patched:
        patched.setattr(streamed, "write_vector", until_full)
        result = run_feddle("run", file, "-q", "--out", out)
    location = f"{out}/checkpoint/anchors: No space left on device; free some space"
    assert result == Completed(
        2,
        "",
        f"feddle: cannot write an anchor (7 anchors take 3.54e-05 GB) to {location}; to continue once that is fixed: "
        f"feddle resume {out}\n",
    )
    assert RunFolder(out).saved_rounds() > 0
    assert not list(out.rglob("anchors"))
    resume_run(out, quiet=True)
    run_config(config, tmp_path / "whole", quiet=True)
    assert kept(out) == kept(tmp_path / "whole")


def test_a_missing_file_is_reported_in_one_line(tmp_path: Path) -> None:
    rows = StreamedRows.empty(tmp_path / "rows", 1, 3, memory=1000)
    rows.put(0, A)
    (tmp_path / "rows" / "0.safetensors").unlink()
    with pytest.raises(StoppedError, match=r"cannot read the anchors in .*rows: No such file"):
        rows.project(A)
