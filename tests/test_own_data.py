"""Custom data: tables, folders, archives and Hugging Face datasets, when they are decoded, and every mistake."""

import csv
import json
import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets as hf
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from command import run_feddle
from feddle import by_client, by_dirichlet, simulate
from feddle.core.errors import FeddleError
from feddle.data.augmentation import crop_flip
from feddle.data.collection import NOBODY, Collection, Labelled, among_drawn, held_out, ranks
from feddle.data.datasets import load
from feddle.data.examples import Images, resize
from feddle.data.options import Data, source_of
from feddle.data.pictures import Files, KeptPictures
from feddle.records import about_unused
from feddle.run.folder import run_config
from feddle.run.load import parse_config
from feddle.run.plan import Config
from feddle.run.problem import build_collection, build_problem
from feddle.run.simulate import simulated
from tiny import TINY, tiny

Row = tuple[str, ...]
COLOURS = {"amber": (240, 160, 20), "blue": (10, 30, 220), "clay": (180, 90, 70)}
# the shortest run: the smallest network, one epoch per job, no worker processes
SHORT = {
    "rounds": 2,
    "workers": 0,
    "clients": {"count": 6, "per_round": 2},
    "model": {"name": "cnn", "channels": [4, 4, 4], "hidden": 8},
    "training": {"epochs": 1, "batch_size": 8},
    "delays": {"sigma": 0},
    "evaluation": {"every": 1},
    "method": {"name": "feddle", "search": {"epochs": 1}},
}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def paint(path: Path, colour: str, shade: int = 0, size: tuple[int, int] = (30, 34)) -> None:
    """An image of a single colour, made lighter by `shade`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    red, green, blue = (min(255, part + shade) for part in COLOURS[colour])
    Image.new("RGB", size, (red, green, blue)).save(path)


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def table(folder: Path, *, clients: int = 4, each: int = 9, split: Callable[[int], str] | None = None) -> Path:
    """A CSV file of colours, `each` images per client; row i has the shade i % 15."""
    rows: list[Row] = []
    for i in range(clients * each):
        colour = list(COLOURS)[i % 3]
        paint(folder / "images" / f"{i}.png", colour, i % 15)
        rows.append((f"images/{i}.png", colour, f"hospital {i // each}", *([split(i)] if split else [])))
    return write_csv(folder / "mine.csv", ("path", "label", "client", *(["split"] if split else [])), rows)


def open_data(data: Data) -> Collection:
    return source_of(data).read()


def config_of(path: Path, name: str = "csv", data: dict[str, Any] | None = None, **changes: Any) -> Config:
    held = {"name": name, "path": str(path), "image_size": 28, **(data or {})}
    return parse_config({**SHORT, **changes, "data": held})


def all_of(examples: Any) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = examples.take(torch.arange(len(examples)))
    return inputs, targets


# --- one command


def test_one_command_runs_a_csv_of_path_label_and_client(tmp_path: Path) -> None:
    table(tmp_path)
    options = [f"-o{key}={json.dumps(value)}" for key, value in SHORT.items() if key != "clients"]
    result = run_feddle("run", "--data", "mine.csv", *options, "-odata.image_size=28")
    assert result.code == 0, result.err
    assert "mine.csv: 36 images of 3 classes, 4 clients in the data" in result.err
    folder = tmp_path / "runs" / "mine-feddle-seed0"
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert kept["clients"] == {"count": 4, "per_round": 4}
    assert kept["data"]["path"] == str(tmp_path / "mine.csv")
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [line["arrivals"] for line in history] == [4, 4]
    assert json.loads((folder / "result.json").read_text())["finished"]


@pytest.mark.parametrize(("column", "known"), [("clinic", False), ("hospital", True)])
def test_a_column_that_may_name_the_clients_is_used_or_reported(tmp_path: Path, column: str, known: bool) -> None:
    path = table(tmp_path)  # four clients
    path.write_text(path.read_text(encoding="utf-8").replace("path,label,client", f"path,label,{column}"), "utf-8")
    options = [f"-o{key}={json.dumps(value)}" for key, value in SHORT.items() if key != "clients"]
    result = run_feddle("run", "--data", "mine.csv", *options, "-odata.image_size=28", "--out", "run")
    assert result.code == 0, result.err
    unused = "the column clinic is not used; if it names the clients, set -o data.columns.client=clinic"
    assert ("4 clients in the data" in result.err) == known
    assert (f"no clients in the data, so they are simulated; {unused}\n" in result.err) == (not known)
    shown = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert (f"The clients are simulated: the data names none, and {unused}." in shown) == (not known)


def test_several_columns_without_a_role_are_reported() -> None:
    expected = (
        "the columns id and clinic are not used; if one of them names the clients, set -o data.columns.client=NAME"
    )
    assert about_unused(["id", "clinic"]) == expected
    assert not about_unused([])


def test_data_on_the_command_line_replaces_that_of_a_config(tmp_path: Path) -> None:
    table(tmp_path)
    tree = {**SHORT, "data": {"name": "digits", "folder": "/nowhere", "image_size": 28, "channels": 1}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    result = run_feddle(
        "compare", "config.yaml", "--data", "mine.csv", "--methods", "fedavg,fedbuff", "-q", "--out", "both"
    )
    assert result.code == 0, result.err
    for name in ("fedavg", "fedbuff"):
        kept = yaml.safe_load((tmp_path / "both" / name / "config.yaml").read_text())
        assert (kept["data"]["name"], kept["data"]["channels"], kept["data"]["folder"]) == ("csv", 1, None)
        assert kept["clients"]["count"] == 6  # as in the config: an upper limit


def stop(line: dict[str, Any]) -> None:
    raise InterruptedError(line["round"])


def test_a_stopped_run_continues_from_any_folder_but_not_with_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path)
    for name in ("run", "other"):
        with pytest.raises(InterruptedError):
            run_config(config_of(path, checkpoint={"every": 1}), tmp_path / name, stop)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = run_feddle("resume", "../run", "-q")
    assert result.code == 0, result.err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished"]
    path.write_text(path.read_text().replace("0.png,amber", "0.png,blue", 1))
    result = run_feddle("resume", "../other", "-q")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "the data has other labels or clients than when the checkpoint in ../other was made" in result.err


# --- mistakes: one line, exit code 2


@pytest.mark.parametrize("name", ["mine.csv", "mine.npz", "."])
def test_data_given_as_a_config_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.csv").touch()
    result = run_feddle("run", name)
    assert (result.code, result.err) == (
        2,
        f"feddle: {name} is not a config file; if it is your own data, use --data {name}\n",
    )


def broken_table(folder: Path, change: Callable[[list[list[str]]], object]) -> str:
    path = table(folder)
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    change(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return "mine.csv"


def cell(row: int, column: int, value: str) -> Callable[[list[list[str]]], None]:
    def change(rows: list[list[str]]) -> None:
        rows[row][column] = value

    return change


def only_for_the_test(rows: list[list[str]]) -> None:
    rows[0].append("split")
    for row in rows[1:]:
        row.append("test" if row[1] == "clay" else "train")


def all_in(split: str) -> Callable[[list[list[str]]], None]:
    def change(rows: list[list[str]]) -> None:
        for i, row in enumerate(rows):
            row.append(split if i else "split")

    return change


def file_with(name: str, content: bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / name).write_bytes(content)
        return name

    return write


def archive(**arrays: Any) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        np.savez(folder / "mine.npz", **arrays)
        return "mine.npz"

    return write


def folders(*names: str, images: Sequence[str] = ()) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        for name in names:
            (folder / "mine" / name).mkdir(parents=True)
        for name in images:
            paint(folder / "mine" / name, "blue")
        return "mine"

    return write


def pipe(name: str) -> Callable[[Path], str]:
    """A named pipe, which blocks whoever opens it, and images of two classes in the folder `mine`."""

    def write(folder: Path) -> str:
        folders(images=["a/1.png", "b/1.png"])(folder)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / name)
        return Path(name).parts[0]

    return write


def link(name: str, target: str) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        folders(images=["a/1.png", "b/1.png"])(folder)
        (folder / name).symlink_to(target)
        return "mine"

    return write


GREY, TWO = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
MISTAKES: dict[str, tuple[Callable[[Path], str], str]] = {
    "missing path": (lambda _: "nothing.csv", "there is no file or folder nothing.csv; correct the path"),
    "unknown ending": (
        file_with("mine.xlsx", b"x"),
        "mine.xlsx has the file extension .xlsx; expected a .csv or .npz file, a folder",
    ),
    "empty file": (file_with("mine.csv", b""), "mine.csv is empty; it needs a line of column names"),
    "header only": (file_with("mine.csv", b"path,label\n"), "mine.csv has a header but no rows"),
    "not text": (file_with("mine.csv", b"path,label\n\xff\xfe,1\n"), "cannot read"),
    "unclosed quote": (file_with("mine.csv", b'path,label\n"a,1\n'), "as a CSV file in UTF-8"),
    "missing column": (
        lambda f: broken_table(f, cell(0, 1, "lable")),
        "has no column label or class or target or y: did you mean 'lable'? It has path, lable, client; "
        "set data.columns.label to the right one",
    ),
    "missing image": (
        lambda f: broken_table(f, cell(7, 0, "images/gone.png")),
        "images/gone.png; correct its path or leave it out",
    ),
    "long name": (lambda f: broken_table(f, cell(7, 0, "x" * 300)), "there is no image file"),
    "missing label": (lambda f: broken_table(f, cell(3, 1, " ")), "line 4 has no label; fill it in"),
    "missing client": (
        lambda f: broken_table(f, cell(5, 2, "")),
        "line 6 has no client; name its client, leave it out, or set data.partition to dirichlet",
    ),
    "two columns": (lambda f: broken_table(f, cell(0, 2, "label")), "has two columns 'label'; rename one of them"),
    "short row": (lambda f: broken_table(f, lambda rows: rows[2].pop()), "line 3 has 2 values, but the header names 3"),
    "one class": (
        lambda f: broken_table(f, lambda rows: [cell(i, 1, "blue")(rows) for i in range(1, len(rows))]),
        "has only the class 'blue'; at least two classes are required",
    ),
    "class without training images": (
        lambda f: broken_table(f, only_for_the_test),
        "has no training image of the class 'clay'; add one, or remove the class",
    ),
    "unknown split": (
        lambda f: broken_table(f, all_in("tets")),
        "mine.csv has the split 'tets'; it should be train, test or server",
    ),
    "only test rows": (
        lambda f: broken_table(f, all_in("test")),
        "no row is for training; give some the split train",
    ),
    "no class folders": (folders("", images=["a.png"]), "holds no folders; it should hold one for each class"),
    "empty class": (folders("cats", images=["dogs/a.png"]), "mine/cats holds no images (.jpg, .png, …); add some, or"),
    "class only in the test": (
        folders(images=["train/a/1.png", "train/b/1.png", "test/c/1.png"]),
        "has no training image of the class 'c'",
    ),
    "a pipe among the images": (
        pipe("mine/a/x.png"),
        "mine/a/x.png is not a regular file, or a broken link; remove it",
    ),
    "a pipe in a subfolder": (
        pipe("mine/a/more/x.png"),
        "more/x.png is not a regular file, or a broken link; remove it",
    ),
    "a device": (link("mine/a/x.png", "/dev/zero"), "mine/a/x.png is not a regular file, or a broken link; remove it"),
    "a broken link": (
        link("mine/a/x.png", "gone.png"),
        "mine/a/x.png is not a regular file, or a broken link; remove it",
    ),
    "a pipe in a table": (
        lambda f: broken_table(f, cell(7, 0, pipe("mine/x.png")(f) + "/x.png")),
        "mine/x.png; correct its path or leave it out",
    ),
    "a pipe instead of a table": (lambda f: pipe("mine.csv")(f), "data.name is csv, but there is no regular file"),
    "a pipe instead of an archive": (lambda f: pipe("mine.npz")(f), "data.name is npz, but there is no regular file"),
    "nothing to hold out": (folders(images=["a/1.png", "b/1.png"]), "has too few images (2) to hold out 0.2 of them"),
    "not an archive": (file_with("mine.npz", b"PK nothing"), "as a NumPy archive without pickled objects"),
    "pickles": (
        archive(images=np.array([{}], dtype=object), labels=TWO),
        "it holds Python objects; save plain arrays of numbers or text",
    ),
    "large header": (archive(images=np.zeros(4, [("a" * 20_000, "u1")]), labels=TWO), "save plain arrays of numbers"),
    "no rows at all": (archive(images=np.uint8(1), labels=TWO), "images is a single value; it should have a row for"),
    "no row of labels": (archive(images=GREY, labels=np.int64(1)), "labels is a single value"),
    "no rows in a split": (
        archive(train_images=GREY, train_labels=TWO, test_images=np.uint8(1), test_labels=np.int64(1)),
        "test_images is a single value",
    ),
    "no labels in a split": (archive(train_images=GREY, train_labels=np.int64(1)), "train_labels is a single value"),
    "no images": (archive(images=GREY[:0], labels=TWO[:0]), "mine.npz holds no images"),
    "no height": (archive(images=GREY[:, :0], labels=TWO), "images should have the shape (n, height, width), with"),
    "no pixels": (archive(images=GREY[:, :0, :0, None], labels=TWO), "not (4, 0, 0, 1)"),
    "other arrays": (
        archive(pictures=GREY),
        "mine.npz holds no images: its arrays are pictures; it should hold images and",
    ),
    "no labels": (archive(images=GREY), "mine.npz has no labels; add an array `labels`"),
    "floats": (archive(images=GREY / 255, labels=TWO), "images should be uint8 (0 to 255), not float64"),
    "flat images": (archive(images=GREY.reshape(4, 64), labels=TWO), "not (4, 64)"),
    "too few labels": (archive(images=GREY, labels=TWO[:3]), "labels has the shape (3,), but there are 4 images"),
    "fractional labels": (archive(images=GREY, labels=TWO / 2), "labels should be whole numbers or text, not float64"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_in_one_line(tmp_path: Path, mistake: str) -> None:
    make, expected = MISTAKES[mistake]
    result = run_feddle("run", "--data", make(tmp_path), "-q")
    assert result.code == 2
    assert expected in result.err
    assert result.err.startswith("feddle: ")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@settings(max_examples=60, deadline=None)
@given(header=st.sampled_from([b"", b"path,label\n", b"path;label;client;split\n"]), rest=st.binary(max_size=80))
def test_a_random_table_is_refused_without_any_other_error(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, rest: bytes
) -> None:
    path = tmp_path_factory.mktemp("tables") / "mine.csv"
    path.write_bytes(header + rest)
    with pytest.raises(FeddleError):  # no row can name an existing image
        open_data(config_of(path).data)


def test_a_damaged_archive_is_refused_without_any_other_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, images=rng.integers(0, 256, (6, 8, 8), dtype=np.uint8), labels=np.arange(6) % 2)
    whole, refused = path.read_bytes(), 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 2):
            damaged[place] = rng.integers(256)
        path.write_bytes(bytes(damaged[: len(whole) if rng.integers(4) else rng.integers(len(whole))]))
        try:
            open_data(config_of(path, "npz").data)
        except FeddleError:
            refused += 1
    assert refused > 100
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(path)
    with pytest.raises(FeddleError, match="as a NumPy archive without pickled objects"):
        open_data(config_of(path, "npz").data)


def test_a_missing_package_is_reported_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FeddleError, match=r"needs Hugging Face's datasets; pip install 'feddle\[huggingface\]'"):
        open_data(config_of(tmp_path / "mine", "huggingface").data)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(FeddleError, match=r"which need Pillow; pip install 'feddle\[images\]'"):
        open_data(config_of(tmp_path / "mine", "images").data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def bomb(path: Path) -> None:
    """The beginning of a PNG file of 144 million pixels, about which Pillow warns."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 12_000, 12_000, 8, 0, 0, 0, 0)
    content = b"IDAT" + zlib.compress(bytes(100))
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (header, content)]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def deep(path: Path) -> None:
    Image.fromarray(np.full((30, 30), 40_000, dtype=np.uint16)).save(path)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.write_bytes(b"no image"), "(cannot identify image file); repair it or leave it out"),
        (cut, "cannot read the image"),
        (bomb, "truncated"),
        (deep, "has more than 8 bits per channel; save it with 8"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_stops_the_run_with_an_error_that_names_it(
    tmp_path: Path, damage: Callable[[Path], object], expected: str, workers: int
) -> None:
    # the split is given, so that it is a training image
    table(tmp_path, split=lambda i: "test" if i % 9 > 6 else "train")
    damage(tmp_path / "images" / "0.png")
    options = [f"-o{key}={json.dumps(value)}" for key, value in SHORT.items() if key not in ("clients", "workers")]
    result = run_feddle("run", "--data", "mine.csv", *options, "-odata.image_size=28", "-q", f"-oworkers={workers}")
    assert result.code == 2
    assert "images/0.png" in result.err
    assert expected in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"name": "csv"}, "data: csv is your own data; set path to its location"),
        ({"name": "digits", "path": "x"}, "path is for your own data, with the name csv, images, npz, huggingface"),
        (
            {"name": "npz", "path": "x", "folder": "y"},
            "npz is your own data; set path to its location; folder is only for official",
        ),
        ({"server": {"path": "x"}}, "data.server: path and folder need the name of their data set; also set name"),
        ({"server": {"name": "images"}}, "images is your own data; set path to its location"),
        ({"test_share": 1.0}, "data.test_share: input should be less than 1"),
        ({"columns": {"labels": "x"}}, "unknown key 'labels'; did you mean 'label'?"),
    ],
)
def test_invalid_options_of_data_are_errors_of_the_config(data: dict[str, Any], expected: str) -> None:
    with pytest.raises(FeddleError) as caught:
        parse_config({"data": data})
    assert expected in str(caught.value)


