"""Saving state: dataclasses of tensors and numbers are converted to named tensors and back.

A field may hold a tensor, a number, a string, None, another dataclass, or a list, deque, set or dict of these. A tensor
keeps its name, such as `buffer.step`. All other values become one tensor with JSON text, so a million numbers need only
one name. An object that owns preallocated memory has its own `state_dict` and `load_state_dict`.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

Named = Mapping[str, Tensor]
_VALUES = "values.json"  # the name of the values that are not tensors; no field can have it
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def save(state: Any) -> dict[str, Tensor]:
    """The state as named tensors; tensors in it are not copied."""
    if state is None:
        return {}
    if hasattr(state, "state_dict"):
        return dict(state.state_dict())
    tensors: dict[str, Tensor] = {}
    values = {name: _encode(getattr(state, name), name, tensors) for name in _hints(type(state))}
    return {**tensors, _VALUES: torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)}


def load(state: Any, saved: Named, device: str | torch.device = "cpu") -> None:
    """Continue from named tensors: set every field of the state, on `device`."""
    if hasattr(state, "load_state_dict"):
        state.load_state_dict(saved)
    elif state is not None:
        _fill(state, json.loads(saved[_VALUES].numpy().tobytes()), "", saved, device)


def prefixed(prefix: str, state: Named) -> dict[str, Tensor]:
    """The state with `prefix.` added to each name."""
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def without_prefix(prefix: str, state: Named) -> dict[str, Tensor]:
    """The part of a state that has this prefix, with the prefix removed."""
    return {n.removeprefix(f"{prefix}."): tensor for n, tensor in state.items() if n.startswith(f"{prefix}.")}


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value for JSON, in which a tensor is its name; the tensors are added to `tensors`."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[name] = value
        return name
    if hasattr(value, "state_dict"):
        tensors |= prefixed(name, value.state_dict())
        return None
    if is_dataclass(value):
        return {n: _encode(getattr(value, n), f"{name}.{n}", tensors) for n in _hints(type(value))}
    if isinstance(value, dict):
        return [(key, _encode(item, f"{name}.{key}", tensors)) for key, item in value.items()]
    items = sorted(value, key=repr) if isinstance(value, set) else value
    return [_encode(item, f"{name}.{i}", tensors) for i, item in enumerate(items)]


def _fill(state: Any, values: Mapping[str, Any], prefix: str, saved: Named, device: str | torch.device) -> None:
    """Set every field of a mutable dataclass; mutable values in it are filled in place."""
    for name, hint in _hints(type(state)).items():
        now = getattr(state, name)
        if hasattr(now, "load_state_dict"):
            now.load_state_dict(without_prefix(prefix + name, saved))
        elif is_dataclass(now) and not now.__dataclass_params__.frozen:  # type: ignore[union-attr]
            _fill(now, values[name], f"{prefix}{name}.", saved, device)
        else:
            value = _decode(hint, values[name], saved, device)
            setattr(state, name, deque(value, now.maxlen) if isinstance(now, deque) else value)


def _decode(hint: Any, value: Any, saved: Named, device: str | torch.device) -> Any:
    """The value of a type from JSON."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(option for option in get_args(hint) if option is not NoneType)
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if value is None:
        return None
    if kind is Tensor:
        return saved[value].to(device, copy=True)
    if is_dataclass(kind):
        return kind(**{n: _decode(h, value[n], saved, device) for n, h in _hints(kind).items()})  # type: ignore[operator]
    if kind in (dict, Counter):
        item = inner[1] if kind is dict else int
        return kind({key: _decode(item, each, saved, device) for key, each in value})
    if kind in (list, deque, set):
        return kind(_decode(inner[0], each, saved, device) for each in value)
    return value
