"""Where official files can be fetched from; each origin ends in a folder of these files."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, final

from feddle.data.fetch.progress import Reporter
from feddle.data.fetch.registries import Registry, download_package, unpack
from feddle.data.readers.files import Unusable

HTTP_TIMEOUT = (10.0, 30.0)  # seconds to connect, seconds between two chunks
CHUNK = 1 << 16


class Origin(Protocol):
    """A place that may have the official files of a data set or of weights; `str` gives it in words."""

    def collect(self, name: str, workspace: Path, reporter: Reporter) -> Path:
        """A folder with the official files of `name`; raises `Unusable` with the reason."""


@final
@dataclass(frozen=True)
class Folder:
    """A folder on this machine, named by the user or filled by a system package."""

    path: Path
    title: str
    archive: str | None = None  # the official archive, if that is what the folder holds

    def __str__(self) -> str:
        return f"{self.title} {self.path}"

    def collect(self, name: str, workspace: Path, reporter: Reporter) -> Path:
        """The folder itself, or a place where its archive is unpacked."""
        # MNIST and Fashion-MNIST have the same file names, so each may have its own folder inside.
        folder = self.path / name if (self.path / name).is_dir() else self.path
        if self.archive is None or not (folder / self.archive).is_file():
            return folder
        with reporter.waiting(f"unpacking {self.archive}"):
            unpack(folder / self.archive, workspace)
        return workspace


@final
@dataclass(frozen=True)
class InstalledPackage:
    """The data files inside an installed Python package, which is never imported."""

    title: str
    module: str
    inside: str

    def __str__(self) -> str:
        return f"the installed Python package {self.title}"

    def collect(self, name: str, workspace: Path, reporter: Reporter) -> Path:  # noqa: ARG002 - an Origin's arguments
        """The package's data folder."""
        spec = find_spec(self.module)
        if spec is None or spec.origin is None:
            raise Unusable("it is not installed")
        return Path(spec.origin).parent / self.inside


@final
@dataclass(frozen=True)
class Official:
    """The files at their authors' address."""

    address: str
    files: tuple[str, ...]
    megabytes: float

    def __str__(self) -> str:
        return f"the official address {self.address}"

    def collect(self, name: str, workspace: Path, reporter: Reporter) -> Path:
        """Download the files one after the other, and unpack archives."""
        reporter.say(f"fetching {name} ({self.megabytes:g} MB) from {self}")
        for file in self.files:
            _download(self.address + file, workspace / file, reporter)
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

    def collect(self, name: str, workspace: Path, reporter: Reporter) -> Path:
        """Download the package with the registry's client, and unpack it."""
        reporter.say(f"fetching {name} ({self.megabytes:g} MB) from {self}")
        with reporter.waiting(f"{name} from {self}"):
            unpack(download_package(self.registry, self.package, workspace), workspace / "unpacked")
        return workspace / "unpacked" / self.inside


def _download(url: str, target: Path, reporter: Reporter) -> None:
    """Download a file; every failure becomes a short reason."""
    # Not hashed: every origin must share the hash of the content instead.
    import requests  # it takes a while to import, and most loads never need it

    try:
        with requests.get(url, stream=True, timeout=HTTP_TIMEOUT) as response, target.open("wb") as file:
            response.raise_for_status()
            with reporter.counting(target.name, int(response.headers.get("content-length", 0))) as advance:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    advance(len(chunk))
    except OSError as error:
        raise Unusable(_http_reason(error)) from error


def _http_reason(error: OSError) -> str:
    """A network error in a few words; the library's own text runs over several lines."""
    from requests import exceptions

    words = {
        exceptions.Timeout: "no answer in time",
        exceptions.SSLError: "the certificate was not accepted",
        exceptions.ProxyError: "the proxy refused",
        exceptions.ChunkedEncodingError: "the download broke off",
        exceptions.ConnectionError: "no connection",
    }
    known = next((reason for kind, reason in words.items() if isinstance(error, kind)), None)
    return known or str(error).partition(" for url")[0]
