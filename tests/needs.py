"""What some tests need besides Python packages. Where it is missing, the reason of the skip says how to get it."""

import shutil
import subprocess
import sys
from typing import NoReturn

import pytest


def program(name: str, package: str) -> pytest.MarkDecorator:
    """A test that runs a program."""
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"needs {name}; to enable: apt-get install {package}")


chromium = program("chromium", "chromium")
nginx = program("nginx", "nginx")
systemd = program("systemd-analyze", "systemd")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc; to enable: run it on Linux")


def can_hide_folders() -> bool:
    """Whether a process may have mounts of its own."""
    command = ["unshare", "--mount", "--map-root-user", "true"]
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


mounts = pytest.mark.skipif(not can_hide_folders(), reason="needs unshare --mount; to enable: run it where that works")


def skip_without_bfloat16() -> NoReturn:
    """Skip a test of bfloat16 on a CPU without it."""
    pytest.skip("needs a CPU that trains in bfloat16; to enable: run it on one with AVX-512 BF16 or AMX")
