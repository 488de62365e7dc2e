"""Helpers that the readers of official files share: find a file and read its bytes."""

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, cast

LIMIT = 1 << 28  # bytes; the largest official file has 154 MB


class Unusable(Exception):  # noqa: N818 - a reason to try the next origin, not yet an error
    """Files that cannot be used; the text is the short reason."""


def find_file(folder: Path, *names: str) -> Path:
    """The first of these files that is in the folder."""
    if not folder.is_dir():
        raise Unusable("no such folder")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise Unusable(f"it holds no {' or '.join(names)}")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if it is gzipped."""
    try:
        with path.open("rb") as raw:
            # The first bytes decide, not the name: a web server may unzip a .gz file on the way.
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            content = stream.read(LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Unusable(f"{path.name} cannot be read ({error})") from error
    if len(content) > LIMIT:
        raise Unusable(f"{path.name} is larger than {LIMIT >> 20} MB")
    return content
