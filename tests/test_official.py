"""Data sets whose official files the user provides: generated files in their layouts, and errors in those files."""

import csv
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command import run_feddle
from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.datasets import OFFICIAL
from feddle.data.options import Data, source_of
from feddle.data.pictures import Files
from feddle.run.load import parse_config
from feddle.run.plan import Config
from feddle.run.problem import build_collection, build_problem

SHORT: dict[str, Any] = {
    "rounds": 2,
    "workers": 0,
    "clients": {"count": 4, "per_round": 2},
    "model": {"name": "cnn", "channels": [4, 4, 4], "hidden": 8},
    "training": {"epochs": 1},
    "delays": {"sigma": 0},
    "evaluation": {"every": 2},
    "method": {"name": "feddle", "search": {"epochs": 1}},
}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary cache folder, so that no real files are found."""
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def open_data(data: Data) -> Collection:
    return source_of(data).read()


def config_of(name: str, folder: Path | None, data: dict[str, Any] | None = None, **changes: Any) -> Config:
    held = {"name": name, "folder": None if folder is None else str(folder), "image_size": 32, **(data or {})}
    return parse_config({**SHORT, **changes, "data": held})


def trains(config: Config, folder: Path) -> None:
    """The config runs through the command line, to its end."""
    path = folder / "config.json"
    path.write_text(config.model_dump_json())
    result = run_feddle("run", str(path), "-q", "--out", str(folder / "run"))
    assert result.code == 0, result.err
    assert json.loads((folder / "run" / "result.json").read_text())["finished"]


# --- CIFAR-100


def cifar100_files(train: int = 200, test: int = 40) -> dict[str, bytes]:
    """Record i has the fine class i % 100 and its superclass i % 20; its first pixel is i % 251."""
    files = {}
    for name, count in (("train.bin", train), ("test.bin", test)):
        records = [bytes([i % 20, i % 100, i % 251]) + bytes(3071) for i in range(count)]
        files[name] = b"".join(records)
    return files


def write_cifar100(folder: Path, *, packed: bool = True, files: dict[str, bytes] | None = None) -> Path:
    inside = folder / "cifar-100-binary"
    inside.mkdir(parents=True)
    for name, content in (files or cifar100_files()).items():
        (inside / name).write_bytes(content)
    if packed:
        with tarfile.open(folder / "cifar-100-binary.tar.gz", "w:gz") as tar:
            for name, content in (files or cifar100_files()).items():
                member = tarfile.TarInfo(f"cifar-100-binary/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
                (inside / name).unlink()
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_cifar_100_trains_superclasses_and_partitions_by_fine_class(tmp_path: Path, packed: bool) -> None:
    folder = write_cifar100(tmp_path / "files", packed=packed)
    config = config_of("cifar-100", folder, {"partition": {"name": "dirichlet", "alpha": 1e-4}})
    train, test = (collection := open_data(config.data)).train, collection.test
    assert test is not None
    assert collection.classes == 20
    assert (len(train), len(test)) == (200, 40)
    assert train.labels.tolist() == [i % 20 for i in range(200)]
    assert isinstance(train.images, torch.Tensor)
    assert train.images[:, 0, 0, 0].tolist() == [i % 251 for i in range(200)]
    partition = config.data.partition.build(train, 4, seed=0)
    # with so small an α a class goes to one client: the two images of a fine class stay together,
    # those of a superclass do not
    owner = torch.empty(200, dtype=torch.int64)
    for client in range(4):
        owner[partition[client]] = client
    assert torch.equal(owner[:100], owner[100:])
    assert not all(torch.equal(owner[0:20], owner[i : i + 20]) for i in range(20, 100, 20))
    if packed:
        trains(config, tmp_path)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"train.bin": bytes(3074), "test.bin": bytes(3073)},
            "test.bin should hold records of 3074 bytes, but has 3073",
        ),
        ({"train.bin": bytes([20]) + bytes(3073), "test.bin": bytes(3074)}, "should hold labels below 20 and 100"),
        ({"train.bin": bytes(3074)}, "it holds no test.bin"),
    ],
)
def test_broken_cifar_100_files_are_reported(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    folder = write_cifar100(tmp_path / "files", packed=False, files=files)
    with pytest.raises(FeddleError, match=reason):
        open_data(config_of("cifar-100", folder).data)


# --- LEAF


def write_leaf(folder: Path, people: dict[str, tuple[list[Any], list[Any]]], name: str = "all_data_0.json") -> Path:
    """A file as LEAF's scripts write it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(people),
        "num_samples": [len(labels) for _, labels in people.values()],
        "user_data": {user: {"x": images, "y": labels} for user, (images, labels) in people.items()},
    }
    (folder / name).write_text(json.dumps(content))
    return folder


