"""The gate: Feddle searches only where two halves of the server's data agree."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from feddle.core.atlas import Atlas, FloatRows, SearchSpace
from feddle.core.errors import FeddleError
from feddle.methods.feddle.fallback import FedBuffFallback
from feddle.methods.feddle.gate import GatedSearch, halves
from feddle.methods.feddle.method import Feddle
from feddle.report.page import write_report
from feddle.run.folder import run_config
from feddle.run.load import parse_config
from feddle.training.search import Found, PaperSearch, SearchTask
from killing import METHODS, small
from three_numbers import Played, Targets, arrival, close, weights

MODEL = weights(1.0, 2.0, 3.0)
ARRIVALS = [arrival(4.0, 0.0, 0.0, client=7), arrival(0.0, 2.0, 0.0, client=9)]


def targets_at(*targets: Sequence[float]) -> Targets:
    return Targets(torch.tensor(targets))


def gated(threshold: float, *targets: Sequence[float], capacity: int = 4) -> Played:
    search = GatedSearch(PaperSearch(lr=0.1, epochs=1, batch_size=4), threshold)
    return Played(Feddle(targets_at(*targets), Atlas(capacity, 3), search, FedBuffFallback()))


@pytest.mark.parametrize(("threshold", "closed"), [(0.70, False), (0.71, True)])
def test_the_gate_worked_out(threshold: float, closed: bool) -> None:
    # As in test_feddle_worked_out: anchors (4,0,0) and (0,2,0), c′ = (⅔, ⅓), start (3, 3, 3), slope 3·(g₁, g₂).
    # One example per half, t = (0,0,0) and (0,3,0): gradients (3,3,3) and (3,0,3), slopes (9,9) and (9,0), whose
    # cosine is 81/(9·√2·9) = 0.7071. An open gate moves both coefficients by −0.1, as there. The losses at the start
    # are 27/2 and 18/2, so their mean is 11.25.
    strategy = gated(threshold, (0.0, 0.0, 0.0), (0.0, 3.0, 0.0))
    merged = strategy.merge(MODEL, ARRIVALS)
    assert close(merged.vector, *((3.0, 3.0, 3.0) if closed else (2.7, 2.7, 3.0)))
    assert strategy.notes["gate_cosine"] == pytest.approx(0.7071, abs=1e-4)
    assert strategy.notes["gate_closed"] is closed
    assert strategy.notes["moved"] == pytest.approx(0.0 if closed else 0.141421, abs=1e-5)
    if closed:
        assert strategy.notes["search_loss"] == pytest.approx(11.25)
        assert strategy.notes["coefficients"] == pytest.approx([2 / 3, 1 / 3], abs=1e-5)


def test_a_closed_gate_scores_anchors_by_the_fallbacks_coefficients() -> None:
    # c′ = (⅔, ⅓): a third anchor replaces the second. Then c′ = (0, 1/r): a fourth replaces the first
    strategy = gated(2.0, (0.0, 0.0, 0.0), (0.0, 3.0, 0.0), capacity=2)
    model = strategy.merge(MODEL, ARRIVALS)
    model = strategy.merge(model, [arrival(0.0, 0.0, 2.0, client=3)])
    assert strategy.notes["anchor_clients"] == [7, 3]
    strategy.merge(model, [arrival(0.0, 1.0, 2.0, client=4)])
    assert strategy.notes["anchor_clients"] == [4, 3]


def test_halves_of_odd_and_of_single_examples() -> None:
    space = SearchSpace(weights(0.0, 0.0, 0.0), FloatRows(torch.eye(3)), torch.ones(3))
    task = SearchTask(space, targets_at((1.0, 0.0, 0.0)), torch.zeros(3))
    assert halves(task) == (0.0, 0.5), "a single example cannot be halved"
    same = SearchTask(space, targets_at(*[(1.0, 0.0, 0.0)] * 5), torch.zeros(3))
    assert halves(same)[0] == pytest.approx(1.0)
    opposite = SearchTask(space, targets_at((1.0, 0.0, 0.0), (-1.0, 0.0, 0.0)), torch.zeros(3))
    assert halves(opposite)[0] == -1.0
    # losses ½, ½ and 2: their mean is 1, although one half has two examples and the other has one
    odd = SearchTask(space, targets_at((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 2.0)), torch.zeros(3))
    assert halves(odd)[1] == pytest.approx(1.0)


def test_halves_do_not_depend_on_the_order_of_the_examples() -> None:
    # sorted by class, the first half would point one way and the second the other: cosine −1
    space = SearchSpace(weights(0.0, 0.0, 0.0), FloatRows(torch.eye(3)), torch.ones(3))
    objective = targets_at(*[(2.0, 0.0, 0.0)] * 50, *[(-1.0, 0.0, 0.0)] * 50)
    assert halves(SearchTask(space, objective, torch.zeros(3)))[0] == pytest.approx(1.0)


numbers = st.floats(-3, 3, width=32)
rows = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=7)


@given(targets=rows, deltas=rows, seed=st.integers(0, 99))
def test_thresholds_below_and_above_every_cosine(
    targets: list[tuple[float, ...]], deltas: list[tuple[float, ...]], seed: int
) -> None:
    arrivals = [arrival(*delta, client=i, staleness=i) for i, delta in enumerate(deltas)]
    search = PaperSearch(lr=0.1, epochs=2, batch_size=2)

    def merged(search: Any) -> tuple[Tensor, Any]:
        strategy = Played(Feddle(targets_at(*targets), Atlas(5, 3), search, FedBuffFallback(), seed=seed))
        first = strategy.merge(MODEL, arrivals)
        return strategy.merge(first, arrivals[:2]).vector, strategy.notes

    plain, notes = merged(search)
    never, open_notes = merged(GatedSearch(search, -1.0))
    assert torch.equal(never, plain)
    assert {name: value for name, value in open_notes.items() if "gate" not in name} == notes
    always, closed_notes = merged(GatedSearch(search, 1.5))
    assert torch.equal(always, merged(lambda task: Found(task.start, 0.0))[0]), "the fallback's step"
    for found in (open_notes, closed_notes):
        assert -1 <= found.get("gate_cosine", 0) <= 1


# --- real runs

VARIANTS: dict[str, dict[str, Any]] = {
    "feddle": {},
    "int8": {"storage": "int8"},
    "blocks": {"coefficients": "class"},
    "surrogate": {"objective": "surrogate"},
    "distil": {"objective": "distil"},
    "feddle+": {"name": "feddle+"},
}


def vector_of(tmp_path: Path, **options: Any) -> tuple[Tensor, list[Any]]:
    config = small("feddle", options=options, rounds=4, checkpoint={"every": 0})
    run = run_config(config, tmp_path / str(len(list(tmp_path.iterdir()))), quiet=True)
    return run.server.model.vector, [line for line in run.history if "search_loss" in line]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_with_an_open_and_a_closed_gate(tmp_path: Path, variant: str) -> None:
    options = VARIANTS[variant]
    plain, _ = vector_of(tmp_path, **options)
    opened, lines = vector_of(tmp_path, **options, gate=-1)
    assert torch.equal(plain, opened)
    assert lines
    assert not any(line["gate_closed"] for line in lines)
    closed, lines = vector_of(tmp_path, **options, gate=2)
    assert all(line["gate_closed"] and line["moved"] == 0 for line in lines)
    assert not torch.equal(plain, closed)
    if variant in ("surrogate", "distil"):  # whatever the objective, the fallback's step is the same
        assert torch.equal(closed, vector_of(tmp_path, gate=2)[0])
    for row in (row for line in lines for row in line.get("block_coefficients", [])):
        assert len(row) > 1
        assert len(set(row)) == 1, "every block has the fallback's coefficient"


def test_a_threshold_between_the_cosines_closes_the_gate_in_some_rounds(tmp_path: Path) -> None:
    _, lines = vector_of(tmp_path, gate=-1)
    middle = sorted(line["gate_cosine"] for line in lines)[len(lines) // 2]
    _, lines = vector_of(tmp_path, gate=middle)
    assert lines[0]["gate_closed"] == (lines[0]["gate_cosine"] < middle)
    assert {line["gate_closed"] for line in lines} == {True, False}


@pytest.mark.parametrize("gate", [-1, None])
def test_the_page_shows_the_cosine_of_the_two_halves(tmp_path: Path, gate: float | None) -> None:
    run_config(small("feddle", options={"gate": gate}, rounds=4), tmp_path / "run", quiet=True)
    page = write_report(tmp_path / "run", tmp_path / "report.html").read_text()
    assert ("gradients on two halves of the guiding data" in page) is (gate is not None)


def test_the_kill_tests_include_a_method_with_a_gate() -> None:
    assert any("gate" in method for method in METHODS.values())


@pytest.mark.parametrize("gate", [-1.5, 2.5, True, "often"])
def test_an_invalid_threshold_is_refused(gate: Any) -> None:
    with pytest.raises(FeddleError, match=r"method\.feddle\.gate|method\.gate"):
        parse_config({"method": {"name": "feddle", "gate": gate}})