def test_natural_clients_need_data_that_names_them(tmp_path: Path) -> None:
    archive(images=np.zeros((8, 8, 8), np.uint8), labels=np.arange(8) % 2)(tmp_path)
    config = config_of(tmp_path / "mine.npz", "npz", {"partition": "natural"})
    with pytest.raises(
        FeddleError, match="does not say which client an image belongs to; use dirichlet or even, or add"
    ):
        build_collection(config)


def test_a_data_name_that_does_not_match_its_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        FeddleError, match=r"data.name is csv, but there is no regular file .*; correct data.path, or set data.name"
    ):
        build_collection(config_of(tmp_path))
    with pytest.raises(FeddleError, match=r"no regular file .*gone to read the data from; correct data.path"):
        build_collection(config_of(tmp_path / "gone"))


# --- tables


def test_each_client_holds_the_rows_that_name_it(tmp_path: Path) -> None:
    path = table(tmp_path, clients=5, split=lambda i: "test" if i % 9 == 8 else "train")
    federation = build_problem(config_of(path))
    assert len(federation.clients) == 5
    assert federation.sizes.tolist() == [8] * 5
    for number in range(5):
        inputs, targets = all_of(federation.clients[number])
        rows = list(range(9 * number, 9 * number + 8))
        assert targets.tolist() == [i % 3 for i in rows]
        for image, i in zip(inputs, rows, strict=True):
            expected = [min(255, part + i % 15) for part in list(COLOURS.values())[i % 3]]
            assert ((image.amax((1, 2)) + 1) * 127.5).round().tolist() == expected
    assert federation.test is not None
    assert federation.server is not None
    assert (len(federation.server), len(federation.test)) == (2, 3)  # half of a small test set is the server's


