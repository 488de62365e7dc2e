"""Guiding the merge with data of another task."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import feddle
from feddle.core.atlas import Atlas, FloatRows, SearchSpace
from feddle.core.errors import DivergedError, FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.state import load, save
from feddle.data.examples import FromDataset, Images, draw
from feddle.methods.feddle.fallback import AdaptiveFallback, FedAvgFallback, FedBuffFallback
from feddle.methods.feddle.gate import GatedSearch
from feddle.methods.feddle.method import Feddle
from feddle.run.diagnostics import Diagnostics, InDomainComparison
from feddle.run.plan import DiagnosticsOptions
from feddle.run.problem import Problem
from feddle.training.search import Objective, PaperSearch, Search, SearchTask, SgdSearch, full_pass, smoothness
from feddle.training.surrogate import HeadOptions, SurrogateObjective, cluster, representations
from three_numbers import Played, Quadratic, arrival, close, weights


class Net(nn.Module):
    """A linear body and a linear head. The head has 3 outputs, and the server's labels have 2 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(inputs)))
        return out


def pairs(count: int = 60, seed: int = 0) -> FromDataset:
    """Points whose label says on which side of a plane they are."""
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return FromDataset(TensorDataset(points, (points[:, 0] > points[:, 1]).long()))


def surrogate(examples: FromDataset | None = None, **options: Any) -> SurrogateObjective:
    torch.manual_seed(0)
    model = Net()
    return SurrogateObjective(model, Layout.of(model), examples or pairs(), 2, options=HeadOptions(**options))


def clusters() -> SurrogateObjective:
    torch.manual_seed(0)
    model = Net()
    return SurrogateObjective(model, Layout.of(model), pairs(), 2, cluster_steps=10)


def start_of(objective: SurrogateObjective) -> Weights:
    return objective.layout.read(objective.model)


def test_the_gradient_is_that_of_the_body_and_zero_on_the_head() -> None:
    objective = surrogate()
    start = start_of(objective)
    objective.begin(start, seed=0)
    everything = torch.arange(len(objective))
    loss, gradient = objective.loss_and_gradient(start, everything)
    assert not gradient[objective.layout.head_start :].any()
    direction = torch.zeros_like(gradient)
    direction[: objective.layout.head_start] = gradient[: objective.layout.head_start]
    step = 1e-3
    ahead, behind = (
        objective.loss_and_gradient(Weights(start.vector + sign * step * direction, start.buffers), everything)[0]
        for sign in (1, -1)
    )
    assert (ahead - behind) / (2 * step) == pytest.approx(float(gradient @ direction), rel=1e-2)
    # the head of the clients' model has no effect
    other = start.vector.clone()
    other[objective.layout.head_start :] = 7.0
    assert objective.loss_and_gradient(Weights(other, start.buffers), everything)[0] == loss


def test_theta_is_fitted_where_the_search_starts_and_continues_from_there() -> None:
    few, many = surrogate(head_steps=3), surrogate(head_steps=200)
    start = start_of(few)
    for objective in (few, many):
        objective.begin(start, seed=0)
    best = full_pass(many, start)[0]
    losses = [full_pass(few, start)[0]]
    for _ in range(15):
        few.begin(start, seed=0)
        losses.append(full_pass(few, start)[0])
    # starting from zeros the loss was ln 2; a few steps lower it, and each warm start continues towards the optimum
    assert best < losses[-1] < losses[0] - 0.05 < 0.6931
    assert losses == sorted(losses, reverse=True)


def test_the_head_is_fitted_until_its_gradient_is_small() -> None:
    objective = surrogate()
    start = start_of(objective)
    objective.begin(start, seed=0)
    theta = objective.state.theta
    assert theta is not None
    theta.requires_grad_()
    features, labels = representations(objective.model, objective._head, objective._current)
    features = torch.cat([features, torch.ones(len(labels), 1)], dim=1)
    loss = (
        nn.functional.cross_entropy(features @ theta.T, labels)
        + objective.options.head_decay / 2 * theta.square().sum()
    )
    (gradient,) = torch.autograd.grad(loss, theta)
    assert float(gradient.abs().max()) <= 1e-4


