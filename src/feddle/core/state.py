"""Saving state: dataclasses of tensors and numbers are converted to named tensors and back.

A field may hold a tensor, a number, a string, None, another dataclass, or a list, deque, set or dict of these. Numbers
in a container, and dataclasses of integers such as `Job`, become the rows of one tensor. So a million of them need only
one name. An object that owns preallocated memory has its own `state_dict` and `load_state_dict`.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

Named = Mapping[str, Tensor]
_CONTAINERS = (list, deque, set, dict, Counter)
_DTYPES = {int: torch.int64, bool: torch.int64, float: torch.float64}


def save(state: Any) -> dict[str, Tensor]:
    """The state as named tensors; tensors in it are not copied."""
    if state is None:
        return {}
    if hasattr(state, "state_dict"):
        return dict(state.state_dict())
    return _joined((name, _encode(hint, getattr(state, name))) for name, hint in get_type_hints(type(state)).items())


def load(state: Any, saved: Named, device: str | torch.device = "cpu") -> None:
    """Continue from named tensors: set every field of the state, on `device`."""
    if hasattr(state, "load_state_dict"):
        state.load_state_dict(saved)
    elif state is not None:
        for name, hint in get_type_hints(type(state)).items():
            part, now = without_prefix(name, saved), getattr(state, name)
            if hasattr(now, "load_state_dict") or _is_mutable(now):
                load(now, part, device)
            else:
                value = _decode(hint, part, device)
                setattr(state, name, deque(value, now.maxlen) if isinstance(now, deque) else value)


def prefixed(prefix: str, state: Named) -> dict[str, Tensor]:
    """The state with `prefix.` added to each name; the empty name becomes the prefix itself."""
    return {f"{prefix}.{name}" if name else prefix: tensor for name, tensor in state.items()}


def without_prefix(prefix: str, state: Named) -> dict[str, Tensor]:
    """The part of a state that has this prefix, with the prefix removed."""
    inside = {n.removeprefix(f"{prefix}."): tensor for n, tensor in state.items() if n.startswith(f"{prefix}.")}
    return {"": state[prefix], **inside} if prefix in state else inside


def _joined(parts: Iterable[tuple[str, Named]]) -> dict[str, Tensor]:
    return {name: tensor for prefix, part in parts for name, tensor in prefixed(prefix, part).items()}


def _is_mutable(value: Any) -> bool:
    return is_dataclass(value) and not value.__dataclass_params__.frozen  # type: ignore[union-attr]


def _encode(hint: Any, value: Any) -> dict[str, Tensor]:
    if value is None:
        return {}
    if isinstance(value, Tensor):
        return {"": value}
    if isinstance(value, str):
        return {"": torch.tensor(list(value.encode()), dtype=torch.uint8)}
    if type(value) in _DTYPES:
        return {"": torch.tensor(value, dtype=_DTYPES[type(value)])}
    kind, key, item = _types(hint)
    if kind not in _CONTAINERS:
        return save(value)
    if key is not str and _is_row(item):
        rows = [(k, *_row(v)) for k, v in value.items()] if key else [_row(v) for v in value]
        return {"": _matrix(sorted(rows) if kind is set else rows, _DTYPES.get(item, torch.int64))}
    items = value.items() if key else enumerate(value)
    return _joined((str(name), _encode(item, each)) for name, each in items)


def _decode(hint: Any, saved: Named, device: str | torch.device) -> Any:
    kind, key, item = _types(hint)
    if kind in _CONTAINERS:
        return kind(_decode_items(key, item, saved, device))
    if not saved:
        return None
    if kind is Tensor:
        return saved[""].to(device, copy=True)
    if kind is str:
        return bytes(saved[""].tolist()).decode()
    if kind in _DTYPES:
        return kind(saved[""].item())
    return kind(**{n: _decode(h, without_prefix(n, saved), device) for n, h in get_type_hints(kind).items()})


def _decode_items(key: Any, item: Any, saved: Named, device: str | torch.device) -> Any:
    """The content of a container: a dict if its keys have a type, else a list."""
    if key is not str and _is_row(item):
        rows = saved[""].tolist() if saved else []
        return {key(k): _from_row(item, row) for k, *row in rows} if key else [_from_row(item, row) for row in rows]
    whole = item in _DTYPES  # the name of a number is a key, which may contain dots
    names = dict.fromkeys(name if whole else name.partition(".")[0] for name in saved)
    found = {name: _decode(item, without_prefix(name, saved), device) for name in names}
    return {key(name): each for name, each in found.items()} if key else [found[str(i)] for i in range(len(found))]


def _types(hint: Any) -> tuple[Any, Any, Any]:
    """The type that a hint names, without `| None`; for a container also the types of its keys, if any, and items."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(option for option in get_args(hint) if option is not NoneType)
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Counter:
        return kind, inner[0], int
    return (kind, *inner) if kind is dict else (kind, None, inner[0] if inner else None)


def _is_row(kind: Any) -> bool:
    """Whether values of this type become rows of numbers: numbers, and dataclasses of integers."""
    return kind in _DTYPES or (is_dataclass(kind) and all(h in (int, bool) for h in get_type_hints(kind).values()))


def _row(value: Any) -> tuple[Any, ...]:
    return astuple(value) if is_dataclass(value) else (value,)  # type: ignore[arg-type]


def _from_row(kind: Any, row: list[Any]) -> Any:
    hints = [kind] if kind in _DTYPES else get_type_hints(kind).values()
    values = [hint(number) for hint, number in zip(hints, row, strict=True)]
    return values[0] if kind in _DTYPES else kind(*values)


def _matrix(rows: list[tuple[Any, ...]], dtype: torch.dtype) -> Tensor:
    """Rows as a tensor (n, k)."""
    return torch.tensor(rows, dtype=dtype) if rows else torch.zeros(0, 0, dtype=dtype)
