"""Flower's own commands, and their environment variables."""

import os
import shutil
import sys
from pathlib import Path

from feddle.core.errors import FeddleError


def found(command: str) -> str:
    """The path of a command that is installed next to feddle."""
    neighbour = Path(sys.executable).parent / command
    path = str(neighbour) if neighbour.exists() else shutil.which(command)
    if path is None:
        raise FeddleError(f"a real federation needs Flower's {command}; pip install 'feddle[flower]'")
    return path


def environment() -> dict[str, str]:
    """The environment of this process, without telemetry and without installations at run time."""
    own = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # otherwise uv would fetch torch with CUDA
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    return {"OMP_NUM_THREADS": "1", **os.environ, **own}
