"""A tiny run of every method, and processes that are killed while they run it."""

import json
import os
import select
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feddle.run.folder import resume_run, run_config
from feddle.run.load import parse_config
from feddle.run.plan import Config
from waiting import LIMIT, wait_until

SMALL: dict[str, Any] = {
    "rounds": 8,
    "workers": 0,
    "clients": {"count": 16, "per_round": 4},
    "data": {"name": "digits", "image_size": 28, "channels": 1, "partition": {"alpha": 1.0}, "server": {"samples": 50}},
    "model": {"name": "cnn", "channels": [2, 2, 2], "hidden": 40},  # 1266 weights: enough for files of their own
    "training": {"epochs": 1, "batch_size": 128},
    "delays": {"sigma": 1.5, "per": "job"},
    "evaluation": {"every": 4},
    "checkpoint": {"every": 1},
}
ON_DISK = {"name": "disk", "memory": 0.03}  # two windows
# buffers that are full in no rhythm with the rounds, an atlas that must give up anchors, epochs in most rounds, two
# batches of server data: so that all that is remembered matters
METHODS: dict[str, dict[str, Any]] = {
    "feddle": {"name": "feddle", "atlas_size": 7},
    "feddle-fifo": {"name": "feddle", "atlas_size": 7, "eviction": "fifo"},
    "feddle-calibrated": {"name": "feddle", "atlas_size": 7, "anchors": "calibrated"},
    "feddle-blocks": {"name": "feddle", "atlas_size": 7, "coefficients": "class", "storage": "int8"},
    "feddle-on-disk": {"name": "feddle", "atlas_size": 7, "coefficients": "class", "storage": ON_DISK},
    "feddle+": {"name": "feddle+", "atlas_size": 7},
    "feddle-head": {"name": "feddle", "atlas_size": 7, "head_anchor": {}},
    "feddle-surrogate": {"name": "feddle", "atlas_size": 7, "objective": "surrogate"},
    "feddle-clusters": {"name": "feddle", "atlas_size": 7, "objective": "clusters"},
    "feddle-distil": {"name": "feddle", "atlas_size": 7, "objective": {"name": "distil", "teachers": 3}},
    "feddle-gate": {"name": "feddle", "atlas_size": 7, "gate": 0.9},
    "fedbuff": {"name": "fedbuff", "buffer_size": 5},
    "fedavg": {"name": "fedavg", "late": "average_models"},
    "fedavg-discard": {"name": "fedavg", "late": "discard"},
    "fedasync": {"name": "fedasync"},
    "ca2fl": {"name": "ca2fl", "buffer_size": 5},
    "ca2fl-on-disk": {"name": "ca2fl", "buffer_size": 5, "cache_limit": 0.001},
    "fadas": {"name": "fadas", "buffer_size": 5, "delay_threshold": 1},
    "center": {"name": "center", "epochs": 7},
    "fed+ft": {"name": "fed+ft", "base": {"name": "fedbuff", "buffer_size": 5}},
    "hfcl": {"name": "hfcl", "late": "add_deltas"},
    "feddf": {"name": "feddf", "late": "add_deltas"},
    "convex": {"name": "convex"},
    "median": {"name": "median"},
    "local": {"name": "local", "clients": 7, "epochs": 1},
}


def small(method: str, **changes: Any) -> Config:
    return parse_config({**SMALL, "method": METHODS[method] | changes.pop("options", {}), **changes})


def kept(folder: Path) -> dict[str, Any]:
    """What a run leaves, but for the time that it took; nothing else may be there."""
    files = sorted(path.name for path in folder.iterdir())
    expected = ["config.yaml", "data.json", "history.jsonl", "model.safetensors", "result.json"]
    assert files == expected, f"{folder} holds {files}"
    result = json.loads((folder / "result.json").read_bytes())
    assert result["finished"]
    assert result.pop("seconds") > 0
    return {**{name: (folder / name).read_bytes() for name in ("history.jsonl", "model.safetensors")}, "result": result}


@dataclass(frozen=True)
class KillPoint:
    """When and how a process is killed: after some seconds, or as it touches a file of the run the n-th time."""

    seconds: float | None = None
    touch: int | None = None
    name: str = ""  # if given, only files whose name begins with it count
    by: signal.Signals = signal.SIGKILL
    group: bool = False  # also those that it has started


def run_or_resume(config: Config, folder: Path) -> None:
    if (folder / "config.yaml").exists():
        resume_run(folder, quiet=True)
    else:
        run_config(config, folder, quiet=True)


def in_a_process(config: Config, folder: Path, point: KillPoint) -> bool:
    """Run or resume in a process of its own until it is killed; False if it came to its end before."""
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # the parent's OpenMP threads did not come with the fork: waiting for them hangs
            kill_at_touch(folder, point)
            run_or_resume(config, folder)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    code = end_of(child, folder, point)
    assert code in (0, -signal.SIGKILL), f"the process ended by itself with {code}"
    return code != 0


def end_of(child: int, folder: Path, point: KillPoint, *, limit: float = LIMIT) -> int:
    """Kill a process when it is time, wait until it has ended, and return its exit code."""
    if point.seconds is not None and not ended_within(point.seconds, child):
        (os.killpg if point.group else os.kill)(child, point.by)
    try:
        wait_until(lambda: ended_within(0, child), "the end of a process", folder, limit=limit)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_alive(group: int) -> bool:
    """Whether a process group has a process that has not ended."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False


def ended_within(seconds: float, process: int) -> bool:
    descriptor = os.pidfd_open(process)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def kill_at_touch(folder: Path, point: KillPoint) -> None:
    """Have this process kill itself when it opens, renames, links, cuts or removes a file of the run the n-th time."""
    left = point.touch

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if left and event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.link"):
            path = str(arguments[0])
            left -= path.startswith(str(folder)) and Path(path).name.startswith(point.name)
            if not left:
                (os.killpg if point.group else os.kill)(os.getpid(), point.by)

    if point.touch is not None:
        sys.addaudithook(hook)