def test_a_restored_objective_continues_identically() -> None:
    first, second = surrogate(head_steps=2), surrogate(head_steps=2)
    start = start_of(first)
    first.begin(start, seed=0)
    load(second.state, save(first.state))
    for objective in (first, second):
        objective.begin(start, seed=1)
    assert full_pass(first, start)[0] == full_pass(second, start)[0]
    afresh = surrogate(head_steps=2)
    afresh.begin(start, seed=1)
    assert full_pass(first, start)[0] < full_pass(afresh, start)[0]  # it did not start from zero


def test_a_model_without_a_linear_head_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1))
    with pytest.raises(
        FeddleError, match="needs a trainable linear layer inside the model as its head, but found none"
    ):
        SurrogateObjective(model, Layout.of(model), pairs(), 2)


class Counting:
    """Remembers which of its examples were taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken: set[int] = set()

    def __len__(self) -> int:
        return self.count

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        self.taken |= set(index.tolist())
        return torch.ones(len(index), 4), index % 2


def test_a_search_uses_only_a_bounded_seeded_sample() -> None:
    model = Net()
    data = Counting(250_000)
    objective = SurrogateObjective(model, Layout.of(model), data, 2, samples_per_round=100)
    start = start_of(objective)
    objective.begin(start, seed=5)
    full_pass(objective, start)
    first = data.taken
    assert len(objective) == len(first) == 100
    data.taken = set()
    objective.begin(start, seed=5)
    assert data.taken == first
    data.taken = set()
    objective.begin(start, seed=6)
    assert len(data.taken) == 100
    assert len(data.taken & first) < 10


def test_draw_leaves_a_small_set_in_order() -> None:
    data = Counting(3)
    assert draw(data, 3, seed=1) is data
    assert draw(data, None, seed=1) is data
    assert len(draw(data, 2, seed=1)) == 2


def test_images_are_resized_when_taken() -> None:
    pixels = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    late = Images(pixels, torch.arange(6), 3, size=8)
    inputs, labels = late.take(torch.tensor([4, 1]))
    assert inputs.shape == (2, 3, 8, 8)
    assert labels.tolist() == [4, 1]


def test_clusters_group_close_points_and_keep_their_labels() -> None:
    angles = torch.tensor([0.0, 0.1, 0.05, 1.5, 1.6, 1.55])
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    labels, centres = cluster(points, None, 2, steps=10, seed=0)
    assert labels[0] == labels[1] == labels[2] != labels[3]
    assert labels[3] == labels[4] == labels[5]
    assert torch.equal(cluster(points, centres, 2, steps=10, seed=99)[0], labels)


def test_restored_clusters_keep_their_labels() -> None:
    first, second = clusters(), clusters()
    start = start_of(first)
    first.begin(start, seed=0)
    load(second.state, save(first.state))
    everything = torch.arange(len(first))
    labels = first._current.take(everything)[1]
    second.begin(start, seed=99)
    assert torch.equal(second._current.take(everything)[1], labels)
    afresh = clusters()
    afresh.begin(start, seed=99)
    assert not torch.equal(afresh._current.take(everything)[1], labels)


def test_the_coefficients_move_the_whole_model() -> None:
    objective = surrogate()
    model = start_of(objective)
    search = PaperSearch(lr=0.01, epochs=1, batch_size=32)
    strategy = Played(Feddle(objective, Atlas(2, len(model.vector)), search, FedBuffFallback()))
    update = arrival(*[0.1] * len(model.vector))
    merged = strategy.merge(model, [update])
    [coefficient] = strategy.notes["coefficients"]
    assert torch.allclose(merged.vector - model.vector, torch.full_like(model.vector, 0.1 * coefficient), atol=1e-5)


def test_sgd_with_the_steps_of_the_theory() -> None:
    # ℓ = ½‖w − (1, −1, 0)‖² has L = 1. Anchors e₁, e₂: Σ‖ā‖² = 2, and the slope at 0 is (−1, 1).
    space = SearchSpace(weights(0.0, 0.0, 0.0), FloatRows(torch.eye(3)[:2]), torch.ones(2))
    objective, zeros = Quadratic(1.0, -1.0, 0.0), torch.zeros(2)
    assert smoothness(space, objective, zeros) == pytest.approx(1.0, rel=1e-4)
    assert close(space.lengths(), 1.0, 1.0)
    lemma = SgdSearch(step="lemma-1", epochs=1, batch_size=4)(SearchTask(space, objective, zeros))
    assert close(lemma.coefficients.round(decimals=4), 0.5, -0.5)  # 1/(1·2)
    # T = 2 steps: min(1/(2·1·2·2), 1/(2·1·2·√2)) = 1/8, and the second slope is (−7/8, 7/8): 1/8 + 7/64
    theorem = SgdSearch(step="theorem-2", epochs=2, batch_size=4)(SearchTask(space, objective, zeros))
    assert close(theorem.coefficients.round(decimals=4), 0.2344, -0.2344)
    # long anchors, ‖ā‖ = 2: Σ‖ā‖² = 8, so a step of 1/8 on a slope of (−2, 2)
    long = SearchSpace(weights(0.0, 0.0, 0.0), FloatRows(torch.eye(3)[:2]), torch.full((2,), 2.0))
    found = SgdSearch(step="lemma-1", epochs=1, batch_size=4)(SearchTask(long, objective, zeros))
    assert close(found.coefficients.round(decimals=4), 0.25, -0.25)


def test_the_adaptive_fallback_depends_on_the_delays() -> None:
    fresh = [arrival(1.0, 0.0, 0.0, staleness=0, examples=1), arrival(0.0, 1.0, 0.0, staleness=2, examples=3)]
    stale = [arrival(1.0, 0.0, 0.0, staleness=0, examples=1), arrival(0.0, 1.0, 0.0, staleness=3, examples=3)]
    assert AdaptiveFallback(threshold=1.0)(fresh) == FedAvgFallback()(fresh) == [0.25, 0.75]
    assert AdaptiveFallback(threshold=1.0)(stale) == FedBuffFallback()(stale) == [0.5, 0.25]


def test_a_buffer_that_is_not_full_takes_a_short_step() -> None:
    two = [arrival(1.0, 0.0, 0.0, staleness=0), arrival(0.0, 1.0, 0.0, staleness=3)]
    assert FedBuffFallback(buffer_size=4)(two) == [0.25, 0.125]  # s(τ)/4 with s = 1, ½
    assert FedBuffFallback(buffer_size=2)(two) == FedBuffFallback()(two) == [0.5, 0.25]


def test_diagnostics_continue_from_a_saved_state() -> None:
    whole = simulate(diagnostics={"every": 1, "clients": 3})
    assert whole.diagnostics is not None
    state = save(whole.diagnostics.state)
    assert sum(name.startswith("earlier.") for name in state) == 4
    other = simulate(diagnostics={"every": 1, "clients": 3}, rounds=1)
    assert other.diagnostics is not None
    load(other.diagnostics.state, state)
    assert all(torch.equal(save(other.diagnostics.state)[name], kept) for name, kept in state.items())


def test_the_in_domain_comparison_does_not_change_the_merge() -> None:
    def merged(reference: Objective | None) -> tuple[Weights, Mapping[str, Any]]:
        strategy = Played(
            Feddle(
                Quadratic(1.0, 0.0, 0.0),
                Atlas(2, 3),
                PaperSearch(lr=0.1, epochs=1, batch_size=4),
                FedBuffFallback(),
                observe=None if reference is None else InDomainComparison(reference, every=1),
            )
        )
        arrivals = [arrival(1.0, 0.0, 0.0), arrival(0.0, 1.0, 0.0, client=1)]
        return strategy.merge(weights(0.0, 0.0, 0.0), arrivals), strategy.notes

    alone, _ = merged(None)
    # c′ = (½, ½). The search's minimum is at (1, 0): slope (−½, ½). The reference's is at (0, 1): slope (½, −½), the
    # opposite.
    compared, notes = merged(Quadratic(0.0, 1.0, 0.0))
    assert torch.equal(alone.vector, compared.vector)
    assert notes["signal_cosine"] == pytest.approx(-1.0)
    assert notes["search_cosine"] == pytest.approx(-1.0)


def test_the_in_domain_comparison_ignores_the_gate() -> None:
    def notes(threshold: float) -> Mapping[str, Any]:
        search = GatedSearch(PaperSearch(lr=0.1, epochs=1, batch_size=4), threshold)
        compare = InDomainComparison(Quadratic(0.0, 1.0, 0.0), every=1)
        strategy = Feddle(Quadratic(1.0, 0.0, 0.0), Atlas(2, 3), search, FedBuffFallback(), observe=compare)
        arrivals = [arrival(1.0, 0.0, 0.0), arrival(0.0, 1.0, 0.0, client=1)]
        return strategy.merge(weights(0.0, 0.0, 0.0), arrivals, 1).notes

    assert notes(-1.0)["search_cosine"] == pytest.approx(-1.0)
    closed = notes(1.5)
    assert closed["signal_cosine"] == pytest.approx(-1.0)
    assert closed["gate_closed"]
    assert "search_cosine" not in closed, "nothing was searched"


class Uncalled(nn.Sequential):
    """The weights of the last layer are used, but it is not called."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(self[0](inputs), self[1].get_parameter("weight"))


