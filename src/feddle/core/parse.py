"""Strict reading of YAML files."""

from functools import partial
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_KINDS = tuple(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp"))


class _Loader(yaml.SafeLoader):
    """Strict YAML: a duplicate key, a mapping or list that contains itself, and exotic tags are errors."""

    yaml_constructors = {tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (*_KINDS, None)}  # noqa: RUF012

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node in self.recursive_objects:  # it is being constructed
            raise yaml.MarkedYAMLError(problem="a mapping or list contains itself", problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError, OverflowError) as error:  # !!bool x, !!int '', 2024-13-01
            problem = f"expected a value of the type {node.tag.removeprefix(_TAG)}, got {node.value!r}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):  # by default, the last value would be used
            keys = [key.value for key, _ in node.value]
            twice = next((k for i, k in enumerate(keys) if k in keys[:i]), keys[-1])
            raise yaml.MarkedYAMLError(problem=f"the key {twice!r} is given twice", problem_mark=node.start_mark)
        return mapping


# With deep=True, content is constructed at once, so a mapping or list that contains itself is detected.
_Loader.add_constructor(f"{_TAG}map", partial(_Loader.construct_mapping, deep=True))
_Loader.add_constructor(f"{_TAG}seq", partial(_Loader.construct_sequence, deep=True))


def parse_yaml(text: str | bytes) -> Any:
    """The value of a YAML text; any problem raises a YAMLError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
    except (ValueError, RecursionError) as error:  # too many brackets
        raise yaml.YAMLError(str(error)) from error
