"""Random trials against feddle until the time is over: killed runs, malformed inputs, hostile updates.

Every trial follows from the seed and its number, so that one that failed can be repeated.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from command import Completed, fork_feddle
from feddle.data.datasets import load
from feddle.server import Server
from killing import METHODS, SMALL, KillPoint, end_of, is_alive, kept, kill_at_touch
from malformed import INPUTS, KIT, Kit, checkpoint, fault
from test_fuzz import attack_a_live_server
from test_resume import SETTINGS
from test_strategies import STRATEGIES
from three_numbers import weights
from waiting import StuckError, wait_until

BATCH = 8  # malformed inputs in a trial
HOSTILE = 400  # updates in a trial
MEMORY = 3 * 2**30  # bytes that a command may allocate
LONGEST = 300.0  # seconds that a command on a malformed input may take
Draw = random.Random


@dataclass
class Outcome:
    """What a trial did, and what it found: a fault and the folder that shows it."""

    did: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, Path]] = field(default_factory=list)


def completed_in(folder: Path, code: int) -> Completed:
    """What a forked command has left."""
    return Completed(code, *((folder / name).read_text(errors="replace") for name in ("stdout", "stderr")))


# --- runs that are killed


def drawn_config(draw: Draw) -> dict[str, Any]:
    """A small run of some method, with other numbers each time."""
    method = dict(METHODS[draw.choice(list(METHODS))])
    for name, most in (("atlas_size", 9), ("buffer_size", 7)):
        if name in method:
            method[name] = draw.randint(2, most)
    changes = draw.choice([{}, {}, *SETTINGS.values()])
    return {
        **SMALL,
        "seed": draw.randrange(10**6),
        "rounds": draw.randint(2, 10),
        "workers": draw.choice([0, 2]),
        "delays": {"sigma": draw.choice([0.0, 1.5, 4.0]), "per": draw.choice(["client", "job"])},
        "evaluation": {"every": draw.randint(1, 4)},
        "checkpoint": {"every": draw.choice([1, 1, 2, 3])},
        **changes,
        "method": method,
    }


def drawn_point(draw: Draw, seconds: float) -> KillPoint:
    """A moment in the first second, at any time, at a write, or while the run finishes."""
    how: dict[str, Any] = {
        "by": draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]),
        "group": draw.random() < 0.5,
    }
    last = draw.choice(["result.json", "model.safetensors", "report.html", "manifest.json", "history.jsonl"])
    return draw.choice(
        [
            KillPoint(seconds=draw.uniform(0, 1), **how),
            KillPoint(seconds=draw.uniform(0, seconds + 2), **how),
            KillPoint(touch=draw.randint(1, 120), **how),
            KillPoint(touch=draw.randint(1, 6), name=last, **how),
        ]
    )


def killed_run(draw: Draw, folder: Path, _: Kit) -> Outcome:
    """Kill a run again and again, resume it, and compare it with one that was never stopped."""
    tree, outcome = drawn_config(draw), Outcome(Counter({"runs": 1}))
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    began = time.monotonic()
    undisturbed = ("run", "config.yaml", "-q", "--out", "whole", "-o", "workers=0", "-o", "checkpoint.every=0")
    code = end_of(fork_feddle(*undisturbed, cwd=folder), folder, KillPoint())
    assert code == 0, completed_in(folder, code)
    seconds = time.monotonic() - began
    for point in [*(drawn_point(draw, seconds) for _ in range(draw.randint(1, 4))), KillPoint()]:
        fresh = point.seconds is not None and draw.random() < 0.3
        with (folder / "points").open("a") as file:
            print(point, "fresh" if fresh else "", file=file)
        outcome.did["kills"] += run_or_resume(folder, point, fresh=fresh)
    assert outcome_of(folder / "run") == outcome_of(folder / "whole"), "not bit-identical"
    return outcome


def outcome_of(run: Path) -> dict[str, Any]:
    """What a run leaves, except its page."""
    for page in run.glob("report.html*"):  # a page that was half written has a name of its own
        page.unlink(missing_ok=True)
    return kept(run)


def run_or_resume(folder: Path, point: KillPoint, *, fresh: bool) -> bool:
    """Run or resume until the process is killed or at its end; whether it was killed."""
    run = folder / "run"
    begun = (run / "config.yaml").exists()
    words = ("resume", "run", "-q") if begun else ("run", "config.yaml", "-q", "--out", "run")
    child = fork_feddle(*words, cwd=folder, prepare=partial(kill_at_touch, Path("run"), point), fresh=fresh)
    done = completed_in(folder, end_of(child, folder, point))
    wait_until(lambda: not is_alive(child), "the end of its workers")
    if fresh and done.code == -signal.SIGINT:  # it came while Python itself was starting
        return True
    stopped = 130 if point.by == signal.SIGINT else -point.by
    assert done.code in (0, stopped) if point != KillPoint() else done.code == 0, done
    # Python itself prints and drops an interrupt that reaches a callback of the compiler (numba)
    assert "Traceback" not in done.text or "Exception ignored" in done.err, done
    assert done.code != 130 or len(done.err.split("\n")) <= 3, done  # click begins a new line after ^C
    return done.code != 0


# --- malformed inputs


def malformed_inputs(draw: Draw, folder: Path, kit: Kit) -> Outcome:
    """Give commands malformed inputs."""
    outcome = Outcome()
    for number in range(BATCH):
        rng = np.random.default_rng(draw.getrandbits(64))
        write = draw.choice(INPUTS)
        place = folder / f"{number}-{write.__name__}"
        place.mkdir()
        words = write(rng, kit, place)
        (place / "words").write_bytes(os.fsencode("\n".join(words)))
        found = fault_of(words, place, fresh=draw.random() < 0.02)
        if found is None and write is checkpoint and (place / "stopped" / "report.html").exists():
            same = outcome_of(place / "stopped") == outcome_of(kit.folder / "whole")
            found = None if same else "resumed, but not bit-identical"
        outcome.did["inputs"] += 1
        if found is None:
            shutil.rmtree(place)
        else:
            outcome.faults.append((f"{write.__name__}: {found}", place))
    return outcome


def fault_of(words: Sequence[str], place: Path, *, fresh: bool) -> str | None:
    """What is wrong with the end of a command."""
    child = fork_feddle(*words, cwd=place, prepare=limit_memory, fresh=fresh)
    try:
        return fault(completed_in(place, end_of(child, place, KillPoint(), limit=LONGEST)), place)
    except StuckError as error:
        lines = sum(path.read_bytes().count(b"\n") for path in place.rglob("history.jsonl"))
        return None if lines > 50 else str(error)  # a run of many rounds is valid


def limit_memory() -> None:
    """A mutation may ask for more memory than there is."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def make_kit(folder: Path) -> Kit:
    """The valid inputs."""
    kit = Kit(folder)
    kit.make_data()
    for words in KIT:
        code = end_of(fork_feddle(*words, cwd=folder), folder, KillPoint())
        assert code == 0, completed_in(folder, code)
    point = KillPoint(touch=3, name="manifest.json", by=signal.SIGINT)  # it stops in its third checkpoint
    stopped = ("run", "config.yaml", "-q", "--out", "stopped", "-o", "rounds=8")
    child = fork_feddle(*stopped, cwd=folder, prepare=partial(kill_at_touch, Path("stopped"), point))
    code = end_of(child, folder, point)
    assert code == 130, completed_in(folder, code)
    return kit


