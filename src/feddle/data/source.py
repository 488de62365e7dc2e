"""Where content comes from (a data set, or the weights of a model), and where it is kept on this machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import platformdirs

from feddle.core.errors import FeddleError, did_you_mean

Content = TypeVar("Content", covariant=True)


class Source(Protocol[Content]):
    """Content that feddle fetches, official files that the user supplies, or the user's own data.

    No other code asks which of the three it is.
    """

    @property
    def name(self) -> str:
        """The name that a config uses."""

    @property
    def place(self) -> Path:
        """The file or folder that holds the content on this machine, or will hold it."""

    def missing(self) -> str | None:
        """Why the content is not available on this machine and cannot be fetched; None if it is available."""

    def fetch(self, *, quiet: bool = False) -> None:
        """Download what can be downloaded, if it is not here yet."""

    def digest(self) -> str | None:
        """SHA-256 of the content; None if feddle's version and the config determine it."""

    def read(self, *, quiet: bool = False) -> Content:
        """The content; it is fetched if it is not here yet."""


def unknown_name(kind: str, name: str, known: Sequence[str]) -> FeddleError:
    """The error for a name that no source has."""
    hint = f"{did_you_mean(name.lower().replace('_', '-'), known)} The names are {', '.join(known)}".lstrip()
    return FeddleError(f"unknown {kind} {name!r}: {hint}")


def cache_folder() -> Path:
    """Where data sets are kept: $FEDDLE_DATA, or else the user's cache folder."""
    named = os.environ.get("FEDDLE_DATA")
    return expanded(Path(named)) if named else Path(platformdirs.user_cache_dir("feddle"))


def expanded(path: Path) -> Path:
    """The path with ~ written out."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise FeddleError(f"the path {path} names a home that does not exist; write its whole path") from error
