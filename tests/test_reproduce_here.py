"""Data and models that a grid finds on this machine, and the hashes of their content."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from feddle.data import options, source
from feddle.data.source import files_hash
from feddle.grids.cells import data_hashes, plan
from feddle.grids.grid import Cell, load_grid
from feddle.models.weights import ModelFolder
from feddle.run.load import parse_config
from feddle.run.problem import build_problem
from test_official import write_imagenet
from test_own_data import table
from tiny import tiny

CNN = "results-out-domain-cnn"
SETTING = "cnn/fashion-mnist/dir0.1/sigma20"


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "cache"))
    for cached in (source.place_hash, options._table_hash):
        cached.cache_clear()


def cell(name: str, table: str = CNN) -> Cell:
    return next(cell for cell in load_grid(table, quick=True).cells if cell.name == name)


def aged(folder: Path) -> Path:
    """Make the files of a folder a minute old, and return the folder."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 60,) * 2)
    return folder


# Locations


def test_a_folder_of_imagenet_is_used_by_the_cells_that_it_guides(tmp_path: Path) -> None:
    named = [f"data.server.folder={write_imagenet(tmp_path / 'ilsvrc')}"]
    guided = plan(cell(f"{SETTING}/feddle-ood"), named)
    assert guided.config is not None
    assert (guided.config.data.server.name, guided.substitute, guided.changed) == ("imagenet", "", ())
    own = cell(f"{SETTING}/feddle-id")
    assert plan(own, named) == plan(own)
    missing = plan(cell(f"{SETTING}/feddle-ood"), ["data.server.folder=/missing"])
    assert missing.config is None
    assert "there is no folder /missing" in missing.reason


def test_a_custom_guide_is_a_substitute() -> None:
    planned = plan(cell(f"{SETTING}/feddle-ood"), ["data.server.name=mnist"])
    assert planned.substitute == "MNIST guides instead of ImageNet"
    assert planned.changed == ("data.server.name=mnist",)


def test_a_small_copy_of_imagenet_guides_with_all_of_its_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=np.zeros((60, 16, 16), np.uint8), labels=np.arange(60) % 3)
    server = {"name": "imagenet", "folder": str(write_imagenet(tmp_path / "ilsvrc")), "samples": 250_000}
    data = {"name": "npz", "path": str(tmp_path / "mine.npz"), "image_size": 28, "server": server}
    federation = build_problem(parse_config({"data": data, "clients": {"count": 2, "per_round": 1}}))
    assert federation.server is not None
    assert len(federation.server) == 18


def test_a_model_is_also_searched_for_next_to_the_fetched_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vit = next(c for c in load_grid("results-cifar10").cells if c.name == "vit-b16-lora/cifar10/center")
    kept = tmp_path / "cache" / "weights" / "vit-b16"
    reason = plan(vit).reason
    assert f"there is no folder {tmp_path / 'vit-b16'}" in reason
    assert f"name in {kept.parent}" in reason
    kept.mkdir(parents=True)
    assert plan(vit).config is not None
    assert ModelFolder("vit-b16").place == kept
    (tmp_path / "vit-b16").mkdir()
    assert ModelFolder("vit-b16").place == Path("vit-b16")  # the working directory comes first


def test_custom_data_can_be_the_clients(tmp_path: Path) -> None:
    own = cell(f"{SETTING}/fedbuff")
    here = plan(own, ["data.name=csv", f"data.path={table(tmp_path / 'csv')}"])
    assert here.config is not None
    assert "there is no regular file /nowhere.csv" in plan(own, ["data.name=csv", "data.path=/nowhere.csv"]).reason


# Hashes


def test_files_are_read_once_for_their_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").write_text("one")
    files = [folder / "a"]
    fresh = files_hash(folder, files)  # not cached: a file written just now may change within one tick of the clock
    first = files_hash(aged(folder), files)
    assert first == fresh
    with monkeypatch.context() as patch:
        patch.setattr(source, "_read_all", None)
        assert files_hash(folder, files) == first
    (folder / "a").write_text("two")
    assert files_hash(folder, files) != first


def test_a_replaced_file_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    status = (aged(tmp_path) / "a").stat()
    first = files_hash(tmp_path, [tmp_path / "a"])
    (tmp_path / "a").write_text("two")
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert files_hash(tmp_path, [tmp_path / "a"]) != first


def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    (tmp_path / "a").write_text("one")
    assert len(files_hash(tmp_path, [tmp_path / "a"])) == 64


@pytest.mark.parametrize("what", ["table", "image"])
def test_the_hash_of_custom_data_depends_on_its_content(tmp_path: Path, what: str) -> None:
    path = table(tmp_path / "csv")
    config = tiny(data={"name": "csv", "path": str(path)})
    before = data_hashes(config)
    changed = path if what == "table" else next(path.parent.rglob("*.png"))
    changed.write_bytes(changed.read_bytes() + b"\n")
    options._table_hash.cache_clear()
    assert before.keys() == data_hashes(config).keys() == {"csv"}
    assert before != data_hashes(config)


def test_two_data_sets_of_one_kind_have_separate_hashes(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        np.savez(tmp_path / f"{name}.npz", images=np.zeros((6, 8, 8), np.uint8), labels=np.arange(6) % 2, name=name)
    places = {name: {"name": "npz", "path": str(tmp_path / f"{name}.npz")} for name in ("ours", "theirs")}
    found = data_hashes(tiny(data={**places["ours"], "server": places["theirs"]}))
    assert found.keys() == {"npz", "npz of the server"}
    assert len(set(found.values())) == 2


def test_the_hash_of_a_custom_model_depends_on_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "vit"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = tiny(model={"name": "transformers", "path": str(folder)})
    held = config.model.weights()
    assert held is not None
    first = held.digest()
    (folder / "config.json").write_text("{ }")
    source.place_hash.cache_clear()
    assert first is not None
    assert held.digest() not in (None, first)
    assert tiny().model.weights() is None
