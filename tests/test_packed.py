"""Anchors stored in less memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import feddle
from feddle.core.atlas import Atlas, FloatRows, Rows
from feddle.core.errors import FeddleError
from feddle.core.messages import Job
from feddle.core.packed import Int8Rows
from feddle.methods.feddle.method import Feddle

MAKERS: dict[str, Callable[[int, int], Rows]] = {
    "float32": FloatRows.empty,
    "int8": Int8Rows.empty,
}


def filled(rows: Rows, *anchors: list[float]) -> Rows:
    for row, anchor in enumerate(anchors):
        rows.put(row, torch.tensor(anchor))
    return rows


def test_int8_worked_out() -> None:
    # the largest number is 12.7, so a step is 0.1: 1.27 becomes 13 steps, 1.3; −0.04 becomes 0
    rows = filled(Int8Rows.empty(2, 3), [12.7, 1.27, -0.04], [0.0, 0.0, 0.0])
    assert rows.codes.tolist() == [[127, 13, 0], [0, 0, 0]]  # type: ignore[attr-defined]
    # (1, 1, 1) + 2·(12.7, 1.3, 0)
    assert torch.allclose(rows.combine(torch.ones(3), torch.tensor([2.0, 5.0])), torch.tensor([26.4, 3.6, 1.0]))
    # 12.7·1 + 1.3·10
    assert torch.allclose(rows.project(torch.tensor([1.0, 10.0, 100.0])), torch.tensor([25.7, 0.0]))


@pytest.mark.parametrize("kind", MAKERS)
@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 9), width=st.sampled_from([1, 7, 8191, 8192, 8193, 20_000]), seed=st.integers(0, 99))
def test_every_storage_is_close_to_the_exact_matrix(kind: str, count: int, width: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    matrix = torch.from_numpy(numbers.uniform(-1, 1, (count, width))).float()
    rows = MAKERS[kind](count + 2, width)
    for row, anchor in enumerate(matrix):
        rows.put(row, anchor)
    active = rows.first(count)
    coefficients = torch.from_numpy(numbers.normal(size=count)).float()
    vector = torch.from_numpy(numbers.normal(size=width)).float()
    step = {"int8": 0.5 / 127}.get(kind, 1e-6)  # the largest error of a number
    sums, products = active.combine(vector, coefficients), active.project(vector)
    assert (sums - (vector + coefficients @ matrix)).abs().max() <= step * coefficients.abs().sum() + 1e-4
    assert (products - matrix @ vector).abs().max() <= step * vector.abs().sum() + 1e-3


@pytest.mark.parametrize("kind", MAKERS)
def test_an_atlas_with_any_storage_is_restored(kind: str) -> None:
    first, second = (Atlas(3, 4, rows=MAKERS[kind](3, 4)) for _ in range(2))
    for row in range(2):
        first.insert(Job(row, 0, 0), torch.tensor([1.0, 2.0, 3.0, 4.0]) * (row + 1))
    second.load_state_dict(first.state_dict())
    assert len(second) == 2
    ones = torch.ones(2)
    assert torch.equal(first.active().combine(torch.zeros(4), ones), second.active().combine(torch.zeros(4), ones))


def test_too_large_an_atlas_is_reported_with_a_remedy() -> None:
    with pytest.raises(
        FeddleError, match=r"no memory for an atlas of 1000000 anchors \(.* GB\); lower method.atlas_size"
    ):
        Int8Rows.empty(1_000_000, 2**40)


def simulate(storage: str | dict[str, object]) -> feddle.Run[Any]:
    examples = TensorDataset(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    return feddle.simulate(
        nn.Sequential(nn.Linear(4, 2)),
        [examples, examples],
        server=examples,
        test=examples,
        per_round=2,
        rounds=3,
        method={"name": "feddle", "storage": storage},
        delays={"sigma": 0},
        workers=0,
    )


@pytest.mark.parametrize(
    ("storage", "kind"),
    [("float32", FloatRows), ("int8", Int8Rows), ({"name": "int8"}, Int8Rows)],
)
def test_the_config_selects_the_storage(storage: str | dict[str, object], kind: type) -> None:
    run = simulate(storage)
    assert isinstance(run.server.strategy, Feddle)
    assert isinstance(run.server.strategy.atlas.active(), kind)


def test_a_removed_storage_is_an_unknown_name() -> None:
    with pytest.raises(FeddleError, match=r"method\.storage: unknown name 'bfloat16'; did you mean 'float32'"):
        simulate("bfloat16")
