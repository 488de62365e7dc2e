"""Guiding the merge without labels: the models of the last clients are the teachers."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import feddle
from feddle.core.atlas import Atlas
from feddle.core.layout import Layout, Weights
from feddle.core.state import load, save
from feddle.data.examples import Examples, FromDataset
from feddle.methods.feddle.fallback import FedBuffFallback
from feddle.methods.feddle.method import Feddle
from feddle.training.distil import DistilObjective
from feddle.training.search import PaperSearch, full_pass
from feddle.training.workbench import Workbench
from three_numbers import Played, Scaled, arrival, bench, close, numbers, weights

ZERO = weights(0.0, 0.0, 0.0)
HALF_LN9 = math.log(9) / 2
# with x = 2 the logits are 2w: (0, ln 9, −18) and (0, 0, −18)
TEACHERS = [arrival(0.0, HALF_LN9, -9.0), arrival(0.0, 0.0, -8.0, start=weights(0.0, 0.0, -1.0))]
ALL = torch.tensor([0])


def distil(teachers: int = 2, examples: Examples | None = None) -> DistilObjective:
    return DistilObjective(bench(Scaled()), examples or numbers(), teachers)


def test_the_loss_and_its_gradient_worked_out() -> None:
    # The mean logits are (0, ln 3, −18), with the softmax p = (¼, ¾, 0). At w = 0 the model predicts q = (⅓, ⅓, ⅓):
    # KL(p ‖ q) = ¼·ln(¾) + ¾·ln(9/4) = 0.5363, and the gradient for w is x·(q − p) = 2·(1/12, −5/12, ⅓)
    objective = distil()
    objective.begin(ZERO, seed=0, arrivals=TEACHERS)
    loss, gradient = objective.loss_and_gradient(ZERO, ALL)
    assert loss == pytest.approx(0.25 * math.log(0.75) + 0.75 * math.log(2.25), abs=1e-5)
    assert close(gradient, 1 / 6, -5 / 6, 2 / 3)


def test_a_merge_worked_out() -> None:
    # One teacher, Δ = (0, ½ln 9, −9): p = (0.1, 0.9, 0). At τ = 0, FedBuff's step reaches the teacher, where the
    # gradient is zero. At τ = 3 it is half of that, and the search raises the coefficient by Adam's first step, 0.1
    delta = (0.0, HALF_LN9, -9.0)
    for staleness, coefficient in ((0, 1.0), (3, 0.6)):
        search = PaperSearch(lr=0.1, epochs=1, batch_size=4)
        strategy = Played(Feddle(distil(), Atlas(4, 3), search, FedBuffFallback()))
        merged = strategy.merge(ZERO, [arrival(*delta, staleness=staleness)])
        assert close(merged.vector, *(coefficient * number for number in delta))


def test_the_last_models_are_the_teachers() -> None:
    # three arrivals in two rounds, two teachers: those of test_the_loss_and_its_gradient_worked_out
    objective = distil(2)
    objective.begin(ZERO, seed=0, arrivals=[arrival(9.0, 9.0, 9.0), TEACHERS[0]])
    objective.begin(ZERO, seed=0, arrivals=[TEACHERS[1]])
    assert close(objective.loss_and_gradient(ZERO, ALL)[1], 1 / 6, -5 / 6, 2 / 3)
    # without a new arrival the teachers stay the same, and of many arrivals only the last ones are used
    objective.begin(ZERO, seed=0)
    assert close(objective.loss_and_gradient(ZERO, ALL)[1], 1 / 6, -5 / 6, 2 / 3)
    objective.begin(ZERO, seed=0, arrivals=[arrival(9.0, 9.0, 9.0)] * 3 + TEACHERS)
    assert close(objective.loss_and_gradient(ZERO, ALL)[1], 1 / 6, -5 / 6, 2 / 3)


def test_without_a_teacher_the_loss_and_its_gradient_are_zero() -> None:
    objective = distil()
    start = weights(0.3, -1.0, 2.0)
    objective.begin(start, seed=0)
    loss, gradient = objective.loss_and_gradient(start, ALL)
    assert abs(loss) < 1e-6
    assert not gradient.any()


def test_the_teachers_are_saved() -> None:
    first, second = distil(3), distil(3)
    first.begin(ZERO, seed=0, arrivals=[arrival(1.0, 0.0, 0.0), *TEACHERS])
    saved = save(first.state)
    load(second.state, saved)
    assert second.state.teachers.maxlen == 3
    for objective in (first, second):
        objective.begin(ZERO, seed=1, arrivals=[arrival(0.0, 0.0, 1.0)])
    assert torch.equal(first.loss_and_gradient(ZERO, ALL)[1], second.loss_and_gradient(ZERO, ALL)[1])
    fresh = distil(3)
    fresh.begin(ZERO, seed=1, arrivals=[arrival(0.0, 0.0, 1.0)])
    assert not torch.equal(first.loss_and_gradient(ZERO, ALL)[1], fresh.loss_and_gradient(ZERO, ALL)[1])


def test_a_teacher_has_the_running_statistics_of_its_client() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    layout, points = Layout.of(model), torch.randn(20, 2)
    start = layout.read(model)
    examples = FromDataset(TensorDataset(points, torch.zeros(20)))
    objective = DistilObjective(Workbench(model, layout), examples)
    other = start.buffers + 1.0
    teacher = arrival(*torch.zeros(layout.size).tolist(), start=start, buffers=other.tolist())
    objective.begin(start, seed=0, arrivals=[teacher])
    assert full_pass(objective, Weights(start.vector, other))[0] < 1e-6 < full_pass(objective, start)[0]


# --- runs


class Unlabelled(Dataset[Any]):
    """Points whose labels are NaN."""

    def __init__(self, points: Tensor) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        return self.points[index], math.nan


def quadrants(count: int, seed: int) -> tuple[Tensor, Tensor]:
    points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long()


def simulate(server: Any, method: dict[str, Any], **more: Any) -> feddle.Run[Any]:
    torch.manual_seed(0)
    points, labels = quadrants(400, 1)
    order = labels.argsort()  # sorted by class: most clients have only one
    clients = [TensorDataset(points[part], labels[part]) for part in torch.split(order, 20)]
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
    plan: dict[str, Any] = {"rounds": 15, "per_round": 5, "delays": {"sigma": 2.0}, "workers": 0, **more}
    plan |= {"training": {"lr": 0.01}}
    return feddle.simulate(
        model,
        clients,
        server=server,
        test=TensorDataset(*quadrants(500, 2)),
        method={"name": "feddle"} | method,
        **plan,
    )


@pytest.mark.parametrize("outside", [{}, {"server_classes": 7}])
@pytest.mark.parametrize("name", ["feddle", "feddle+"])
def test_no_label_is_used(name: str, outside: dict[str, Any]) -> None:
    points, labels = quadrants(100, 3)
    method = {"name": name, "objective": "distil"}
    without = simulate(Unlabelled(points), method, **outside)
    given = simulate(TensorDataset(points, labels), method, **outside)
    assert torch.equal(without.server.model.vector, given.server.model.vector)
    strategy = without.server.strategy
    assert isinstance(strategy, Feddle)
    assert strategy.server_anchor is None, "the server anchor would need labels"
    assert (strategy.blocks is None) == (name == "feddle" or bool(outside))
    assert strategy.regularisation == (0.01 if outside else 0.0)


def test_the_search_reduces_the_loss() -> None:
    # both merges start at the same point; with a closed gate, the history has the loss at this point
    method = {"objective": "distil", "search": {"name": "lbfgs", "iterations": 5}}
    plan: dict[str, Any] = {"rounds": 1, "delays": {"sigma": 0.0}}
    searched, stayed = (simulate(Unlabelled(quadrants(200, 3)[0]), method | {"gate": g}, **plan) for g in (-1, 2))
    after, before = (run.history[0]["search_loss"] for run in (searched, stayed))
    assert 0 < after < 0.9 * before


def test_both_storages_and_blocks_run() -> None:
    points, _ = quadrants(50, 3)
    for storage in ("float32", "int8"):
        method = {"objective": "distil", "storage": storage, "coefficients": "class", "fallback": "fedavg"}
        run = simulate(Unlabelled(points), method, rounds=4)
        assert len(run.history[-1]["block_coefficients"][0]) == 5  # the body and four rows of the head
