"""Reading run folders."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from feddle.core.errors import FeddleError

CONFIG = "config.yaml"
HISTORY = "history.jsonl"
RESULT = "result.json"


@dataclass(frozen=True)
class Record:
    """One run folder, read."""

    folder: Path
    label: str
    method: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    result: dict[str, Any]


def read_run(folder: Path) -> Record:
    """Read one run folder; its history and result may be missing, as in a run that has just begun."""
    if not folder.is_dir():
        raise FeddleError(
            f"{folder}: expected a run folder, but there is no such folder; check the path or run it first"
        )
    if not _is_run(folder):
        raise FeddleError(
            f"{folder}: expected a run folder, but it holds no {CONFIG}; give a folder that `feddle run` wrote"
        )
    config = _read_config(folder / CONFIG)
    result = _read_result(folder / RESULT)
    method = _method(config, result) or folder.resolve().name
    return Record(folder, method, method, config, _read_history(folder / HISTORY), result)


def read_runs(folders: Sequence[Path]) -> list[Record]:
    """Read all runs in these folders, each once; a folder of run folders stands for those, sorted by name."""
    found: dict[Path, Path] = {}
    for folder in folders:
        for run in _runs_in(folder):
            found.setdefault(run.resolve(), run)
    if not found:
        raise FeddleError("expected at least one run folder, but none was given; name one, such as runs/feddle")
    return _with_unique_labels([read_run(run) for run in found.values()])


def accuracy_curve(record: Record) -> list[tuple[int, float]]:
    """The evaluations as (round, accuracy), by round; values that are not finite are left out.

    A round that was written twice, as a resumed run may do, counts with its later value.
    """
    curve: dict[int, float] = {}
    for entry in record.history:
        at, accuracy = entry.get("round"), finite(entry.get("accuracy"))
        if isinstance(at, int) and accuracy is not None:
            curve[at] = accuracy
    return sorted(curve.items())


def coefficient_rounds(record: Record) -> list[tuple[int, list[float]]]:
    """The coefficients of every round that searched, as (round, finite values), by round."""
    searched: dict[int, list[float]] = {}
    for entry in record.history:
        at, values = entry.get("round"), entry.get("coefficients")
        if isinstance(at, int) and isinstance(values, list):
            searched[at] = [value for value in map(finite, values) if value is not None]
    return sorted((at, values) for at, values in searched.items() if values)


LARGEST = 1e30  # beyond it a number is a broken one, and would overflow in a chart


def finite(value: object) -> float | None:
    """The value as a float, or None where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST else None


def value_in(config: Mapping[str, Any], keys: Sequence[str]) -> object:
    """What stands inside nested sections of a config; None where it is missing."""
    value: object = config if keys else None
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def _runs_in(folder: Path) -> list[Path]:
    if not folder.is_dir() or _is_run(folder):
        return [folder]
    inside = sorted(child for child in folder.iterdir() if _is_run(child))
    if not inside:
        raise FeddleError(
            f"{folder}: expected a run folder or a folder of them, but found no {CONFIG}"
            " in it or one level below; give a folder that `feddle run` wrote"
        )
    return inside


def _with_unique_labels(records: list[Record]) -> list[Record]:
    count = Counter(record.method for record in records)
    names = distinct_names([record.folder for record in records])
    return [
        replace(record, label=_label(record.method, name)) if count[record.method] > 1 else record
        for record, name in zip(records, names, strict=True)
    ]


def _label(method: str, name: str) -> str:
    # Folders are often named after their method: `feddle (feddle-seed1)` would say it twice.
    return name if name.startswith(method) and name != method else f"{method} ({name})"


def distinct_names(folders: list[Path]) -> list[str]:
    """The shortest endings of the paths that tell all folders apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _method(config: dict[str, Any], result: dict[str, Any]) -> str | None:
    section = config.get("method")
    named = section.get("name") if isinstance(section, dict) else section
    for name in (result.get("method"), named):
        if isinstance(name, str) and name.strip():
            return name.strip()
    return None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(_read(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _broken(path, "YAML", error) from error
    return _mapping(found, path)


def _read_result(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise _broken(path, "JSON", error) from error
    return _mapping(found, path)


def _read_history(path: Path) -> list[dict[str, Any]]:
    return list(_entries(path)) if path.exists() else []


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    lines = [(number, line) for number, line in enumerate(_read(path).split(b"\n"), 1) if line.strip()]
    for number, line in lines:
        try:
            yield _mapping(json.loads(line), path, f", line {number}")
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if number == lines[-1][0]:
                return  # The run is writing this line, or was killed while it did.
            raise _broken(path, "JSON", error, f", line {number}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FeddleError(f"{path}: expected a readable file, but {error.strerror}; check the run folder") from error


def _mapping(value: object, path: Path, where: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FeddleError(
            f"{path}{where}: expected named values, but found {type(value).__name__};"
            " leave this run out or mend the file"
        )
    return value


def _broken(path: Path, kind: str, error: Exception, where: str = "") -> FeddleError:
    reason = " ".join(str(error).split())  # YAML explains itself over several lines.
    return FeddleError(f"{path}{where}: expected {kind}, but {reason}; leave this run out or mend the file")
