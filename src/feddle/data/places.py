"""Where data is kept on this machine."""

import os
from pathlib import Path

import platformdirs

from feddle.core.errors import FeddleError


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