def test_clients_are_drawn_from_those_in_the_data(tmp_path: Path) -> None:
    path = table(tmp_path, clients=8, each=3)
    drawn = []
    for seed in range(4):
        collection = build_collection(config_of(path, seed=seed, clients={"count": 3, "per_round": 2}))
        train, test = collection.train, collection.test
        assert train.owners is not None
        assert test is not None
        assert set(train.owners.tolist()) == {0, 1, 2}
        assert len(train) + len(test) == 9
        assert isinstance(train.images, Files)
        drawn.append({int(train.images.path(i).stem) // 3 for i in range(len(train))})
        assert len(drawn[-1]) == 3
    assert len({frozenset(each) for each in drawn}) > 1
    again = build_collection(config_of(path, seed=0, clients={"count": 3, "per_round": 2})).train.images
    assert isinstance(again, Files)
    assert {int(again.path(i).stem) // 3 for i in range(len(again))} == drawn[0]


def test_columns_may_have_custom_names(tmp_path: Path) -> None:
    table(tmp_path)
    rows = [tuple(row) for row in csv.reader((tmp_path / "mine.csv").read_text(encoding="utf-8").splitlines())][1:]
    text = "\n".join(["Datei;Farbe;Klinik", *(";".join(row) for row in rows), ""])
    (tmp_path / "andere.csv").write_text(text, encoding="utf-8-sig")
    columns = {"image": "Datei", "label": "Farbe", "client": "Klinik"}
    theirs = open_data(config_of(tmp_path / "andere.csv", data={"columns": columns}).data)
    ours = open_data(config_of(tmp_path / "mine.csv").data)
    assert torch.equal(theirs.train.labels, ours.train.labels)
    assert theirs.train.owners is not None
    assert ours.train.owners is not None
    assert torch.equal(theirs.train.owners, ours.train.owners)
    with pytest.raises(FeddleError, match=r"has no column 'Haus': .*It has Datei, Farbe, Klinik; set data.columns.cl"):
        open_data(config_of(tmp_path / "andere.csv", data={"columns": {**columns, "client": "Haus"}}).data)


def test_validation_rows_are_only_used_without_test_rows(tmp_path: Path) -> None:
    parts = {"both": ("train", "train", "val", "test"), "val alone": ("train", "train", "train", "val")}
    sizes = {}
    for name, split in parts.items():
        path = table(tmp_path / name, split=lambda i, split=split: split[i % 4])  # type: ignore[misc]
        collection = open_data(config_of(path).data)
        assert collection.test is not None
        sizes[name] = (len(collection.train), len(collection.test))
    assert sizes == {"both": (18, 9), "val alone": (27, 9)}


def test_a_client_column_without_clients_names_none(tmp_path: Path) -> None:
    path = table(tmp_path, clients=1)
    path.write_text(path.read_text().replace("hospital 0", ""))
    assert open_data(config_of(path).data).train.owners is None


def test_labels_that_are_numbers_are_ordered_as_numbers() -> None:
    numbers, names = ranks(["10", "9", "2", "10"])
    assert (numbers.tolist(), names) == ([2, 1, 0, 2], ["2", "9", "10"])
    numbers, names = ranks(["1_0", "10", "010"])
    assert (numbers.tolist(), names) == ([2, 1, 0], ["010", "10", "1_0"])
    numbers, names = ranks([str(10**30), "2"])
    assert (numbers.tolist(), names) == ([0, 1], [str(10**30), "2"])
    numbers, names = ranks(["b10", "b9", "a", "b10"])
    assert (numbers.tolist(), names) == ([1, 2, 0, 1], ["a", "b10", "b9"])


# --- folders, archives, Hugging Face


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    for i, colour in enumerate(["amber", "blue"] * 4):
        paint(tmp_path / colour / ("deep" if i > 3 else "") / f"{i}.JPG", colour)
    (tmp_path / "blue" / "notes.txt").write_text("not an image")
    (tmp_path / "blue" / "._1.jpg").write_bytes(b"left by a file browser")
    (tmp_path / ".thumbnails").mkdir()
    collection = open_data(config_of(tmp_path, "images").data)
    assert (len(collection.train), collection.test, collection.classes) == (8, None, 2)
    assert isinstance(collection.train.images, Files)
    for i in range(8):
        path = collection.train.images.path(i)
        assert path.is_file()
        assert ["amber", "blue"].index(path.relative_to(tmp_path).parts[0]) == int(collection.train.labels[i])


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_with_train_and_test(tmp_path: Path, test: str) -> None:
    for part, count in (("train", 4), (test, 2)):
        for i in range(count):
            for colour in COLOURS:
                paint(tmp_path / part / colour / f"{i}.png", colour)
    collection = open_data(config_of(tmp_path, "images").data)
    assert collection.test is not None
    assert collection.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert collection.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert isinstance(collection.test.images, Files)
    assert {collection.test.images.path(i).parts[-3] for i in range(6)} == {test}


def pixels_of(collection: Collection) -> torch.Tensor:
    assert isinstance(collection.train.images, torch.Tensor)
    return collection.train.images


def test_an_archive_may_have_channels_first_or_last_and_other_array_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 10, 9, 3), dtype=np.uint8)
    labels, who = np.arange(12) % 3, np.repeat(["a", "b", "c"], 4)

    def read(**arrays: Any) -> Collection:
        archive(**arrays)(tmp_path)
        return open_data(config_of(tmp_path / "mine.npz", "npz").data)

    last = read(images=images, labels=labels, clients=who)
    assert pixels_of(last).shape == (12, 3, 10, 9)
    assert last.train.owners is not None
    assert last.train.owners.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    first = read(x=images.transpose(0, 3, 1, 2), y=labels[:, None])
    assert torch.equal(pixels_of(first), pixels_of(last))
    assert pixels_of(read(images=images[..., 0], labels=labels)).shape == (12, 1, 10, 9)
    halves = {"x_train": images[:9], "y_train": labels[:9], "x_test": images[9:], "y_test": labels[9:]}
    medical = {
        "train_images": images[:9],
        "train_labels": labels[:9, None],
        "val_images": images[:2],
        "val_labels": labels[:2, None],
        "test_images": images[9:],
        "test_labels": labels[9:, None],
    }
    for named in (halves, medical):
        collection = read(**named)
        assert collection.test is not None
        assert torch.equal(pixels_of(collection), pixels_of(last)[:9])
        assert collection.test.labels.tolist() == [0, 1, 2]
    owned = read(**halves, train_clients=who[:9])
    assert owned.train.owners is not None
    assert owned.test is not None
    assert owned.test.owners is not None
    assert owned.train.owners.tolist() == [0] * 4 + [1] * 4 + [2]
    assert owned.test.owners.tolist() == [NOBODY] * 3


def dataset(colours: Sequence[str], clients: Sequence[int] | None = None) -> hf.Dataset:
    images = [Image.new("RGB", (20, 16), COLOURS[colour]) for colour in colours]
    label = hf.ClassLabel(names=list(COLOURS))
    columns = {"image": images, "label": [list(COLOURS).index(c) for c in colours]}
    features = {"image": hf.Image(), "label": label}
    if clients is not None:
        columns["client"] = list(clients)
        features["client"] = hf.Value("int64")
    return hf.Dataset.from_dict(columns, features=hf.Features(features))


def test_a_hugging_face_dataset_on_disk(tmp_path: Path) -> None:
    colours = list(COLOURS) * 8
    dataset(colours, clients=[i // 6 for i in range(24)]).save_to_disk(tmp_path / "mine")
    config = config_of(tmp_path / "mine", "huggingface", {"test_share": 0.25})
    federation = build_problem(config)
    assert len(federation.clients) == 4
    inputs, targets = all_of(federation.clients[0])
    for image, target in zip(inputs, targets.tolist(), strict=True):
        assert ((image.mean((1, 2)) + 1) * 127.5).round().tolist() == list(COLOURS[list(COLOURS)[target]])
    options = [f"-o{key}={json.dumps(value)}" for key, value in SHORT.items() if key not in ("clients", "workers")]
    result = run_feddle("run", "--data", "mine", *options, "-odata.image_size=28", "-oworkers=2")
    assert result.code == 0, result.err
    assert "24 images of 3 classes, 4 clients in the data" in result.err


def test_a_hugging_face_dataset_of_splits(tmp_path: Path) -> None:
    colours = list(COLOURS) * 4
    hf.DatasetDict(train=dataset(colours), test=dataset(colours[:6])).save_to_disk(tmp_path / "mine")
    collection = open_data(config_of(tmp_path / "mine", "huggingface").data)
    assert collection.test is not None
    assert collection.train.labels.tolist() == [0, 1, 2] * 4
    assert collection.test.labels.tolist() == [0, 1, 2] * 2
    assert collection.train.owners is None
    hf.DatasetDict(other=dataset(colours)).save_to_disk(tmp_path / "odd")
    result = run_feddle("run", "--data", "odd")
    assert (result.code, "has the splits other, but none is called train" in result.err) == (2, True)
    (tmp_path / "mine" / "train" / "state.json").write_text("{")
    result = run_feddle("run", "--data", "mine")
    assert (result.code, result.err.count("\n"), "as a Hugging Face dataset on disk" in result.err) == (2, 1, True)


@pytest.mark.parametrize("column", ["label", "client"])
@pytest.mark.parametrize("kind", [hf.Image(), hf.Sequence(hf.Value("int64"))], ids=["images", "lists"])
def test_a_column_of_images_or_lists_is_refused(tmp_path: Path, column: str, kind: Any) -> None:
    whole = dataset(list(COLOURS) * 4, clients=[0] * 12)
    values = whole["image"] if isinstance(kind, hf.Image) else [[1, 2]] * 12
    features = hf.Features({**whole.features, column: kind})
    hf.Dataset.from_dict({**whole.to_dict(), column: list(values)}, features=features).save_to_disk(tmp_path / "mine")
    result = run_feddle("run", "--data", "mine", "-q")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"mine: the column {column} should hold numbers or text, not" in result.err
    assert f"set data.columns.{column} to another one" in result.err


def test_splits_with_labels_of_different_types_are_refused(tmp_path: Path) -> None:
    colours = list(COLOURS) * 4
    for kind in (hf.Value("string"), hf.Value("int64"), hf.ClassLabel(names=list(reversed(COLOURS)))):
        test = dataset(colours).cast_column("label", hf.Value("int64")).cast_column("label", kind)
        shutil.rmtree(tmp_path / "mine", ignore_errors=True)
        hf.DatasetDict(train=dataset(colours), test=test).save_to_disk(tmp_path / "mine")
        result = run_feddle("run", "--data", "mine", "-q")
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert f"the column label is {kind} in test, but ClassLabel(names=['amber'" in result.err
        assert "in train; cast one of them to the type of the other" in result.err


# --- decoding when used


def test_images_are_decoded_once_and_only_when_used(tmp_path: Path) -> None:
    path = table(tmp_path)
    rows = open_data(config_of(path).data).train
    assert isinstance(rows.images, Files)
    whole = Images(KeptPictures.of(rows.images, 3, 28, 1 << 30), rows.labels, 3)
    (tmp_path / "images" / "5.png").write_bytes(b"never used, so never seen to be broken")
    before, _ = whole.take(torch.tensor([1, 3, 1]))
    (tmp_path / "images" / "3.png").unlink()
    after, labels = whole.take(torch.tensor([3, 1, 3]))
    assert torch.equal(after, before[[1, 0, 1]])
    assert labels.tolist() == [0, 1, 0]
    assert after.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(FeddleError, match=r"cannot read the image .*5.png"):
        whole.take(torch.tensor([5]))


@settings(max_examples=20, deadline=None)
@given(limit=st.integers(0, 6 * 3 * 16 * 16), batches=st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=4))
def test_the_size_of_the_cache_does_not_change_the_images(
    tmp_path_factory: pytest.TempPathFactory, limit: int, batches: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("images")
    for i in range(6):
        paint(folder / f"{i}.png", "blue", 3 * i, size=(16, 16))
    files = Files.of(folder, [f"{i}.png" for i in range(6)])
    kept = KeptPictures.of(files, 3, 16, limit)
    assert len(kept.there) == limit // (3 * 16 * 16)
    examples = Images(kept, torch.arange(6), 3)
    for batch in batches:
        inputs, labels = examples.take(torch.tensor(batch, dtype=torch.int64))
        assert labels.tolist() == batch
        red = ((inputs[:, 0].amax((1, 2)) + 1) * 127.5).round() if batch else torch.empty(0)
        assert red.tolist() == [10 + 3 * i for i in batch]


def test_an_image_that_pillow_warns_about_is_decoded_without_a_warning(tmp_path: Path) -> None:
    gradient = Image.linear_gradient("L").resize((30, 30)).convert("P")
    gradient.save(tmp_path / "clear.png", transparency=bytes(range(200)))
    assert Files.of(tmp_path, ["clear.png"]).decode(0, 28, 3).shape == (3, 28, 28)  # warnings are errors here


def test_a_pipe_instead_of_an_image_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(FeddleError, match=r"x.png is not a regular file, or it is missing; leave it out"):
        Files.of(tmp_path, ["x.png"]).decode(0, 28, 3)


def test_photos_are_converted_to_the_given_size_and_channels(tmp_path: Path) -> None:
    Image.linear_gradient("L").resize((640, 480)).save(tmp_path / "grey.jpg", quality=95)
    Image.new("RGBA", (50, 20), (200, 100, 50, 128)).save(tmp_path / "clear.png")
    files = Files.of(tmp_path, ["grey.jpg", "clear.png"])
    grey = files.decode(0, 32, 3)
    assert grey.shape == (3, 32, 32)
    assert torch.equal(grey[0], grey[2])
    assert (grey[0, :, 0].diff().short() >= 0).all()  # still increasing from top to bottom
    assert files.decode(0, 32, 1).shape == (1, 32, 32)
    assert files.decode(1, 8, 3)[:, 4, 4].tolist() == [200, 100, 50]


def model_after(config: Config) -> torch.Tensor:
    run = simulated(config, build_problem(config))
    run.go()
    return run.server.model.vector


@pytest.mark.parametrize("augmentation", ["none", "crop-flip"])
def test_models_are_bit_identical_with_any_workers_and_cache(tmp_path: Path, augmentation: str) -> None:
    path = table(tmp_path)
    data = {"augmentation": augmentation}
    expected = model_after(config_of(path, data=data))
    assert torch.equal(model_after(config_of(path, data={**data, "cache_mb": 0}, workers=2)), expected)
    assert torch.equal(model_after(config_of(path, data=data, workers=1)), expected)


# --- splits and noise


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=12, max_size=60),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 1000),
)
def test_every_class_and_client_keeps_a_training_image(rows: list[tuple[int, int]], share: float, seed: int) -> None:
    labels, owners = torch.tensor(rows).T
    images = torch.arange(len(rows), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    whole = Collection("mine", Labelled(images, labels, owners), None, 4)
    spare = len(rows) - len({*labels.tolist()}) - len({*owners.tolist()})
    try:
        split = held_out(whole, share, seed)
    except FeddleError:
        assert round(share * len(rows)) == 0 or spare <= 0
        return
    train, test = split.train, split.test
    assert test is not None
    assert train.owners is not None
    assert isinstance(train.images, torch.Tensor)
    assert isinstance(test.images, torch.Tensor)
    both = torch.cat([train.images, test.images]).flatten().tolist()
    assert sorted(both) == list(range(len(rows)))
    assert set(train.labels.tolist()) == set(labels.tolist())
    assert set(train.owners.tolist()) == set(owners.tolist())
    assert len(test) <= round(share * len(rows))
    assert len(test) >= min(round(share * len(rows)), spare)
    again = held_out(whole, share, seed).test
    assert again is not None
    assert torch.equal(again.labels, test.labels)


def test_test_images_stay_with_their_clients() -> None:
    # clients 0 to 2 train; client 7 has only a test image, and one test image has no client
    train = Labelled(torch.zeros(6, 1, 1, 1), torch.zeros(6, dtype=torch.int64), torch.tensor([0, 1, 2, 0, 1, 2]))
    test = Labelled(torch.zeros(5, 1, 1, 1), torch.arange(5), torch.tensor([0, 1, 2, 7, NOBODY]))
    drawn = among_drawn(Collection("mine", train, test, 5), 1, seed=0)
    assert drawn.train.owners is not None
    assert drawn.train.owners.tolist() == [0, 0]
    assert drawn.test is not None
    kept = drawn.test.labels.tolist()
    assert kept[1:] == [3, 4]
    assert kept[0] in (0, 1, 2)
    alone = test.select(torch.tensor([i for i in range(3) if i != kept[0]]))  # of clients that were not drawn
    assert among_drawn(Collection("mine", train, alone, 5), 1, seed=0).test is None


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_label_noise_changes_its_share_of_the_labels_and_nothing_else(tmp_path: Path, share: float) -> None:
    path = table(tmp_path, clients=5, split=lambda i: "test" if i % 9 == 8 else "train")
    clean = build_problem(config_of(path))
    noisy = build_problem(config_of(path, data={"label_noise": share}))
    assert noisy.sizes.tolist() == clean.sizes.tolist()
    wrong = 0
    for one, other in zip(clean.clients, noisy.clients, strict=True):
        assert torch.equal(all_of(one)[0], all_of(other)[0])
        wrong += int((all_of(one)[1] != all_of(other)[1]).sum())
    assert wrong == share * 40
    assert clean.test is not None
    assert noisy.test is not None
    assert torch.equal(all_of(clean.test)[1], all_of(noisy.test)[1])


def test_rows_for_the_server(tmp_path: Path) -> None:
    parts = ("train", "train", "server", "test")
    path = table(tmp_path / "csv", split=lambda i: parts[i % 4])
    federation = build_problem(config_of(path))
    assert federation.server is not None
    assert federation.test is not None
    assert federation.out_of_domain is None
    assert (int(federation.sizes.sum()), len(federation.server), len(federation.test)) == (18, 9, 9)
    some = build_problem(config_of(path, data={"server": {"samples": 4}})).server
    assert some is not None
    rows = [i for i in range(36) if i % 4 == 2]
    reds = {min(255, list(COLOURS.values())[i % 3][0] + i % 15): i % 3 for i in rows}
    inputs, labels = all_of(some)
    assert [reds[int(((image[0, 0, 0] + 1) * 127.5).round())] for image in inputs] == labels.tolist()
    assert len(labels) == 4
    with pytest.raises(FeddleError, match=r"data.server.samples must be from 1 to the 9 images of .*mine.csv, got 10"):
        build_problem(config_of(path, data={"server": {"samples": 10}}))


@pytest.mark.parametrize("kind", ["images", "npz", "huggingface"])
def test_every_kind_of_data_may_have_a_part_for_the_server(tmp_path: Path, kind: str) -> None:
    sizes = {"train": 12, "test": 6, "server": 3}
    path = tmp_path / "mine"
    match kind:
        case "images":
            for part, size in sizes.items():
                for i in range(size):
                    paint(path / part / list(COLOURS)[i % 3] / f"{i}.png", "blue")
        case "npz":
            path = tmp_path / "mine.npz"
            images = {f"{part}_images": np.zeros((size, 8, 8), np.uint8) for part, size in sizes.items()}
            archive(**images, **{f"{part}_labels": np.arange(size) % 3 for part, size in sizes.items()})(tmp_path)
        case _:
            held = {part: dataset((list(COLOURS) * 4)[:size]) for part, size in sizes.items()}
            hf.DatasetDict(held).save_to_disk(path)
    collection = open_data(config_of(path, kind).data)
    assert collection.server is not None
    assert collection.test is not None
    assert [len(collection.train), len(collection.test), len(collection.server)] == list(sizes.values())
    assert collection.server.labels.tolist() == [0, 1, 2]


def test_the_server_may_have_another_table(tmp_path: Path) -> None:
    ours, theirs = table(tmp_path / "ours"), table(tmp_path / "theirs", clients=2, each=6)
    server = {"name": "csv", "path": str(theirs), "samples": 10}
    federation = build_problem(config_of(ours, data={"server": server}))
    assert federation.out_of_domain == str(theirs)
    assert federation.server_classes == 3
    assert federation.server is not None
    assert len(federation.server) == 10
    inputs, labels = all_of(federation.server)
    colours = [list(COLOURS.values())[label] for label in labels.tolist()]
    shades = [
        ((image[:, 0, 0] + 1) * 127.5).round() - torch.tensor(c) for image, c in zip(inputs, colours, strict=True)
    ]
    assert all(0 <= float(shade.max()) < 15 for shade in shades)


# --- augmentation


def test_crop_flip_shifts_and_mirrors_each_image_independently() -> None:
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    image = (10 * rows + columns).float().expand(40, 1, 8, 8)
    changed = crop_flip(image, torch.Generator().manual_seed(0))
    assert changed.shape == image.shape
    seen = set()
    for each in changed[:, 0]:
        found = [
            (down, right, mirrored)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            for mirrored in (False, True)
            if torch.equal(each, moved(down, right, mirrored))
        ]
        assert len(found) == 1
        seen.update(found)
    assert len(seen) > 12  # of 18 possible changes
    again = crop_flip(image, torch.Generator().manual_seed(0))
    assert torch.equal(again, changed)


def moved(down: int, right: int, mirrored: bool) -> torch.Tensor:
    """The test image, read at an offset of (down, right) with repeated edges, then mirrored."""
    rows = (torch.arange(8) + down).clamp(0, 7)
    columns = (torch.arange(8) + right).clamp(0, 7)
    image = (10 * rows[:, None] + columns[None]).float()
    return image.flip(1) if mirrored else image


def test_augmentation_changes_training_and_not_the_test_data(tmp_path: Path) -> None:
    for i in range(24):  # stripes, so that a shift shows
        pixels = np.tile(np.arange(32, dtype=np.uint8) * (3 + i % 2 * 4), (32, 1))
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "ab"[i % 2] / f"{i}.png")
    clients = {"count": 2, "per_round": 2}
    plain = config_of(tmp_path, "images", {"partition": "even"}, clients=clients)
    changed = config_of(tmp_path, "images", {"partition": "even", "augmentation": "crop-flip"}, clients=clients)
    assert not torch.equal(model_after(plain), model_after(changed))
    tests = [build_problem(config).test for config in (plain, changed)]
    assert torch.equal(all_of(tests[0])[0], all_of(tests[1])[0])