def frozen_body() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5).requires_grad_(requires_grad=False), nn.Linear(5, 3))


REFUSED: list[tuple[str, Callable[[], nn.Module], str]] = [
    ("clusters", lambda: nn.Linear(4, 3), "out-of-domain guidance needs a trainable linear layer inside the model"),
    ("clusters", lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1)), "needs a model with two or more outputs"),
    ("clusters", frozen_body, "none of them is trainable"),
    ("clusters", lambda: Uncalled(nn.Linear(4, 5), nn.Linear(5, 3)), "is not called in its forward pass"),
    ("surrogate", Net, "needs the classes of the server's data as labels, but found numbers"),
    ("distil", lambda: nn.Linear(4, 1), r"found the loss mse_loss and outputs of shape \(1, 1\)"),
    ("distil", Net, r"found the loss mse_loss and outputs of shape \(1, 3\)"),
    ("feddf", Net, "feddf needs a model that predicts one of several classes"),
]


@pytest.mark.parametrize(("objective", "make", "reason"), REFUSED)
def test_regression_and_models_without_a_head_are_refused(
    objective: str, make: Callable[[], nn.Module], reason: str
) -> None:
    model, method = make(), {"name": "feddle", "objective": objective}
    data = TensorDataset(torch.randn(30, 4), torch.randn(30, model(torch.zeros(1, 4)).shape[1]))
    with pytest.raises(FeddleError, match=reason):
        feddle.simulate(
            model,
            [data] * 3,
            server=data,
            rounds=2,
            per_round=2,
            workers=0,
            loss=F.mse_loss,
            method="feddf" if objective == "feddf" else method,
        )