# --- hostile updates


def hostile_updates(draw: Draw, folder: Path, _: Kit) -> Outcome:
    """Send hostile updates between good ones to a server."""
    name = draw.choice([name for name in STRATEGIES if name not in ("center", "fed+ft", "hfcl", "feddf")])
    (folder / "strategy").write_text(name)

    def make() -> Server:
        return Server(
            weights(1.0, 2.0, 3.0, buffers=[1.0, 2.0]), STRATEGIES[name](), digest="ours", max_norm_ratio=100.0
        )

    refused, accepted = attack_a_live_server(HOSTILE, draw.getrandbits(32), make)
    return Outcome(Counter({"refused": refused.total(), "accepted": accepted}))


# --- the trials

Trial = Callable[[Draw, Path, Kit], Outcome]
TRIALS: tuple[Trial, ...] = (killed_run, malformed_inputs, hostile_updates)


def try_one(seed: int, number: int, home: Path) -> Outcome:
    """One trial; its folder is kept if it fails."""
    trial, folder = TRIALS[number % len(TRIALS)], home / f"trial-{number}"
    folder.mkdir()
    torch.set_num_threads(1)
    try:
        outcome = trial(random.Random(f"{seed} {number}"), folder, Kit(home / "kit"))  # noqa: S311
    except Exception as error:  # anything that goes wrong is a finding
        (folder / "error").write_text(traceback.format_exc())
        what = str(error) or type(error).__name__
        outcome = Outcome(faults=[(f"{trial.__name__}: {what[-2000:]}", folder)])
    if not outcome.faults:
        shutil.rmtree(folder)
    return outcome


def outcomes(seed: int, numbers: Iterator[int], home: Path, until: float, jobs: int) -> Iterator[tuple[int, Outcome]]:
    """Trials on several cores until the time is over, as they end; at least one of each kind."""
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        running: dict[Future[Outcome], int] = {}
        while True:
            for number in numbers:
                running[pool.submit(try_one, seed, number, home)] = number
                if len(running) == jobs:
                    break
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()
            if time.monotonic() >= until:
                numbers = takewhile(lambda number: number < len(TRIALS), numbers)


def summary(did: Counter[str], faults: int) -> str:
    """What was done, in one line."""
    good = ", all bit-identical" if not faults else ""
    return (
        f"{did['runs']} runs killed {did['kills']} times{good}; {did['inputs']} malformed inputs, "
        f"{did['refused']} hostile updates refused, {did['accepted']} accepted; "
        + (f"{faults} faults" if faults else "no fault")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run trials, show what they find, and return 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, prog="torture.py")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long; 20 by default")
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--trial", type=int, default=None, help="only the trial with this number")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trials at a time")
    asked = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="feddle-torture-"))
    print(f"seed {seed}, {asked.minutes:g} minutes, in {home}", flush=True)
    load("digits", quiet=True)
    (home / "kit").mkdir()
    make_kit(home / "kit")
    did, faults, shown = Counter[str](), 0, 0.0
    numbers = iter(range(10**9)) if asked.trial is None else iter([asked.trial])
    try:
        for number, outcome in outcomes(seed, numbers, home, began + 60 * asked.minutes, asked.jobs):
            did += outcome.did
            faults += len(outcome.faults)
            for what, folder in outcome.faults:
                print(f"\nFAULT in trial {number}: {what}\n  see {folder}")
                print(f"  repeat: {sys.executable} {__file__} --seed {seed} --trial {number}", flush=True)
            if sys.stdout.isatty() or time.monotonic() - shown >= 30:
                shown = time.monotonic()
                end = "\r" if sys.stdout.isatty() else "\n"
                print(f"{(shown - began) / 60:5.1f} min: {summary(did, faults)}", end=end, flush=True)
    except KeyboardInterrupt:
        print("\nstopped", end="")
    print(f"\nseed {seed}, {(time.monotonic() - began) / 60:.1f} minutes: {summary(did, faults)}")
    if not faults:
        shutil.rmtree(home)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