def character(grey: int) -> list[float]:
    return [grey / 255] * 784


def writers(*names: str, labels: list[int]) -> dict[str, tuple[list[Any], list[Any]]]:
    return {name: ([character(10 * i + label) for label in labels], labels) for i, name in enumerate(names)}


def test_femnist_from_all_data(tmp_path: Path, data: Path) -> None:
    place = tmp_path / "leaf" / "data"
    labels = [0, 9, 35, 39, 40, 61, 3, 3, 5, 5]  # two of them are not among the first forty classes
    write_leaf(place / "all_data", writers("f0001", "f0002", "f0003", labels=labels))
    write_leaf(place / "all_data", writers("f0004", "f0005", labels=labels), "all_data_1.json")
    config = config_of("femnist", tmp_path / "leaf", {"channels": 1, "test_share": 0.25})
    collection = open_data(config.data)
    assert (collection.classes, collection.test, len(collection.train)) == (40, None, 40)
    assert collection.train.owners is not None
    assert collection.train.owners.bincount().tolist() == [8] * 5
    assert isinstance(collection.train.images, torch.Tensor)
    assert collection.train.images.shape == (40, 1, 28, 28)
    assert collection.train.labels[:8].tolist() == [0, 9, 35, 39, 3, 3, 5, 5]
    assert collection.train.images[8:16, 0, 5, 5].tolist() == [10, 19, 45, 49, 13, 13, 15, 15]
    drawn = build_collection(config)
    assert drawn.train.owners is not None
    assert drawn.test is not None
    assert set(drawn.train.owners.tolist()) == {0, 1, 2, 3}  # clients.count of the five
    assert (len(drawn.train), len(drawn.test)) == (24, 8)
    trains(config, tmp_path)
    assert len(list(data.glob("femnist-*.safetensors"))) == 1


def test_femnist_is_parsed_again_only_when_its_files_change(tmp_path: Path, data: Path) -> None:
    place = write_leaf(tmp_path / "all_data", writers("a", "b", labels=[1, 2]))
    first = open_data(config_of("femnist", tmp_path).data)
    file = place / "all_data_0.json"
    stat = file.stat()
    broken = b" " * stat.st_size
    file.write_bytes(broken)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = open_data(config_of("femnist", tmp_path).data)  # name, size and time are unchanged, so it is not read
    assert torch.equal(again.train.labels, first.train.labels)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    with pytest.raises(FeddleError, match=r"all_data_0.json is not in LEAF's layout"):
        open_data(config_of("femnist", tmp_path).data)
    assert len(list(data.glob("*"))) == 1


def test_a_pipe_among_leafs_files_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(write_leaf(tmp_path / "all_data", writers("a", "b", labels=[1, 2])) / "all_data_1.json")
    with pytest.raises(FeddleError, match=r"all_data_1.json is not a regular file"):
        open_data(config_of("femnist", tmp_path).data)


