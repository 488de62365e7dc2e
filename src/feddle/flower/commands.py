"""Flower's own commands, and the environment that they run in."""

import os
import shutil
import sys
from pathlib import Path

from feddle.core.errors import FeddleError


def found(command: str) -> str:
    """A command of the environment that feddle is installed in."""
    beside = Path(sys.executable).parent / command
    path = str(beside) if beside.exists() else shutil.which(command)
    if path is None:
        raise FeddleError(f"a real federation needs Flower's {command}; pip install 'feddle[flower]'")
    return path


def environment() -> dict[str, str]:
    """This process's, but nothing is told to others, and nothing is installed at run time."""
    own = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else uv would fetch torch with CUDA
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **own}
