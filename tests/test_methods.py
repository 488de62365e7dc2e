"""The methods other than FedAvg, FedBuff and Feddle, worked out by hand on models of three numbers."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from feddle.core.atlas import Atlas
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.data.examples import FromDataset
from feddle.methods.ca2fl import CA2FL, Ca2flOptions
from feddle.methods.center import Center
from feddle.methods.client_cache import ClientCache, _FileRows
from feddle.methods.convex import ConvexMerging, ConvexOptions, into_simplex
from feddle.methods.fadas import Fadas, FadasOptions
from feddle.methods.fedasync import FedAsync, FedAsyncOptions
from feddle.methods.fedavg import FedAvg, FedAvgOptions
from feddle.methods.feddf import FedDF, FedDFOptions
from feddle.methods.feddle.fallback import FedBuffFallback
from feddle.methods.feddle.method import CalibratedAnchors, Feddle
from feddle.methods.fedft import FedFT
from feddle.methods.hfcl import HFCL, HfclOptions
from feddle.methods.median import CoordinateMedian, MedianOptions
from feddle.training.search import PaperSearch
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench
from three_numbers import Played, Quadratic, Scaled, arrival, bench, close, numbers, weights

MODEL = weights(1.0, 2.0, 3.0)


# --- FedAsync


def test_fedasync_mixes_the_clients_whole_model() -> None:
    # τ = 3: α_τ = 0.8/√4 = 0.4. The client's model is start + Δ = (0,0,1) + (4,0,0) = (4,0,1), so
    # w = 0.6·(1,2,3) + 0.4·(4,0,1) = (2.2, 1.2, 2.2). A delta against the current model would give (1 + 1.6, 2, 3).
    late = arrival(4.0, 0.0, 0.0, staleness=3, start=weights(0.0, 0.0, 1.0))
    assert close(Played(FedAsync(FedAsyncOptions(alpha=0.8, exponent=0.5))).merge(MODEL, [late]).vector, 2.2, 1.2, 2.2)


def test_fedasync_mixes_updates_one_by_one_and_its_weight_does_not_compound() -> None:
    # twice ½ of (4,4,4) from 0: (2,2,2), then (3,3,3); a round later ½ again: (3.5, 3.5, 3.5)
    strategy, client = Played(FedAsync(FedAsyncOptions(alpha=0.5, exponent=0.0))), arrival(4.0, 4.0, 4.0)
    once = strategy.merge(weights(0.0, 0.0, 0.0), [client, client])
    assert close(once.vector, 3.0, 3.0, 3.0)
    assert close(strategy.merge(once, [client]).vector, 3.5, 3.5, 3.5)


# --- CA2FL


def ca2fl(clients: int = 4, buffer_size: int = 2, lr: float = 1.0) -> Played:
    return Played(CA2FL(Ca2flOptions(buffer_size=buffer_size, lr=lr), ClientCache(clients, 3)))


def test_ca2fl_calibrates_by_the_clients_last_updates() -> None:
    strategy = ca2fl()
    # no client has reported yet: h = 0 and the step is the mean, ½((4,0,0) + (0,2,0)) = (2,1,0)
    first = strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0, client=0), arrival(0.0, 2.0, 0.0, client=1)])
    assert close(first.vector, 3.0, 3.0, 3.0)
    # now h₀ = (4,0,0), h₁ = (0,2,0) and h̄ = ¼(4,2,0) = (1,½,0), over all four clients, not the two that were seen.
    # ½((6,0,0) − h₀ + (0,0,8) − 0) = (1,0,4), so the step is (2,½,4); with h̄ taken after the cache was updated, or
    # over the clients seen so far, the step would differ
    second = strategy.merge(first, [arrival(6.0, 0.0, 0.0, client=0), arrival(0.0, 0.0, 8.0, client=2)])
    assert close(second.vector, 5.0, 3.5, 7.0)
    assert close(strategy.state.cache.mean(), 1.5, 0.5, 2.0)  # ¼((6,0,0) + (0,2,0) + (0,0,8))


def test_ca2fl_calibrates_both_updates_of_a_client_by_its_old_one() -> None:
    strategy = ca2fl(clients=2)
    model = strategy.merge(MODEL, [arrival(2.0, 0.0, 0.0, client=0), arrival(0.0, 2.0, 0.0, client=1)])
    # h₀ = (2,0,0), h̄ = (1,1,0): ½((4,0,0) − h₀ + (6,0,0) − h₀) = (3,0,0), so the step is (4,1,0)
    again = strategy.merge(model, [arrival(4.0, 0.0, 0.0, number=1), arrival(6.0, 0.0, 0.0, number=2)])
    assert close(again.vector - model.vector, 4.0, 1.0, 0.0)
    assert close(strategy.state.cache[0], 6.0, 0.0, 0.0), "the later one is kept"


def test_a_large_cache_uses_a_file_that_leaves_nothing_behind(tmp_path: Path) -> None:
    held, mapped = ClientCache(5, 3), ClientCache(5, 3, limit=59, folder=tmp_path / "run")
    assert not isinstance(held._keep, _FileRows)
    assert isinstance(mapped._keep, _FileRows)
    for cache in (held, mapped):
        for client, value in ((3, 1.0), (0, 2.0), (3, 4.0)):
            cache.put(client, torch.full((3,), value))
    for client in range(5):
        assert torch.equal(held[client], mapped[client])
    assert torch.equal(held.mean(), mapped.mean())
    assert close(held.mean(), 1.2, 1.2, 1.2)  # (4 + 2)/5
    assert list((tmp_path / "run").iterdir()) == []
    restored = ClientCache(5, 3, limit=59, folder=tmp_path / "run")
    restored.load_state_dict(mapped.state_dict())
    assert all(torch.equal(restored[c], mapped[c]) for c in range(5))
    assert torch.equal(restored.mean(), mapped.mean())
    for value in range(20):
        mapped.put(3, torch.full((3,), float(value)))
    assert mapped._keep._used == 3, "a free row is reused"
    saved = mapped.state_dict()
    mapped.put(3, torch.full((3,), 50.0))
    assert close(saved["last.3"], 19.0, 19.0, 19.0), "a row of a saved state is not reused"
    assert close(mapped[3], 50.0, 50.0, 50.0)
    with pytest.raises(FeddleError, match=r"last updates of 1000 clients \(0\.012 MB\) exceed the cache limit"):
        ClientCache(1000, 3, limit=10)


def test_the_cache_reports_a_full_disk_and_a_surplus_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ClientCache(2, 3, limit=0, folder=tmp_path)
    for client in (7, 8):
        cache.put(client, torch.ones(3))
    with pytest.raises(FeddleError, match=r"more than 2 clients sent updates \(client 9 is new\)"):
        cache.put(9, torch.ones(3))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(FeddleError, match=r"no space left for the last updates of 2 clients .* No space left"):
        cache.put(7, torch.zeros(3))
    assert close(cache[7], 1.0, 1.0, 1.0)
    assert close(cache.mean(), 1.0, 1.0, 1.0), "an update that was not stored does not count"


def test_a_restored_buffer_keeps_its_largest_staleness() -> None:
    # the first has staleness 4, above the threshold of 1, so the step is a quarter; the second alone is below it
    whole, first, second = fadas(1), fadas(1), fadas(1)
    late, fresh = arrival(4.0, 2.0, 1.0, staleness=4), arrival(4.0, 2.0, 1.0)
    first.merge(MODEL, [late])
    second.continue_from(first)
    stepped = second.merge(MODEL, [fresh]).vector
    assert torch.equal(stepped, whole.merge(MODEL, [late, fresh]).vector)
    assert not torch.equal(stepped, fadas(1).merge(MODEL, [fresh, fresh]).vector)


def test_a_strategy_copies_what_it_keeps() -> None:
    # a caller may reuse the memory of an update: the state of the strategy must not change with it
    for strategy in (ca2fl(), fadas()):
        one = arrival(4.0, 2.0, 1.0)
        strategy.merge(MODEL, [one])
        before = {name: tensor.clone() for name, tensor in strategy.state_dict().items()}
        one.update.delta.zero_()
        assert all(torch.equal(before[name], tensor) for name, tensor in strategy.state_dict().items())


# --- FADAS


def fadas(threshold: int = 10) -> Played:
    options = FadasOptions(buffer_size=2, lr=1.0, delay_threshold=threshold, beta1=0.5, beta2=0.75, epsilon=1.0)
    return Played(Fadas(options, 3))


def test_fadas_worked_out() -> None:
    # the mean of (4,−4,0) and (0,−4,0) is (2,−4,0): m = ½·that = (1,−2,0), v = ¼·its square = (1,4,0) = v̂, so the
    # step is (1/(1+1), −2/(2+1), 0)
    strategy = fadas()
    first = strategy.merge(MODEL, [arrival(4.0, -4.0, 0.0), arrival(0.0, -4.0, 0.0)])
    assert close(first.vector, 1.5, 2.0 - 2 / 3, 3.0)
    # a zero mean: m = (½,−1,0), v = ¾(1,4,0) falls, but v̂ stays (1,4,0): the step is (½/2, −1/3, 0)
    second = strategy.merge(first, [arrival(0.0, 0.0, 0.0), arrival(0.0, 0.0, 0.0)])
    assert close(second.vector, 1.75, 1.0, 3.0)


def test_fadas_divides_by_the_largest_delay_beyond_the_threshold() -> None:
    for staleness, share in ((10, 1.0), (20, 1 / 20)):
        arrivals = [arrival(4.0, -4.0, 0.0, staleness=1), arrival(0.0, -4.0, 0.0, staleness=staleness)]
        assert close(fadas().merge(MODEL, arrivals).vector, 1.0 + share / 2, 2.0 - share * 2 / 3, 3.0)


def test_fadas_uses_the_clients_own_delta_wherever_it_started() -> None:
    old, new = (
        [arrival(4.0, -4.0, 0.0, start=start), arrival(0.0, -4.0, 0.0, start=start)]
        for start in (weights(9.0, 9.0, 9.0), MODEL)
    )
    assert torch.equal(fadas().merge(MODEL, old).vector, fadas().merge(MODEL, new).vector)


# --- the median


def test_the_median_of_each_coordinate() -> None:
    odd = [arrival(1.0, 5.0, -1.0), arrival(2.0, -9.0, 0.0), arrival(9.0, 1.0, 7.0)]
    assert close(Played(CoordinateMedian(MedianOptions())).merge(MODEL, odd).vector, 3.0, 3.0, 3.0)  # + (2, 1, 0)
    even = [*odd, arrival(4.0, 3.0, -8.0)]
    assert close(
        Played(CoordinateMedian(MedianOptions(lr=2.0))).merge(MODEL, even).vector, 7.0, 6.0, 2.0
    )  # + 2·(3, 2, −½)


def test_an_outlier_does_not_move_the_median() -> None:
    close_together = [arrival(1.0, 1.0, 1.0), arrival(1.1, 1.0, 0.9)]
    merged = Played(CoordinateMedian(MedianOptions())).merge(
        weights(0.0, 0.0, 0.0), [*close_together, arrival(-1e6, 1e6, 1e6)]
    )
    assert float(merged.vector.abs().max()) <= 1.1


# --- convex merging


@pytest.mark.parametrize(
    ("point", "nearest"),
    [((0.5, 0.2), (0.5, 0.2)), ((-1.0, 0.5), (0.0, 0.5)), ((1.0, 1.0), (0.5, 0.5)), ((2.0, 0.0), (1.0, 0.0))],
)
def test_into_simplex(point: tuple[float, ...], nearest: tuple[float, ...]) -> None:
    assert close(into_simplex(torch.tensor(point)), *nearest)


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=6), st.integers(0, 2**32))
def test_into_simplex_is_inside_and_nearest(point: list[float], seed: int) -> None:
    tensor = torch.tensor(point)
    inside = into_simplex(tensor)
    assert float(inside.min()) >= 0
    assert float(inside.sum()) <= 1 + 1e-5
    others = torch.rand(200, len(point), generator=torch.Generator().manual_seed(seed))
    others = others / others.sum(1, keepdim=True).clamp(min=1)
    distances = (others - tensor).square().sum(1)
    assert float((inside - tensor).square().sum()) <= float(distances.min()) + 1e-4


def test_convex_merging_finds_the_best_point_of_the_hull() -> None:
    # vertices: the current (0,0,0) and the reported models (4,0,0) and (0,0,1) + (0,4,−1) = (0,4,0).
    # The server wants (1,2,0) = ¼(4,0,0) + ½(0,4,0) + ¼·current, which is inside
    reported = [arrival(4.0, 0.0, 0.0), arrival(0.0, 4.0, -1.0, start=weights(0.0, 0.0, 1.0), staleness=5)]
    origin = weights(0.0, 0.0, 0.0)
    strategy = Played(ConvexMerging(ConvexOptions(epochs=400, batch_size=4), Quadratic(1.0, 2.0, 0.0), 0))
    assert torch.allclose(strategy.merge(origin, reported).vector, torch.tensor([1.0, 2.0, 0.0]), atol=1e-2)
    # (−1, 9, 0) is outside: no coefficient is negative, and their sum is at most 1
    outside = Played(ConvexMerging(ConvexOptions(epochs=400, batch_size=4), Quadratic(-1.0, 9.0, 0.0), 0))
    assert torch.allclose(outside.merge(origin, reported).vector, torch.tensor([0.0, 4.0, 0.0]), atol=1e-2)
    assert outside.notes["coefficients"] == pytest.approx([0.0, 1.0], abs=1e-3)


# --- methods that train on the server's data; the model is y = w·x with one example x = y = 2 for the first number

SGD = Recipe(optimizer="sgd", lr=0.1, epochs=1, batch_size=8)


def test_fed_ft_merges_and_then_fine_tunes() -> None:
    # w₁: 1 + 1 = 2 by the merge; fine-tuning on (2w − 2)² has gradient 8 at 2, so w₁ = 2 − 0.8 = 1.2
    strategy = Played(FedFT(FedAvg(FedAvgOptions(late="add_deltas")), bench(), numbers(), SGD, seed=0))
    merged = strategy.merge(MODEL, [arrival(1.0, 5.0, 0.0)])
    assert close(merged.vector, 1.2, 7.0, 3.0)
    # a round without arrivals fine-tunes too: (2.4 − 2)² has gradient 1.6, so w₁ = 1.2 − 0.16 = 1.04
    assert close(strategy.merge(merged, []).vector, 1.04, 7.0, 3.0)


def test_hfcl_counts_the_server_as_one_more_client() -> None:
    # from w₁ = 2 the server's own update is −0.8 with one example; the client's is +0.4 with three, the late one is
    # discarded: ¼·(−0.8) + ¾·0.4 = 0.1
    strategy = Played(HFCL(HfclOptions(), bench(), numbers(), SGD))
    arrivals = [arrival(0.4, 0.0, 0.0, examples=3), arrival(100.0, 0.0, 0.0, staleness=1)]
    assert close(strategy.merge(weights(2.0, 0.0, 0.0), arrivals).vector, 2.1, 0.0, 0.0)
    assert close(strategy.merge(weights(2.0, 0.0, 0.0), []).vector, 1.2, 0.0, 0.0)


def test_center_spreads_its_epochs_and_needs_no_client() -> None:
    # three epochs over six rounds: after the second, fourth and sixth. From 2: 1.2, 1.04, 1.008
    strategy = Played(Center(bench(), numbers(), SGD.model_copy(update={"epochs": 3}), rounds=6, seed=0))
    model, seen = weights(2.0, 0.0, 0.0), []
    for _ in range(7):
        model = strategy.merge(model, [arrival(100.0, 0.0, 0.0)])
        seen.append(round(model.vector[0].item(), 4))
    assert seen == [2.0, 1.2, 1.2, 1.04, 1.04, 1.008, 1.008]
    assert strategy.max_staleness == -1


def test_feddf_at_a_temperature_worked_out() -> None:
    # one teacher with logits 2w = (0, 2·ln 3, −18): at T = 2 its softmax is (¼, ¾, 0). The student is the average, the
    # teacher itself, so nothing moves; from (0,0,0) instead, the gradient of T²·KL by the logits is T·(q − p) with
    # q = (⅓,⅓,⅓): 2·(1/12, −5/12, ⅓), times x = 2 for the weights: (⅓, −5/3, 4/3). One SGD step of 0.1:
    teacher = arrival(0.0, 1.0986123, -9.0)
    strategy = feddf(SGD, temperature=2.0)
    targets = strategy.teach([teacher], strategy.examples)
    student = strategy.distil(weights(0.0, 0.0, 0.0), strategy.examples, targets, seed=0)
    assert torch.allclose(student.weights.vector, torch.tensor([-1 / 30, 1 / 6, -2 / 15]), atol=1e-3)


def test_center_keeps_its_optimiser_after_a_restart() -> None:
    def center() -> Played:
        return Played(Center(bench(), numbers(), Recipe(lr=0.1, epochs=8), rounds=8, seed=0))

    whole, first, second = center(), center(), center()
    model = start = weights(2.0, 0.0, 0.0)
    for _ in range(8):
        model = whole.merge(model, [])
    half = start
    for _ in range(4):
        half = first.merge(half, [])
    second.continue_from(first)
    for _ in range(4):
        half = second.merge(half, [])
    assert torch.equal(half.vector, model.vector)
    fresh = start
    for number in range(8):
        fresh = center().strategy.merge(fresh, [], number + 1).weights
    assert not torch.equal(fresh.vector, model.vector), "one optimiser for all rounds, not one per round"


# --- FedDF


def feddf(recipe: Recipe, **options: Any) -> Played:
    return Played(FedDF(FedDFOptions(late="add_deltas", **options), bench(Scaled()), numbers(), recipe))


def test_feddf_teachers() -> None:
    # with x = 2 the logits are 2w. Two teachers, w = (0, ½ln 9, −9) and (0, 0, −9): logits (0, ln 9, −18), (0, 0, −18).
    # Their mean (0, ln 3, −18) has softmax (¼, ¾, 0); their softmaxes (0.1, 0.9, 0), (½, ½, 0) have mean (0.3, 0.7, 0)
    half_ln9 = 0.5 * 2.1972246
    teachers = [arrival(0.0, half_ln9, -9.0), arrival(0.0, 0.0, -8.0, start=weights(0.0, 0.0, -1.0))]
    logits = feddf(SGD).teach(teachers, feddf(SGD).examples)
    assert torch.allclose(logits, torch.tensor([[0.25, 0.75, 0.0]]), atol=1e-4)
    losses = feddf(SGD, average="losses").teach(teachers, feddf(SGD).examples)
    assert torch.allclose(losses, torch.tensor([[0.3, 0.7, 0.0]]), atol=1e-4)
    # at temperature 2 the first teacher's logits are halved: (0, ln 3, −9), softmax (¼, ¾, 0)
    warm = feddf(SGD, temperature=2.0).teach(teachers[:1], feddf(SGD).examples)
    assert torch.allclose(warm, torch.tensor([[0.25, 0.75, 0.0]]), atol=1e-3)


def test_feddf_distils_the_mean_of_the_teachers() -> None:
    teachers = [arrival(1.0, 0.0, 0.0, examples=9), arrival(0.0, 1.0, 0.0, examples=1)]
    strategy = feddf(Recipe(optimizer="sgd", lr=0.5, epochs=200))
    merged = strategy.merge(weights(0.0, 0.0, 0.0), teachers)
    # the average is weighted by examples, but both teachers have the same weight: the student's first two logits agree
    assert merged.vector[0].item() == pytest.approx(merged.vector[1].item(), abs=1e-3)
    assert strategy.notes["distillation_loss"] < 1e-4
    assert strategy.notes["distillation_epochs"] == 200


def test_feddf_stops_early_when_the_loss_no_longer_falls() -> None:
    strategy = feddf(Recipe(optimizer="sgd", lr=0.5, epochs=5000), patience=2)
    strategy.merge(weights(0.0, 0.0, 0.0), [arrival(1.0, 0.0, 0.0), arrival(0.0, 1.0, 0.0)])
    assert strategy.notes["distillation_epochs"] < 5000


# --- calibrated anchors


def with_anchors(kind: CalibratedAnchors) -> Played:
    search = PaperSearch(lr=1e-9, epochs=1, batch_size=4)
    return Played(Feddle(Quadratic(0.0, 0.0, 0.0), Atlas(4, 3), search, FedBuffFallback(), anchors=kind))


def test_calibrated_anchors() -> None:
    strategy = with_anchors(CalibratedAnchors(ClientCache(2, 3)))
    strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0, client=0)])
    # h₀ = (4,0,0), h̄ = (2,0,0): the next update (4,2,0) of client 0 becomes (2,0,0) + (4,2,0) − (4,0,0) = (2,2,0)
    strategy.merge(MODEL, [arrival(4.0, 2.0, 0.0, client=0)])
    first, second = torch.eye(2)
    assert close(strategy.atlas.active().combine(torch.zeros(3), first), 4.0, 0.0, 0.0)
    assert close(strategy.atlas.active().combine(torch.zeros(3), second), 2.0, 2.0, 0.0)


def test_all_anchors_of_a_merge_are_calibrated_by_the_old_updates() -> None:
    kind = CalibratedAnchors(ClientCache(2, 3))
    kind([arrival(2.0, 0.0, 0.0, client=0), arrival(0.0, 2.0, 0.0, client=1)])
    # h₀ = (2,0,0), h̄ = (1,1,0): both updates of client 0 are calibrated by the old ones, (1,1,0) + (4,0,0) − (2,0,0)
    # and (1,1,0) + (6,0,0) − (2,0,0); their mean (4,1,0) is CA2FL's step
    first, second = kind([arrival(4.0, 0.0, 0.0, number=1), arrival(6.0, 0.0, 0.0, number=2)])
    assert close(first, 3.0, 1.0, 0.0)
    assert close(second, 5.0, 1.0, 0.0)
    assert close(kind.state[0], 6.0, 0.0, 0.0)


def test_a_zero_update_does_not_become_a_calibrated_anchor() -> None:
    strategy = with_anchors(CalibratedAnchors(ClientCache(4, 3)))
    model = strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0, client=0)])
    assert torch.equal(strategy.merge(model, [arrival(0.0, 0.0, 0.0, client=0)]).vector, model.vector)
    assert close(strategy.anchors.state.state_dict()["last.0"], 4.0, 0.0, 0.0)


def test_the_examples_in_the_docs_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = [part.split("```")[0] for part in Path("docs/methods.md").read_text().split("```python\n")[1:]]
    for code in examples:
        exec(compile(code, "methods.md", "exec"), {})  # noqa: S102  # our own docs
    first, second = capsys.readouterr().out.splitlines()
    assert first == "tensor([2., 2., 0.])"
    assert len(json.loads(second)) == 1


def test_a_student_that_equals_its_teacher_does_not_move() -> None:
    images = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))
    bench, examples = Workbench(model, Layout.of(model)), FromDataset(TensorDataset(images, torch.zeros(64).long()))
    start = bench.layout.read(model)
    strategy = FedDF(FedDFOptions(late="add_deltas"), bench, examples, Recipe(lr=1e-3, epochs=5))
    teacher = arrival(*[0.01] * len(start.vector), start=start)
    merged = strategy.merge(start, [teacher], 1).weights
    assert torch.equal(merged.vector, start.vector + 0.01)