@pytest.mark.parametrize("gate", [None, 0.5])
@pytest.mark.parametrize("objective", ["task", "distil", "clusters", "surrogate"])
def test_server_data_that_is_not_finite_is_named(objective: str, gate: float | None) -> None:
    points, labels = points_and_labels(30, 0)
    points[3, 2] = math.nan
    with pytest.raises(FeddleError, match="the server's data has values that are not finite; remove or replace them"):
        simulate(server=TensorDataset(points, labels), method={"name": "feddle", "objective": objective, "gate": gate})


@pytest.mark.parametrize("search", [PaperSearch(), GatedSearch(PaperSearch(), 1.5)])
def test_a_search_that_cannot_start_names_the_steps_before_it(search: Search) -> None:
    strategy = Feddle(Quadratic(1.0, 0.0, 0.0), Atlas(2, 3), search, FedBuffFallback())
    with pytest.raises(DivergedError, match=r"\(?loss.* inf\)?; lower training\.lr, or the learning rate of"):
        strategy.merge(weights(math.inf, 0.0, 0.0), [arrival(1.0, 0.0, 0.0)], 1)


def test_representations_that_are_not_finite_are_reported() -> None:
    model = Net()
    layout = Layout.of(model)
    start = layout.read(model)
    start.vector.fill_(math.inf)
    with pytest.raises(DivergedError, match=r"representations of the server's data are not finite; lower training\.lr"):
        SurrogateObjective(model, layout, pairs(), 2).begin(start, 0)


