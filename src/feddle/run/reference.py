"""The reference of every config key, made from the configs themselves."""

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from feddle.options import members_of
from feddle.run.plan import Config

_HEAD = """# Configuration

Made by `feddle schema --markdown`. A config file is YAML; every key has a default. `-o KEY=VALUE` on the command line
sets a key (`-o method.search.lr=0.01`). Where there is a choice, a bare name stands for it with its defaults (`method:
fedbuff`), and options without a name belong to the default choice.
"""


def reference() -> str:
    """Every key with its default and meaning, as Markdown."""
    sections = [_section(Config, "")]
    return "\n".join([_HEAD, *sections])


def _section(model: type[BaseModel], path: str) -> str:
    rows, below = [], []
    for name, field in model.model_fields.items():
        key = f"{path}{name}"
        members = members_of(field)
        if members:
            below += [_below(member, key, len(members) > 1 or "name" in member.model_fields) for member in members]
        elif name != "name" or not path:
            default = "required" if field.is_required() else f"`{_default(field)}`"
            rows.append(f"| `{key}` | {default} | {_cell(field.description or '')} |")
    table = ["| key | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join([*table, *below])


def _below(member: type[BaseModel], key: str, named: bool) -> str:
    title = f"## {key}: {member.model_fields['name'].default}" if named else f"## {key}"
    return "\n".join([title, "", f"{member.__doc__}", "", _section(member, f"{key}.")])


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value) if isinstance(value, tuple) else value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")  # a bar would end the cell