def test_femnist_with_leafs_own_split(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", writers("a", "b", "c", labels=[1, 2, 3]), "all_data_0_train_9.json")
    write_leaf(tmp_path / "test", writers("a", "b", "c", labels=[4]), "all_data_0_test_9.json")
    write_leaf(tmp_path / "all_data", writers("a", "b", "c", labels=[1, 2, 3, 4]))
    collection = open_data(config_of("femnist", tmp_path).data)
    assert collection.test is not None
    assert collection.test.owners is not None
    assert (len(collection.train), collection.test.labels.tolist()) == (9, [4, 4, 4])
    assert collection.test.owners.tolist() == [0, 1, 2]


def write_celeba(folder: Path, people: int = 5, each: int = 6) -> Path:
    """Names and smiles in LEAF's JSON, where y is 0.0 or 1.0, and images of CelebA's size; a smile is bright."""
    held: dict[str, tuple[list[Any], list[Any]]] = {}
    images = folder / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    for i in range(people * each):
        name, smiles = f"{i + 1:06}.jpg", i % 2
        Image.new("RGB", (178, 218), (200, 180, 160) if smiles else (40, 50, 60)).save(images / name)
        names, labels = held.setdefault(str(2880 + i // each), ([], []))
        names.append(name)
        labels.append(float(smiles))
    write_leaf(folder / "all_data", held, "all_data.json")
    return folder


def test_celeba_has_one_client_per_person(tmp_path: Path) -> None:
    config = config_of("celeba", write_celeba(tmp_path / "leaf"), {"server": {"samples": 2}})
    collection = open_data(config.data)
    assert (collection.classes, len(collection.train)) == (2, 30)
    assert isinstance(collection.train.images, Files)
    federation = build_problem(config)
    assert len(federation.clients) == 4
    inputs, smiles = federation.clients[2].take(torch.arange(len(federation.clients[2])))
    assert (inputs.mean((1, 2, 3)) > 0).long().tolist() == smiles.tolist()
    trains(config, tmp_path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / "raw" / "img_align_celeba").rename(f / "elsewhere"), "it holds no folder raw/img_align_celeba"),
        (lambda f: (f / "raw" / "img_align_celeba" / "000003.jpg").unlink(), "there is no image file .*000003.jpg"),
        (lambda f: (f / "all_data" / "all_data.json").unlink(), "it holds no JSON files in all_data, or in train and"),
        (lambda f: (f / "all_data" / "all_data.json").write_text("{}"), "not in LEAF's layout: KeyError 'users'"),
        (lambda f: write_leaf(f / "all_data", {"7": ([0.5], [1])}, "all_data.json"), "should name image files"),
        (lambda f: write_leaf(f / "all_data", {"7": (["a"], [-1])}, "all_data.json"), "7 has the label -1"),
        (
            lambda f: write_leaf(f / "all_data", {"7": (["a"], [1, 1])}, "all_data.json"),
            "user_data has 1 images and 2 labels",
        ),
    ],
)
def test_broken_leaf_files_are_reported(tmp_path: Path, damage: Callable[[Path], object], reason: str) -> None:
    damage(write_celeba(tmp_path / "celeba", people=2, each=2))
    with pytest.raises(FeddleError, match=reason):
        open_data(config_of("celeba", tmp_path).data)  # the parent of the folder celeba


# --- ISIC 2019


ISIC = ("image", "MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")


def write_isic(folder: Path, count: int = 32) -> Path:
    (folder / "ISIC_2019_Training_Input").mkdir(parents=True)
    rows: list[list[str]] = [list(ISIC)]
    for i in range(count):
        name = f"ISIC_{i:07}" + ("_downsampled" if i % 5 == 0 else "")
        Image.new("RGB", (96, 64), (30 * (i % 8), 128, 20)).save(folder / "ISIC_2019_Training_Input" / f"{name}.jpg")
        rows.append([name, *("1.0" if i % 8 == c else "0.0" for c in range(9))])
    with (folder / "ISIC_2019_Training_GroundTruth.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def test_isic_has_one_diagnosis_per_image(tmp_path: Path) -> None:
    config = config_of("isic-2019", write_isic(tmp_path / "isic"), {"partition": "even"})
    collection = open_data(config.data)
    assert collection.classes == 8  # no image is UNK
    assert collection.train.labels.tolist() == [i % 8 for i in range(32)]
    assert isinstance(collection.train.images, Files)
    assert abs(int(collection.train.images.decode(13, 8, 3)[0, 4, 4]) - 150) < 4
    trains(config, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("ISIC_0000003,0.0", "ISIC_0000003,1.0", "should name one diagnosis for ISIC_0000003"),
        ("image,", "picture,", "should have a column image, then one for each diagnosis"),
        (",0.0,", ",none,", "should hold numbers after the image's name"),
        ("ISIC_0000006", "ISIC_0000066", "there is no image file .*ISIC_0000066.jpg"),
    ],
)
def test_broken_isic_files_are_reported(tmp_path: Path, old: str, new: str, reason: str) -> None:
    table = write_isic(tmp_path, count=8) / "ISIC_2019_Training_GroundTruth.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(FeddleError, match=reason):
        open_data(config_of("isic-2019", tmp_path).data)