def simulate(**options: Any) -> feddle.Run[Any]:
    torch.manual_seed(0)
    data = [TensorDataset(*points_and_labels(30, seed)) for seed in range(4)]
    settings: dict[str, Any] = {"server": data[0], "test": data[1], "per_round": 2, "rounds": 4, "delays": {"sigma": 1}}
    return feddle.simulate(Net(), data, workers=0, evaluation={"every": 2}, **(settings | options))


def points_and_labels(count: int, seed: int) -> tuple[Tensor, Tensor]:
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return points, points[:, :3].argmax(1)


def test_diagnostics_are_written_and_do_not_change_the_run() -> None:
    plain = simulate()
    looked = simulate(diagnostics={"every": 2, "clients": 3})
    assert torch.equal(plain.server.model.vector, looked.server.model.vector)
    assert "update_cosine" not in looked.history[0]
    line = looked.history[3]
    assert -1 <= line["update_cosine"]["min"] <= line["update_cosine"]["mean"] <= line["update_cosine"]["max"] <= 1
    assert len(line["true_update_cosines"]) == 1  # with the one of round 2
    assert line["noise_to_signal"] > 0
    assert {"update_cosine", "noise_to_signal"} <= looked.history[1].keys()
    with_arrivals = [h for h in looked.history[1::2] if h["arrivals"]]
    assert all(h["gradient_norm_ratio"]["max"] > 0 for h in with_arrivals)


def test_a_clients_gradient_and_its_variance() -> None:
    # The loss of w is w·x. The batches (0, 2), (4, 6) and (8) have the gradients 1, 5 and 8 and the shares 0.4, 0.4 and
    # 0.2. Their mean is 4, and the variance 0.4·9 + 0.4·1 + 0.2·16 = 7.2.
    model = nn.Linear(1, 1, bias=False)
    layout = Layout.of(model)
    client = TensorDataset(torch.arange(0.0, 10.0, 2.0)[:, None], torch.zeros(5))
    problem = Problem(model, [FromDataset(client)], torch.tensor([5]), None, None, lambda outputs, _: outputs.mean())
    looked = Diagnostics(problem, layout, None, DiagnosticsOptions(), batch_size=2, seed=0)  # type: ignore[arg-type]
    mean, variance = looked._client_gradient(layout.read(model), 0)
    assert mean.tolist() == pytest.approx([4.0])
    assert variance == pytest.approx(7.2)


@pytest.mark.parametrize("objective", ["surrogate", "clusters", None])
def test_the_library_takes_server_data_of_another_task(objective: str | None) -> None:
    points = torch.randn(50, 4, generator=torch.Generator().manual_seed(9))
    run = simulate(
        server=TensorDataset(points, (points[:, 3] > 0).long()),
        server_classes=2,
        method={"name": "feddle", "objective": objective},
    )
    assert len(run.history) == 4
    strategy = run.server.strategy
    assert isinstance(strategy, Feddle)
    assert strategy.regularisation == 0.01
    assert isinstance(strategy.objective, SurrogateObjective)


def test_a_task_loss_on_another_tasks_labels_is_refused() -> None:
    with pytest.raises(FeddleError, match="needs server data of the clients' own task"):
        simulate(server_classes=2, method={"name": "feddle", "objective": "task"})


def test_cross_entropy_of_a_tiny_surrogate_by_hand() -> None:
    # one feature, tanh(0) = 0 everywhere: only the bias can learn, so with as many of either label the loss stays ln 2
    model = Net()
    with torch.no_grad():
        for parameter in model.body.parameters():
            parameter.zero_()
    data = FromDataset(TensorDataset(torch.randn(10, 4), torch.arange(10) % 2))
    objective = SurrogateObjective(model, Layout.of(model), data, 2)
    start = objective.layout.read(model)
    objective.begin(start, seed=0)
    assert full_pass(objective, start)[0] == pytest.approx(float(torch.tensor(2.0).log()))
