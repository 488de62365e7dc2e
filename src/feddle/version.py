"""The version of the package."""

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def source_digest() -> str:
    """The SHA-256 of the package's source and tables, since a version number covers many states of the source."""
    here, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(path for ending in ("py", "yaml") for path in here.rglob(f"*.{ending}")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(here).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
