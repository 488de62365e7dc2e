"""Functions that numba compiles to machine code."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: str | None = None, *, fastmath: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function: immediately if a signature is given, else at the first call. The code is cached on disk.

    With a signature, it is compiled before worker processes are forked, so they share it. `fastmath` allows SIMD sums.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.jit(signature, nopython=True, nogil=True, fastmath=fastmath, cache=True)(function)
        except Exception:  # an unwritable folder, a full disk or a damaged file: do not cache
            return numba.jit(signature, nopython=True, nogil=True, fastmath=fastmath)(function)

    return decorate
