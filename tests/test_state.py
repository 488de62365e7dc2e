"""Dataclasses are saved as named tensors and restored unchanged."""

import json
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Job
from feddle.core.state import load, prefixed, save, without_prefix


@dataclass
class Inner:
    total: Tensor | None = None
    count: int = 0


@dataclass
class Everything:
    inner: Inner = field(default_factory=Inner)
    rate: float = 0.0
    ready: bool = False
    name: str = ""
    last: dict[int, Tensor] = field(default_factory=dict)
    jobs: set[Job] = field(default_factory=set)
    by_client: dict[int, Job] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    versions: dict[int, Weights] = field(default_factory=dict)
    steps: list[Tensor] = field(default_factory=list)
    other: Any = None


class Preallocated:
    """Owns its memory, so it loads in place."""

    def __init__(self) -> None:
        self.memory = torch.zeros(2)

    def state_dict(self) -> dict[str, Tensor]:
        return {"memory": self.memory.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.memory.copy_(state["memory"])


def test_tensors_and_values_are_saved_by_name() -> None:
    state = Everything(inner=Inner(torch.tensor([1.0, 2.0, 3.0]), 7), rate=0.5, jobs={Job(2, 1, 0), Job(1, 4, 3)})
    saved = save(state)
    assert saved["inner.total"] is state.inner.total, "tensors are not copied"
    values = json.loads(bytes(saved["values.json"].tolist()))
    assert (values["inner"], values["rate"], values["other"]) == ({"total": "inner.total", "count": 7}, 0.5, None)
    jobs = [{"client": 1, "number": 4, "version": 3}, {"client": 2, "number": 1, "version": 0}]
    assert values["jobs"] == jobs, "in order, however the set iterates"
    assert saved.keys() == {"inner.total", "values.json"}


def test_every_type_is_restored() -> None:
    held = Preallocated()
    held.memory += 5
    state = Everything(
        inner=Inner(torch.ones(3), 2),
        rate=0.25,
        ready=True,
        name="layout τ",
        last={9: torch.tensor([1.0]), 4: torch.tensor([2.0])},
        jobs={Job(0, 0, 0)},
        by_client={5: Job(5, 1, 2)},
        counts=Counter({3: 2, 10**12: 1}),
        reasons=Counter({"too long": 4, "a.dotted reason": 1}),
        norms=deque([0.1, 0.2, 0.3], maxlen=3),
        versions={0: Weights(torch.tensor([1.0]), torch.tensor([2.0, 3.0]))},
        steps=[torch.zeros(2), torch.ones(1)],
        other=held,
    )
    restored = Everything(other=Preallocated())
    inner, memory = restored.inner, restored.other.memory
    load(restored, save(state))
    assert restored.inner is inner, "a mutable dataclass is filled in place"
    assert restored.other.memory is memory
    assert memory.tolist() == [5.0, 5.0]
    assert inner.total is not None
    assert (inner.total.tolist(), inner.count) == ([1.0, 1.0, 1.0], 2)
    assert (restored.rate, restored.ready, restored.name) == (0.25, True, "layout τ")
    assert {k: v.tolist() for k, v in restored.last.items()} == {9: [1.0], 4: [2.0]}
    assert (restored.jobs, restored.by_client) == (state.jobs, state.by_client)
    assert (restored.counts, restored.reasons) == (state.counts, state.reasons)
    assert (restored.norms, restored.norms.maxlen) == (state.norms, 3)
    assert restored.versions[0].buffers.tolist() == [2.0, 3.0]
    assert [t.tolist() for t in restored.steps] == [[0.0, 0.0], [1.0]]


def test_loaded_tensors_are_copies_and_old_content_is_removed() -> None:
    saved = save(Everything(inner=Inner(torch.ones(2))))
    state = Everything(last={1: torch.ones(1)}, reasons=Counter({"old": 1}))
    load(state, saved)
    saved["inner.total"] += 1
    assert state.inner.total is not None
    assert state.inner.total.tolist() == [1.0, 1.0]
    assert (state.last, state.reasons) == ({}, Counter())


def test_a_million_numbers_are_saved_under_one_name() -> None:
    state = Everything(counts=Counter(dict.fromkeys(range(1_000_000), 1)))
    assert len(save(state)) == 1


@given(
    st.dictionaries(st.integers(0, 2**62), st.integers(0, 2**62)),
    st.sets(st.builds(Job, *[st.integers(-5, 2**62)] * 3)),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)
def test_any_numbers_are_restored(counts: dict[int, int], jobs: set[Job], norms: list[float]) -> None:
    state, restored = Everything(counts=Counter(counts), jobs=jobs, norms=deque(norms, 3)), Everything()
    load(restored, save(state))
    assert (restored.counts, restored.jobs, list(restored.norms)) == (Counter(counts), jobs, norms)


def test_prefixes() -> None:
    one = torch.ones(1)
    assert prefixed("a", {"b": one, "b.c": one}).keys() == {"a.b", "a.b.c"}
    assert without_prefix("a", {"a.b": one, "a.b.c": one, "ab": one}).keys() == {"b", "b.c"}