# --- the same data in several formats, and any torch dataset


def tiny_digits(tmp_path: Path) -> dict[str, Config]:
    """The same run on the built-in digits, on an archive of them, and on a table of image files."""
    digits = load("digits", quiet=True)
    arrays = {name: getattr(digits, name).numpy() for name in ("train_images", "train_labels", "test_images")}
    np.savez(tmp_path / "digits.npz", **arrays, test_labels=digits.test_labels.numpy())
    rows: list[Row] = []
    for part, images, labels in (
        ("train", digits.train_images, digits.train_labels),
        ("test", digits.test_images, digits.test_labels),
    ):
        for i, (image, label) in enumerate(zip(resize(images, 28), labels.tolist(), strict=True)):
            Image.fromarray(image[0].numpy()).save(tmp_path / f"{part}{i}.png", compress_level=0)
            rows.append((f"{part}{i}.png", str(label), part))
    write_csv(tmp_path / "digits.csv", ("path", "label", "split"), rows)
    held = {key: value for key, value in TINY["data"].items() if key != "name"}
    return {
        "digits": tiny(workers=0, rounds=2),
        "npz": tiny(workers=0, rounds=2, data={**held, "name": "npz", "path": str(tmp_path / "digits.npz")}),
        "csv": tiny(workers=0, rounds=2, data={**held, "name": "csv", "path": str(tmp_path / "digits.csv")}),
    }