# --- ImageNet


def write_imagenet(root: Path, *, val: str = "sorted") -> Path:
    for part, count in (("train", 6), ("val", 2)):
        for c, wnid in enumerate(("n01440764", "n01443537", "n02102040")):
            for i in range(count):
                flat = part == "val" and val == "flat"
                folder = root / part if flat else root / part / wnid
                folder.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (70 + i, 50), (80 * c, 80 * c, 200)).save(folder / f"{wnid}_{i}.JPEG")
    return root


@pytest.mark.parametrize(("inside", "val"), [("", "sorted"), ("ILSVRC/Data/CLS-LOC", "flat")])
def test_imagenet_folders(tmp_path: Path, inside: str, val: str) -> None:
    write_imagenet(tmp_path / inside, val=val)
    collection: Collection = open_data(config_of("imagenet", tmp_path).data)
    assert (collection.name, collection.classes) == ("imagenet", 3)
    assert collection.train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert (collection.test is None) == (val == "flat")


def test_imagenet_as_server_data_of_another_domain(tmp_path: Path) -> None:
    folder = write_imagenet(tmp_path / "ilsvrc")
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(60) % 3)
    server = {"name": "imagenet", "folder": str(folder), "samples": 12}
    held = {"name": "npz", "path": str(tmp_path / "mine.npz"), "partition": "even", "server": server}
    config = parse_config({**SHORT, "data": held})
    federation = build_problem(config)
    assert (federation.out_of_domain, federation.server_classes) == ("imagenet", 3)
    assert federation.server is not None
    inputs, labels = federation.server.take(torch.arange(12))
    reds = ((inputs[:, 0].mean((1, 2)) + 1) * 127.5).round()
    assert (reds - 80 * labels).abs().max() < 4
    trains(config, tmp_path)


# --- missing files


@pytest.mark.parametrize("name", [source.name for source in OFFICIAL])
def test_missing_files_are_reported_with_their_source_and_their_folder(data: Path, name: str) -> None:
    config = data.parent / "config.yaml"
    config.write_text(f"data: {{name: {name}}}\n")
    result = run_feddle("run", str(config), "-q")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err == run_feddle("data", "fetch", name).err
    assert f"feddle: {name} cannot be downloaded, and {data / name} cannot be used" in result.err
    assert "https://" in result.err
    assert "put " in result.err
    assert "data.folder" in result.err


def test_data_list_shows_which_official_files_are_present(data: Path) -> None:
    write_cifar100(data / "cifar-100")
    lines = run_feddle("data", "list").out.splitlines()
    listed = {line.split()[0]: line.split()[-1] for line in lines if "your own files" in line}
    assert listed == {"cifar-100": "yes", "femnist": "no", "celeba": "no", "isic-2019": "no", "imagenet": "no"}
    assert "explains where to get the files" in lines[-1]
    result = run_feddle("data", "fetch", "cifar-100")
    assert (result.code, result.out) == (0, f"{data / 'cifar-100'}\n")


def test_custom_data_cannot_be_fetched() -> None:
    result = run_feddle("data", "fetch", "csv")
    assert (result.code, result.err) == (
        2,
        "feddle: csv means your own data, so there is nothing to fetch; use feddle run --data PATH\n",
    )
