"""How this machine is used best by one training process."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: faster for small models, and sums come in one order, so results repeat bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    _keep_freed_pages()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _keep_freed_pages() -> None:
    """Have glibc keep freed memory: each batch would else fault the same pages in again."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(2**31 - 1))
        libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(2**30))
