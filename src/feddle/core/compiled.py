"""Functions that numba compiles to machine code."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: str | None = None, *, fastmath: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile for a signature at once, without one at the first call; later processes find the code on disk.

    At once is before worker processes are forked, which then share it. `fastmath` lets a sum be taken in lanes.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.jit(signature, nopython=True, nogil=True, fastmath=fastmath, cache=True)(function)
        except Exception:  # no folder to write to, a full disk, a file that was cut off: do without
            return numba.jit(signature, nopython=True, nogil=True, fastmath=fastmath)(function)

    return decorate