def test_the_same_images_in_any_format_give_bit_identical_models(tmp_path: Path) -> None:
    models = {name: model_after(config) for name, config in tiny_digits(tmp_path).items()}
    assert torch.equal(models["npz"], models["digits"])
    assert torch.equal(models["csv"], models["digits"])


def test_any_torch_dataset_is_divided_among_clients() -> None:
    points = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    labels = (points[:, 0] > 0).long()
    data = TensorDataset(points, labels)
    owners = [f"phone {i % 7}" for i in range(60)]
    own = by_client(data, owners)
    assert [len(client) for client in own] == [9, 9, 9, 9, 8, 8, 8]
    assert torch.equal(own[3].take(torch.arange(9))[0], points[3::7])
    spread = by_dirichlet(data, labels, 5, alpha=1.0, seed=1)
    assert sum(len(client) for client in spread) == 60
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    for clients in (own, spread):
        run = simulate(model, clients, server=data, test=data, rounds=2, per_round=2, delays={"sigma": 0}, workers=0)
        assert run.result["accuracy"] is not None
    with pytest.raises(FeddleError, match="expected a client for each of the 60 examples"):
        by_client(data, owners[:59])
    with pytest.raises(FeddleError, match="expected a label for each of the 60 examples"):
        by_dirichlet(data, labels[:1], 5)
    with pytest.raises(FeddleError, match="clients must be 1 or more, got 0"):
        by_dirichlet(data, labels, 0)
