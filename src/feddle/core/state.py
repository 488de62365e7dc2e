"""State as data: dataclasses of tensors and numbers as named tensors, and back.

A field may hold a tensor, a number, a text, None, another dataclass, or a list, deque, set or dict of these. Numbers
and dataclasses of whole numbers (such as `Job`) in a container become the rows of one tensor, so that a million of
them cost one name. An object that owns preallocated memory has its own `state_dict` and `load_state_dict`.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

Named = Mapping[str, Tensor]
_CONTAINERS = (list, deque, set)
_DTYPES = {int: torch.int64, bool: torch.int64, float: torch.float64}


def save(state: Any) -> dict[str, Tensor]:
    """The state as named tensors; tensors in it are not copied."""
    if state is None:
        return {}
    if hasattr(state, "state_dict"):
        return dict(state.state_dict())
    hints = get_type_hints(type(state))
    return {
        name: tensor
        for field in fields(state)
        for name, tensor in prefixed(field.name, _encode(hints[field.name], getattr(state, field.name))).items()
    }


def load(state: Any, saved: Named, device: str | torch.device = "cpu") -> None:
    """Continue from named tensors: set every field of the state, on `device`."""
    if state is None:
        return
    if hasattr(state, "load_state_dict"):
        state.load_state_dict(saved)
        return
    hints = get_type_hints(type(state))
    for field in fields(state):
        part, now = without_prefix(field.name, saved), getattr(state, field.name)
        if hasattr(now, "load_state_dict") or _is_mutable(now):
            load(now, part, device)
        else:
            value = _decode(hints[field.name], part, device)
            setattr(state, field.name, deque(value, now.maxlen) if isinstance(now, deque) else value)


def prefixed(prefix: str, state: Named) -> dict[str, Tensor]:
    """The names of a state with `prefix.` in front of each; the empty name becomes the prefix itself."""
    return {f"{prefix}.{name}" if name else prefix: tensor for name, tensor in state.items()}


def without_prefix(prefix: str, state: Named) -> dict[str, Tensor]:
    """The part of a state that `prefixed` made, with its own names again."""
    inside = {n.removeprefix(f"{prefix}."): tensor for n, tensor in state.items() if n.startswith(f"{prefix}.")}
    return {"": state[prefix], **inside} if prefix in state else inside


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
    kind, inner = _container(hint)
    if kind is None:
        return save(value)
    if kind is dict:
        if inner[0] is int and _is_row(inner[1]):
            return {"": _matrix(((key, *_row(item)) for key, item in value.items()), torch.int64)}
        parts = [prefixed(str(key), _encode(inner[1], item)) for key, item in value.items()]
    elif _is_row(inner[0]):
        rows = [_row(item) for item in value]
        return {"": _matrix(sorted(rows) if kind is set else rows, _DTYPES.get(inner[0], torch.int64))}
    else:
        parts = [prefixed(str(i), _encode(inner[0], item)) for i, item in enumerate(value)]
    return {name: tensor for part in parts for name, tensor in part.items()}


def _decode(hint: Any, saved: Named, device: str | torch.device) -> Any:
    kind, inner = _container(hint)
    if kind is dict:
        return _collect(hint, _decode_items(inner, saved, device))
    if kind is not None and ("" in saved or not saved):
        rows = saved[""].tolist() if saved else []
        return _collect(hint, [_from_row(inner[0], row) for row in rows])
    if kind is not None:
        count = len({name.partition(".")[0] for name in saved})
        return _collect(hint, [_decode(inner[0], without_prefix(str(i), saved), device) for i in range(count)])
    plain = _plain(hint)
    if not saved:
        return None
    if plain is Tensor:
        return saved[""].to(device, copy=True)
    if plain is str:
        return bytes(saved[""].tolist()).decode()
    if plain in _DTYPES:
        return plain(saved[""].item())
    hints = get_type_hints(plain)
    return plain(**{f.name: _decode(hints[f.name], without_prefix(f.name, saved), device) for f in fields(plain)})


def _decode_items(inner: tuple[Any, ...], saved: Named, device: str | torch.device) -> dict[Any, Any]:
    key, item = inner
    if key is int and _is_row(item):
        rows = saved[""].tolist() if saved else []
        return {number: _from_row(item, row if len(row) > 1 else row[0]) for number, *row in rows}
    whole = item in _DTYPES  # a text that is a key may have dots in it
    names = dict.fromkeys(name if whole else name.partition(".")[0] for name in saved)
    return {key(name): _decode(item, without_prefix(name, saved), device) for name in names}


def _collect(hint: Any, items: Any) -> Any:
    origin = get_origin(_plain(hint))
    return origin(items)


def _container(hint: Any) -> tuple[type | None, tuple[Any, ...]]:
    """The kind of container that a type hint names, if it is one, and the types in it."""
    plain = _plain(hint)
    origin, inner = get_origin(plain), get_args(plain)
    if origin is Counter:
        return dict, (inner[0], int)
    return (origin, inner) if origin in (*_CONTAINERS, dict) else (None, ())


def _plain(hint: Any) -> Any:
    """The type itself, without `| None`."""
    if get_origin(hint) in (Union, UnionType):
        return next(option for option in get_args(hint) if option is not NoneType)
    return hint


def _is_row(kind: Any) -> bool:
    """Whether values of this type become a row of numbers: a number, or a dataclass of whole numbers."""
    if kind in _DTYPES:
        return True
    return is_dataclass(kind) and all(hint in (int, bool) for hint in get_type_hints(kind).values())


def _row(value: Any) -> tuple[Any, ...]:
    return astuple(value) if is_dataclass(value) else (value,)  # type: ignore[arg-type]


def _from_row(kind: Any, row: Any) -> Any:
    if kind in _DTYPES:
        return kind(row[0] if isinstance(row, list) else row)
    hints = get_type_hints(kind).values()
    return kind(*(hint(number) for hint, number in zip(hints, row, strict=True)))


def _matrix(rows: Iterable[tuple[Any, ...]], dtype: torch.dtype) -> Tensor:
    """Rows as a tensor (n, k); plain numbers as (n, 1)."""
    made = list(rows)
    return torch.tensor(made, dtype=dtype).view(len(made), -1) if made else torch.zeros(0, 0, dtype=dtype)
