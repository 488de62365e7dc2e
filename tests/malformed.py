"""Malformed inputs for the command line: valid ones to which something has happened.

Each function of `INPUTS` writes an input into a folder and returns the words of a command that reads it. Whatever it
reads, feddle must end with code 0, or with code 2 and one line; it must run nothing that an input contains.
"""

import copy
import csv
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from command import Completed
from killing import SMALL
from test_fuzz import SCALARS, TOKENS, TREE, Random, bend, break_text, malformed

CANARY = "canary"  # what a payload creates next to the input
RESULTS = Path(__file__).parent.parent / "results"
# the shortest run; also overrides what a mutation made long
SHORT = ("-o", "rounds=1", "-o", "workers=0", "-o", "training.epochs=1")
OWN = (*SHORT, "-o", "model={name: cnn, channels: [2, 2, 2], hidden: 8}", "-o", "data.image_size=28")


@dataclass(frozen=True)
class Kit:
    """Valid inputs: a table of images, arrays, a stopped run, a finished one, a comparison, a grid, certificates."""

    folder: Path

    def copy(self, name: str, folder: Path) -> Path:
        """A copy that can be damaged."""
        return Path(shutil.copytree(self.folder / name, folder / name))

    def make_data(self) -> None:
        """Write those that need no command."""
        pixels = np.random.default_rng(0).integers(0, 255, (24, 8, 8, 3), dtype=np.uint8)
        table = self.folder / "table"
        (table / "images").mkdir(parents=True)
        rows = [["path", "label", "client", "split"]]
        for i, image in enumerate(pixels):
            Image.fromarray(image).save(table / "images" / f"{i}.png")
            rows.append([f"images/{i}.png", f"class {i % 2}", f"hospital {i % 4}", "test" if i >= 16 else "train"])
        with (table / "mine.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        (self.folder / "config.yaml").write_text(yaml.safe_dump({**SMALL, "method": "fedbuff", "rounds": 3}))
        if RESULTS.is_dir():
            source = next(RESULTS.glob("*/grid.json")).parent
            (self.folder / "grid").mkdir()
            shutil.copy(source / "grid.json", self.folder / "grid")
            for run in sorted(path.parent for path in source.rglob("result.json"))[:3]:
                shutil.copytree(run, self.folder / "grid" / run.relative_to(source))


class Payload:
    """A pickle that creates the canary when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def fault(done: Completed, folder: Path) -> str | None:
    """What is wrong with the end of a command, or None."""
    if (folder / CANARY).exists():
        return "what an input contains was run"
    if "Traceback" in done.text:
        return f"a traceback, and exit code {done.code}"
    if done.code == 2 and (done.err.count("\n") != 1 or not done.err.startswith("feddle: ")):
        return f"exit code 2 with {done.err.count(chr(10))} lines"
    return None if done.code in (0, 2) else f"exit code {done.code}"


def yaml_payload(folder: Path) -> bytes:
    return f"!!python/object/apply:os.mkdir [{json.dumps(str(folder / CANARY))}]".encode()


def broken(rng: Random, content: bytes, folder: Path) -> bytes:
    """Bytes to which something has happened."""
    match rng.integers(8):
        case 0:
            return pickle.dumps(Payload(folder / CANARY))
        case 1:
            return b""
        case 2:
            return content[: rng.integers(len(content) + 1)]
        case 3:
            return rng.bytes(int(rng.integers(1, 300)))
        case 4:
            flipped = bytearray(content)
            for at in rng.integers(0, max(1, len(flipped)), size=3):
                flipped[at : at + 1] = rng.bytes(1)
            return bytes(flipped)
        case _:
            return break_text(rng, content)


def bent(rng: Random, tree: Any) -> Any:
    """A tree of JSON values to which something has happened."""
    tree = copy.deepcopy(tree) if isinstance(tree, dict) else {"": tree}
    for _ in range(rng.integers(1, 4)):
        bend(rng, tree)
    return tree


def damage(rng: Random, file: Path, folder: Path) -> None:
    """Replace a file by a damaged one, or by something that is no file."""
    content = file.read_bytes()
    match rng.integers(9):
        case 0:
            file.unlink()
        case 1:
            file.unlink()
            file.mkdir()
        case 2:
            file.unlink()
            file.symlink_to(file)
        case 3 | 4 | 5:
            try:
                file.write_bytes(with_other_values(rng, file.suffix, content))
            except (ValueError, yaml.YAMLError):  # it has no values, or was damaged before
                file.write_bytes(broken(rng, content, folder))
        case _:
            file.write_bytes(broken(rng, content, folder))


def with_other_values(rng: Random, suffix: str, content: bytes) -> bytes:
    """A JSON or YAML file with other keys and values."""
    if suffix == ".yaml":
        text = yaml.safe_dump(bent(rng, yaml.safe_load(content)), allow_unicode=True)
        return text.encode("utf-8", "surrogatepass")
    lines = content.splitlines() if suffix == ".jsonl" else [content]
    at = int(rng.integers(len(lines)))
    lines[at] = json.dumps(bent(rng, json.loads(lines[at])), default=repr).encode()
    return b"\n".join(lines) + b"\n"


def one_file(rng: Random, folder: Path) -> Path:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return files[rng.integers(len(files))]


# --- the inputs


def config(rng: Random, _: Kit, folder: Path) -> list[str]:
    text = malformed(rng)
    if rng.random() < 0.2:
        at = int(rng.integers(len(text) + 1))
        text = text[:at] + yaml_payload(folder) + text[at:]
    (folder / "config.yaml").write_bytes(text)
    command = [["run"], ["compare", "--methods", "fedavg"]][rng.integers(2)]
    return [*command, "config.yaml", "-q", "--out", "out", *SHORT]


def overrides(rng: Random, kit: Kit, folder: Path) -> list[str]:
    shutil.copy(kit.folder / "config.yaml", folder)
    words = ["run", "config.yaml", "-q", "--out", "out", *SHORT]
    paths = [
        "rounds",
        "method",
        "data",
        "data.partition",
        "method.search",
        "model",
        "clients.count",
        "a.b",
        "",
        ".",
        "seed",
    ]
    for _ in range(rng.integers(1, 3)):
        scalar = SCALARS[rng.integers(len(SCALARS))]
        text = [
            yaml.safe_dump(scalar, allow_unicode=True).encode("utf-8", "surrogatepass"),
            TOKENS[rng.integers(len(TOKENS))],
            yaml_payload(folder),
            json.dumps(bent(rng, TREE), default=repr).encode(),
        ][rng.integers(4)]
        word = paths[rng.integers(len(paths))].encode() + b"=" + text
        words += ["-o", os.fsdecode((break_text(rng, word) if rng.random() < 0.3 else word).replace(b"\0", b""))]
    return words


def table(rng: Random, kit: Kit, folder: Path) -> list[str]:
    data = kit.copy("table", folder)
    if rng.random() < 0.3:
        damage(rng, one_file(rng, data / "images"), folder)
    else:
        with (data / "mine.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        for _ in range(rng.integers(0, 3)):
            odd = (
                "",
                "../../../etc/passwd",
                "/dev/zero",
                "images",
                "x" * 9999,
                "\u2028",
                "\ud800",
                "-1",
                "nan",
                "train",
            )
            row = rows[rng.integers(len(rows))]
            row[rng.integers(len(row))] = odd[rng.integers(len(odd))]
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        content = text.getvalue().encode("utf-8", "surrogatepass")
        (data / "mine.csv").write_bytes(broken(rng, content, folder) if rng.random() < 0.6 else content)
    return ["run", "--data", "table/mine.csv", "-q", "--out", "out", *OWN]


def arrays(rng: Random, _: Kit, folder: Path) -> list[str]:
    held: dict[str, Any] = {
        "images": rng.integers(0, 255, (24, 8, 8, 3), dtype=np.uint8),
        "labels": np.arange(24) % 2,
        "clients": np.arange(24) % 4,
        "splits": np.array(["train"] * 16 + ["test"] * 8),
    }
    name = list(held)[rng.integers(4)]
    odd: tuple[Any, ...] = (
        np.array([Payload(folder / CANARY)] * 24, dtype=object),
        held[name][:5],
        held[name].reshape(-1),
        held[name][..., None],
        held[name].astype(str),
        np.full(24, np.nan),
        np.zeros((0, 8, 8), np.uint8),
        np.zeros((24, 1, 1), np.uint8),
        np.zeros((24, 2, 3000), np.uint8),
        np.full(24, -(2**63)),
        np.array("train"),
        np.zeros(24, dtype=[("a", "i4")]),
        np.array([""] * 24),
    )
    held[name] = odd[rng.integers(len(odd))] if rng.random() < 0.7 else held[name]
    if rng.random() < 0.2:
        del held[list(held)[rng.integers(4)]]
    buffer = io.BytesIO()
    np.savez(buffer, **held)
    content = buffer.getvalue()
    (folder / "mine.npz").write_bytes(broken(rng, content, folder) if rng.random() < 0.4 else content)
    return ["run", "--data", "mine.npz", "-q", "--out", "out", *OWN]


def checkpoint(rng: Random, kit: Kit, folder: Path) -> list[str]:
    damage(rng, one_file(rng, kit.copy("stopped", folder)), folder)
    return ["resume", "stopped", "-q"]


def comparison(rng: Random, kit: Kit, folder: Path) -> list[str]:
    damage(rng, kit.copy("compared", folder) / "compare.yaml", folder)
    return ["resume", "compared", "-q"]


def report(rng: Random, kit: Kit, folder: Path) -> list[str]:
    names = [name for name in ("finished", "stopped", "compared", "grid") if (kit.folder / name).is_dir()]
    name = names[rng.integers(len(names))]
    for _ in range(rng.integers(1, 3)):
        copied = folder / name if (folder / name).exists() else kit.copy(name, folder)
        damage(rng, one_file(rng, copied), folder)
    runs = [f"{name}/fedavg", f"{name}/fedbuff"] if name == "compared" else [name]
    export = [[], ["--export", "csv", "--export", "markdown", "--export", "latex"]][rng.integers(2)]
    return ["report", *runs, "--out", "page.html", *export]


def certificates(rng: Random, kit: Kit, folder: Path) -> list[str]:
    keys = kit.copy("certificates", folder)
    for _ in range(rng.integers(1, 3)):
        damage(rng, one_file(rng, keys), folder)
    hosts = ("localhost", "127.0.0.1", "", "a b", "\u2028", "xn--", "::1", "*.example.org", "a" * 300)
    return ["federation", "certificates", "certificates", "--nodes", "2", "--host", hosts[rng.integers(len(hosts))]]


Input = Callable[[Random, Kit, Path], list[str]]
INPUTS: tuple[Input, ...] = (config, overrides, table, arrays, checkpoint, comparison, report, certificates)
# the commands that make the rest of a kit, in its folder
KIT: tuple[tuple[str, ...], ...] = (
    ("run", "config.yaml", "-q", "--out", "finished"),
    ("run", "config.yaml", "-q", "--out", "whole", "-o", "rounds=8"),
    ("compare", "config.yaml", "-q", "--methods", "fedavg,fedbuff", "--out", "compared", "-o", "rounds=2"),
    ("federation", "certificates", "certificates", "--nodes", "1", "--host", "localhost"),
)
