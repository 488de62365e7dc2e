"""Settings of this machine that make a training process fast and its results repeatable."""

import ctypes
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from feddle.core.errors import FeddleError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_BFLOAT16_STEP = """
import torch
model = torch.nn.Sequential(torch.nn.Conv2d(32, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64 * 36, 64))
images = torch.ones(32, 32, 8, 8).contiguous(memory_format=torch.channels_last)
with torch.autocast("cpu", dtype=torch.bfloat16):
    outputs = model(images)
outputs.float().sum().backward()
"""


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread: it is faster for small models, and a fixed order of summation makes results repeatable.

    Numbers below 1e-38 are flushed to zero. A processor takes several times as long for them, and a client that has
    memorised its few classes has gradients full of them.
    """
    threads, flushed = torch.get_num_threads(), _flushes_denormals()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    _keep_freed_pages()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def _flushes_denormals() -> bool:
    """Whether this thread flushes the smallest numbers to zero; torch can set this, but not report it."""
    return not (torch.full((1,), 1e-39) * torch.ones(1)).item()


@cache
def _keep_freed_pages() -> None:
    """Make glibc keep freed memory; otherwise each batch faults the same pages in again."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(2**31 - 1))
        libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(2**30))


def release_freed_pages() -> None:
    """Return freed memory to the system, so that the memory of this process is what it uses."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@cache
def require_bfloat16() -> None:
    """Refuse bfloat16 if this CPU cannot run it: some virtual machines announce AMX but do not support it.

    An illegal instruction ends the process, so a child process tries a training step first.
    """
    done = subprocess.run([sys.executable, "-c", _BFLOAT16_STEP], capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise FeddleError(
            f"training.precision: bfloat16 does not run on this CPU ({_cause(done)}); start with "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment, or set training.precision: float32"
        )


def _cause(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process ended: the signal, or the last line that it wrote."""
    if done.returncode < 0:
        return f"a trial step ended with {signal.Signals(-done.returncode).name}"
    return "a trial step failed: " + (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
