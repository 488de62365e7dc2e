"""Reading configs from YAML files and the command line."""

import re
import reprlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from feddle.core.errors import FeddleError, did_you_mean, nearest, one_line
from feddle.core.parse import parse_yaml
from feddle.records import COMPARISON, CONFIG, GRID, GRID_LOCK

if TYPE_CHECKING:
    from feddle.run.plan import Config

Checked = TypeVar("Checked", bound=BaseModel)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> "Config":
    """The config in the YAML file `path`, with `overrides` such as `method.atlas_size=20` applied."""
    return parse_config(read_yaml(Path(path)), overrides, source=str(path))


def parse_config(tree: dict[str, Any], overrides: Sequence[str] = (), *, source: str = "config") -> "Config":
    """Validate a config given as nested dicts. An error names the file, the key and the remedy in one line."""
    from feddle.run.plan import Config  # imports torch, which is slow; a missing file is reported first

    trees = [tree]
    for override in overrides:
        key, value = parse_override(override)
        trees.append(with_value(trees[-1], key.split("."), value))
    try:
        return validated(Config, trees[-1], source=source)
    except FeddleError:
        for before, after, override in reversed(list(zip(trees, trees[1:], overrides, strict=False))):
            with suppress(ValidationError):
                Config.model_validate(before)  # if it is valid, this override is the mistake
                validated(Config, after, source=f"-o {override}")
        raise


def validated(kind: type[Checked], tree: dict[str, Any], *, source: str) -> Checked:
    """Validate options in nested dicts. A one-line error names the source, the key, and what was expected and found."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first, *others = error.errors()
        place = f"{key}: " if (key := _key(first, tree)) else ""
        more = f" (and {len(others)} more)" if others else ""
        raise FeddleError(f"{source}: {one_line(place + _problem(first) + more)}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        near = nearest(path.name, [each.name for each in path.parent.glob("*.yaml")])
        hint = f"did you mean {path.with_name(near)}?" if near else "check the path"
        raise FeddleError(f"no config file {path}; {hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FeddleError(f"cannot read the config file {path}: {one_line(str(error))}") from error
    except yaml.YAMLError as error:
        raise FeddleError(f"{path} is not valid YAML: {_yaml_problem(error)}") from error
    if not isinstance(tree, dict | None):
        raise FeddleError(f"{path} must contain keys and values (rounds: 200), got {type(tree).__name__}")
    return tree or {}


def started_in(folder: Path) -> str:
    """What was started in a folder: a run, simulation, federation, comparison or grid; empty if nothing was."""
    if (folder / CONFIG).exists():
        held = read_yaml(folder / CONFIG)
        return next((kind for kind in ("federation", "simulation") if kind in held), "run")
    kinds = {COMPARISON: "comparison", GRID: "grid", GRID_LOCK: "grid"}
    return next((kind for name, kind in kinds.items() if (folder / name).exists()), "")


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f" at line {mark.line + 1}" if mark else ""
    return one_line(str(problem or str(error).splitlines()[0])) + where


def parse_override(override: str) -> tuple[str, Any]:
    """The dotted key and the value of KEY=VALUE."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise FeddleError(f"expected KEY=VALUE, such as method.atlas_size=20, got {override!r}")
    if re.fullmatch(r"[\w.]+:", text):  # an import path without its end; YAML would make it a mapping
        return key, text
    try:
        return key, parse_yaml(text)
    except yaml.YAMLError as error:
        raise FeddleError(f"the value of {key} is not valid YAML: {_yaml_problem(error)}") from error


def with_value(tree: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of the tree with one value set. A bare name on the path becomes a mapping with that name."""
    first, *rest = path
    if not rest:
        return {**tree, first: value}
    inner = tree.get(first)
    inner = {"name": inner} if isinstance(inner, str) else inner
    return {**tree, first: with_value(inner if isinstance(inner, dict) else {}, rest, value)}


def _key(problem: ErrorDetails, tree: Any) -> str:
    """The dotted key as the user wrote it. Pydantic also lists the chosen member of a union, which is not a key."""
    keys, missing = [], problem["loc"][-1:] if problem["type"] == "missing" else ()
    for step in problem["loc"]:
        if isinstance(tree, str):  # a bare name, which has no keys inside
            break
        if not isinstance(tree, dict) or step in tree:
            keys.append(step)
            tree = tree.get(step) if isinstance(tree, dict) else None
    return ".".join(map(str, (*keys, *missing)))


_EXPECTED = {
    "int": "a whole number, such as 10",
    "float": "a number, such as 0.1",
    "bool": "true or false",
    "string": "a text",
}


def _problem(problem: ErrorDetails) -> str:
    if problem["type"] == "union_tag_invalid":
        context = problem["ctx"]
        expected = context["expected_tags"].replace("'", "").split(", ")
        hint = did_you_mean(context["tag"], expected, f"the known names are {', '.join(expected)}")
        return f"unknown name {context['tag']!r}; {hint}"
    if problem["type"] in ("model_type", "dict_type"):
        return f"expected options ({{KEY: VALUE}}, or {{}} for the defaults), got {_shown(problem['input'])}"
    for kind, expected in _EXPECTED.items():
        if problem["type"] in (f"{kind}_parsing", f"{kind}_type", f"{kind}_from_float"):
            return f"expected {expected}, got {_shown(problem['input'])}"
    message = problem["msg"].removeprefix("Value error, ")
    message = re.sub(r"\d{16,}", lambda digits: f"{float(digits[0]):g}", message)  # a bound such as 1e36
    found = "" if problem["type"] in ("value_error", "missing") else f", got {_shown(problem['input'])}"
    return message[0].lower() + message[1:] + found


_BRIEF = reprlib.Repr()  # with YAML aliases, a small file can describe a huge value
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother = 2, 80, 80


def _shown(value: Any) -> str:
    try:
        return _BRIEF.repr(value)
    except ValueError:  # Python does not print numbers of more than 4300 digits
        return "a number of thousands of digits"
