"""Reading the files of a run and of a grid. Fields that are missing or damaged are left out."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from feddle.core.errors import FeddleError
from feddle.core.metrics import metric_named
from feddle.core.parse import parse_yaml
from feddle.records import (
    CELL,
    CONFIG,
    DATA,
    GRID,
    HISTORY,
    RESULT,
    STATUS,
    CellRecord,
    DataRecord,
    GridRecord,
    HistoryLine,
    Result,
    RunRecord,
    Status,
    summary,
)


def read_run(folder: Path) -> RunRecord:
    """Read a run folder. Its history and result may be missing, as in a run that has just started.

    Fields with invalid values, such as NaN, are left out.
    """
    if not folder.is_dir():
        why = "it is a file" if folder.exists() else "there is no such folder"
        raise FeddleError(f"{folder}: expected a run folder, but {why}; check the path")
    if not (folder / CONFIG).is_file():
        raise FeddleError(f"{folder}: expected a run folder, but it holds no {CONFIG}; name a folder of `feddle run`")
    config = _parsed(folder / CONFIG, _read(folder / CONFIG), "YAML", parse_yaml)
    result = _parsed(folder / RESULT, _read(folder / RESULT), "JSON") if (folder / RESULT).exists() else {}
    found = _lines(folder / HISTORY) if (folder / HISTORY).exists() else []
    lines = (_checked(line, HistoryLine) for line in found)
    rounds = {line["round"]: cast(HistoryLine, line) for line in lines if "round" in line}  # the last line of each
    history, checked = [rounds[number] for number in sorted(rounds)], _checked(result, Result)
    numbers = {**summary(history), **checked} if history else checked
    metric = metric_named(numbers.get("metric"))
    scores = numbers.get(metric.name), numbers.get(f"last_{metric.name}")
    kept = {name: numbers.get(name) for name in ("negative_share", "seconds", "bytes_up", "bytes_down")}
    data = cast(DataRecord, _checked(read_mapping(folder / DATA), DataRecord))
    return RunRecord(folder, config, history, cast(Result, checked), data, read_cell(folder), metric, *scores, **kept)


def read_result(folder: Path) -> Result:
    """The result of a run, without fields that are missing or damaged."""
    return cast(Result, _checked(read_mapping(folder / RESULT), Result))


def read_cell(folder: Path) -> CellRecord:
    """What produced the run in a folder, without fields that are missing or damaged."""
    return cast(CellRecord, _checked(read_mapping(folder / CELL), CellRecord))


def read_status(folder: Path) -> Status | None:
    """The state of the federation in a folder; None if it is missing or damaged."""
    with suppress(ValidationError):
        return TypeAdapter(Status).validate_python(read_mapping(folder / STATUS), strict=True)
    return None


def parse_line(text: str) -> HistoryLine:
    """A line of the history, without fields that are missing or damaged."""
    return cast(HistoryLine, _checked(parse_mapping(text), HistoryLine))


def read_grid_record(folder: Path) -> GridRecord:
    """The record of a grid; ValueError or KeyError if it is damaged."""
    try:
        found = TypeAdapter(GridRecord).validate_python(json.loads((folder / GRID).read_bytes()), strict=True)
        return {**found, "cells": found["cells"]}
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty if it is missing or damaged."""
    with suppress(OSError):
        return parse_mapping(path.read_bytes())
    return {}


def parse_mapping(text: str | bytes) -> dict[str, Any]:
    """The mapping in a JSON text; empty if it is damaged."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}


@cache
def _types(kind: type) -> dict[str, TypeAdapter[Any]]:
    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _checked(found: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The fields whose values have the types that `kind` declares, so that readers need not check them."""
    types, kept = _types(kind), {}
    for name, value in found.items():
        with suppress(ValidationError):
            kept[name] = types[name].validate_python(value, strict=True) if name in types else value
    return {name: value for name, value in kept.items() if value is not None}


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file. An incomplete last line, which a run is writing or did not finish, is left out."""
    lines = enumerate(_read(path).split(b"\n")[:-1], 1)
    return [_parsed(path, line, "JSON", where=f", line {number}") for number, line in lines if line.strip()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FeddleError(f"{path}: expected a readable file, but {error.strerror}; check the run folder") from error


def _parsed(
    path: Path, text: bytes, kind: str, load: Callable[[bytes], object] = json.loads, where: str = ""
) -> dict[str, Any]:
    """The mapping in a text. An error names the file and the place."""
    try:
        found = load(text)
        problem = f"expected named values, but found {type(found).__name__}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        found, problem = None, f"expected {kind}, but {' '.join(str(error).split())}"  # YAML's messages have many lines
    if not isinstance(found, dict):
        raise FeddleError(f"{path}{where}: {problem}; leave this run out or fix the file")
    return found
