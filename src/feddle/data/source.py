"""Where content comes from: a data set, or the weights of a model."""

from pathlib import Path
from typing import Protocol, TypeVar

Content = TypeVar("Content", covariant=True)


class Source(Protocol[Content]):
    """Content that is fetched, brought by the user as official files, or the user's own.

    Nobody but the source itself asks which of the three it is.
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
        """The content, fetched first if need be."""
