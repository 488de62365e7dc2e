"""Every method's merge on three-number models, and every method through the same scenarios."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from feddle.core.atlas import Atlas
from feddle.core.blocks import Blocks, Segment
from feddle.core.layout import Weights
from feddle.core.messages import Arrival
from feddle.core.metrics import ACCURACY
from feddle.methods.ca2fl import CA2FL, Ca2flOptions
from feddle.methods.center import Center
from feddle.methods.client_cache import ClientCache
from feddle.methods.convex import ConvexMerging, ConvexOptions
from feddle.methods.fadas import Fadas, FadasOptions
from feddle.methods.fedasync import FedAsync, FedAsyncOptions
from feddle.methods.fedavg import FedAvg, FedAvgOptions, Late
from feddle.methods.fedbuff import FedBuff, FedBuffOptions
from feddle.methods.feddf import FedDF, FedDFOptions
from feddle.methods.feddle.fallback import Fallback, FedAsyncFallback, FedAvgFallback, FedBuffFallback, NoFallback
from feddle.methods.feddle.gate import GatedSearch
from feddle.methods.feddle.method import Anchoring, CalibratedAnchors, Feddle, RawAnchors
from feddle.methods.feddle.server_anchor import ServerAnchor, ServerAnchorOptions
from feddle.methods.fedft import FedFT
from feddle.methods.hfcl import HFCL, HfclOptions
from feddle.methods.local import Local
from feddle.methods.median import CoordinateMedian, MedianOptions
from feddle.methods.strategy import Strategy
from feddle.training.distil import DistilObjective
from feddle.training.parts import ClientScore
from feddle.training.search import PaperSearch
from feddle.training.train import Recipe
from three_numbers import Played, Quadratic, Scaled, arrival, bench, close, numbers, weights

MODEL = weights(1.0, 2.0, 3.0)


def feddle(
    fallback: Fallback | None = None,
    *,
    lr: float = 1e-9,
    capacity: int = 4,
    normalise: bool = True,
    anchors: Anchoring = RawAnchors(),  # noqa: B008  # frozen
    **more: Any,
) -> Played:
    """By default a search that hardly moves, so that what the fallback does can be seen."""
    strategy = Feddle(
        Quadratic(0.0, 0.0, 0.0),
        Atlas(capacity, 3),
        PaperSearch(lr=lr, epochs=1, batch_size=4),
        fallback or FedBuffFallback(),
        anchors=anchors,
        normalise=normalise,
        **more,
    )
    return Played(strategy)


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        # only the first is in time, so it counts whole: (1,2,3) + (4,0,0)
        ("discard", (5.0, 2.0, 3.0)),
        # n = 1 + 3: (1,2,3) + ¼(4,0,0) + ¾(0,8,0) = (2, 8, 3)
        ("add_deltas", (2.0, 8.0, 3.0)),
        # ¼((1,2,3) + (4,0,0)) + ¾((0,0,4) + (0,8,0)) = (1.25, 6.5, 3.75)
        ("average_models", (1.25, 6.5, 3.75)),
    ],
)
def test_fedavg(late: Late, expected: tuple[float, ...]) -> None:
    in_time = arrival(4.0, 0.0, 0.0, examples=1, start=MODEL)
    too_late = arrival(0.0, 8.0, 0.0, examples=3, staleness=2, start=weights(0.0, 0.0, 4.0))
    strategy = Played(FedAvg(FedAvgOptions(late=late)))
    assert close(strategy.merge(MODEL, [in_time, too_late]).vector, *expected)
    assert strategy.max_staleness == (0 if late == "discard" else None)


def test_fedbuff_divides_by_the_buffer_size_and_keeps_the_rest() -> None:
    strategy = Played(FedBuff(FedBuffOptions(buffer_size=2, lr=0.5, staleness="sqrt")))
    first = strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0)])
    assert torch.equal(first.vector, MODEL.vector)
    # the buffer is full with the second: ½/2·(1·(4,0,0) + ½·(0,8,0)) = (1, 1, 0); the third waits
    arrivals = [arrival(0.0, 8.0, 0.0, staleness=3), arrival(0.0, 0.0, 100.0)]
    second = strategy.merge(first, arrivals)
    assert close(second.vector, 2.0, 3.0, 3.0)
    assert strategy.notes == {"flushes": 1, "buffered": 1}
    # the third with a fourth: ¼·((0,0,100) + (0,0,−100)) = 0
    assert close(strategy.merge(second, [arrival(0.0, 0.0, -100.0)]).vector, 2.0, 3.0, 3.0)


def test_fedbuff_flushes_as_often_as_it_is_full() -> None:
    strategy = Played(FedBuff(FedBuffOptions(buffer_size=1, lr=1.0, staleness="constant")))
    merged = strategy.merge(MODEL, [arrival(1.0, 0.0, 0.0, staleness=9), arrival(0.0, 1.0, 0.0)])
    assert close(merged.vector, 2.0, 3.0, 3.0)
    assert strategy.notes == {"flushes": 2, "buffered": 0}


@pytest.mark.parametrize(
    ("fallback", "raw"),
    [
        # η·s(τ)/n = 0.8·1/2 and 0.8·½/2
        (FedBuffFallback(lr=0.8), (0.4, 0.2)),
        # n_j/n = 1/4 and 3/4
        (FedAvgFallback(), (0.25, 0.75)),
        # α = 0.4·1 and 0.4·½ = 0.2: the first is mixed down by the second, 0.4·0.8 = 0.32
        (FedAsyncFallback(alpha=0.4, exponent=0.5), (0.32, 0.2)),
        (NoFallback(), (0.0, 0.0)),
    ],
)
def test_fallbacks(fallback: Fallback, raw: tuple[float, ...]) -> None:
    arrivals = [arrival(3.0, 0.0, 0.0, examples=1), arrival(0.0, 1.0, 0.0, examples=3, staleness=3)]
    assert fallback(arrivals) == pytest.approx(raw)
    for normalise in (True, False):
        # whatever the scale of the anchors, the search starts from the fallback's own step
        merged = feddle(fallback, normalise=normalise).merge(MODEL, arrivals)
        assert close(merged.vector, 1.0 + 3.0 * raw[0], 2.0 + raw[1], 3.0)


def test_feddle_starts_from_fedbuffs_step_exactly() -> None:
    arrivals = [arrival(3.0, 0.5, 0.0), arrival(-1.0, 1.0, 2.0, staleness=3), arrival(0.0, 1.0, 1.0, staleness=8)]
    fedbuff = Played(FedBuff(FedBuffOptions(buffer_size=3))).merge(MODEL, arrivals)
    assert torch.allclose(feddle().merge(MODEL, arrivals).vector, fedbuff.vector, atol=1e-6)


def test_feddle_worked_out() -> None:
    # anchors (4,0,0) and (0,2,0): median 3, r = (¾, 3/2); FedBuff's raw (½, ½) is c′ = (½/¾, ½/(3/2)) = (⅔, ⅓).
    # At w + c′Ā = (3, 3, 3) the gradient of ½‖w‖² is (3, 3, 3), projected r∘(A·g) = (¾·12, 3/2·6) = (9, 9),
    # so Adam's first step moves both by −0.1: ĉ = (⅔ − 0.1, ⅓ − 0.1), and w = (1 + ¾·4·ĉ₁, 2 + 3/2·2·ĉ₂, 3)
    # = (1 + 3·0.566667, 2 + 3·0.233333, 3) = (2.7, 2.7, 3)
    strategy = feddle(lr=0.1)
    merged = strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0, client=7), arrival(0.0, 2.0, 0.0, client=9)])
    assert close(merged.vector, 2.7, 2.7, 3.0)
    assert strategy.notes["coefficients"] == pytest.approx([0.566667, 0.233333], abs=1e-5)
    assert strategy.notes["moved"] == pytest.approx(0.141421, abs=1e-5)  # √(0.1² + 0.1²)
    assert strategy.notes["anchor_clients"] == [7, 9]
    assert strategy.notes["negative_share"] == 0.0


def test_feddle_gives_a_harmful_update_a_negative_coefficient() -> None:
    strategy = feddle(NoFallback(), lr=0.01)
    strategy.merge(weights(1.0, 1.0, 0.0), [arrival(-1.0, 0.0, 0.0), arrival(0.0, 1.0, 0.0)])
    helpful, harmful = strategy.notes["coefficients"]
    assert helpful > 0 > harmful
    assert strategy.notes["negative_share"] == 0.5


def test_feddle_old_anchors_start_at_zero_and_the_fallback_counts_only_new_ones() -> None:
    strategy = feddle()
    once = strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0)])
    assert close(strategy.merge(once, [arrival(0.0, 6.0, 0.0)]).vector, 5.0, 8.0, 3.0)


def test_feddle_more_arrivals_than_anchors() -> None:
    # with one row, the first anchor is gone when the search begins: n = 1 for the second
    merged = feddle(capacity=1).merge(MODEL, [arrival(4.0, 0.0, 0.0), arrival(0.0, 6.0, 0.0)])
    assert close(merged.vector, 1.0, 8.0, 3.0)


def test_feddle_keeps_the_anchors_that_its_search_used_most() -> None:
    # the server wants w = 0 from (4, 0, 0): the first anchor does it, the second does nothing, so the second is removed
    strategy = feddle(NoFallback(), lr=0.5, capacity=2)
    model = strategy.merge(
        weights(4.0, 0.0, 0.0), [arrival(-1.0, 0.0, 0.0, client=1), arrival(0.0, 0.0, 1.0, client=2)]
    )
    strategy.merge(model, [arrival(0.0, 1.0, 0.0, client=3)])
    assert [job.client for job in strategy.atlas.origins()] == [1, 3]


def test_feddle_shuffles_its_mini_batches_each_round() -> None:
    seen: list[list[int]] = []

    class Watching(Quadratic):
        def loss_and_gradient(self, point: Weights, examples: torch.Tensor) -> tuple[float, torch.Tensor]:
            seen.append(examples.tolist())
            return super().loss_and_gradient(point, examples)

    search = PaperSearch(lr=0.1, epochs=1, batch_size=50)
    strategy = Played(Feddle(Watching(0.0, 0.0, 0.0, examples=50), Atlas(4, 3), search, NoFallback(), seed=3))
    for _ in range(2):
        strategy.merge(MODEL, [arrival(1.0, 0.0, 0.0)])
    assert seen[0] != seen[1]
    assert sorted(seen[0]) == sorted(seen[1])


def test_feddle_takes_no_direction_from_a_norm_that_underflows() -> None:
    strategy = feddle(lr=0.1)
    merged = strategy.merge(MODEL, [arrival(1e-30, 0.0, 0.0), arrival(4.0, 0.0, 0.0)])
    assert len(strategy.atlas) == 1
    assert bool(merged.vector.isfinite().all())


def test_feddle_without_a_new_anchor_does_not_search() -> None:
    strategy = feddle(lr=0.1)
    moved = strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0)])
    assert torch.equal(strategy.merge(moved, []).vector, moved.vector)
    assert torch.equal(strategy.merge(moved, [arrival(0.0, 0.0, 0.0)]).vector, moved.vector)
    assert strategy.notes == {}


RECIPE = Recipe(epochs=2, lr=0.01)
SEARCH = PaperSearch(lr=0.05)
BLOCKS = Segment(0, 1, 2, 0), Segment(2, 1, 1, 1)


def server_anchor() -> ServerAnchor:
    return ServerAnchor(ServerAnchorOptions(), bench(statistic=True), numbers(), RECIPE)


class Nobody:
    """No client can be measured."""

    metric = ACCURACY

    def drawn(self, limit: int) -> list[int]:  # noqa: ARG002
        return []

    def weight(self, client: int) -> int: ...  # type: ignore[empty-body]

    def alone(self, client: int, start: Weights, epochs: int) -> ClientScore: ...  # type: ignore[empty-body]


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "fedavg-discard": lambda: FedAvg(FedAvgOptions(late="discard")),
    "fedavg-average-models": lambda: FedAvg(FedAvgOptions(late="average_models")),
    "fedavg-add-deltas": lambda: FedAvg(FedAvgOptions(late="add_deltas")),
    "fedbuff": lambda: FedBuff(FedBuffOptions(buffer_size=2)),
    "feddle": lambda: feddle(lr=0.05).strategy,
    "feddle-unnormalised": lambda: feddle(lr=0.05, normalise=False).strategy,
    "feddle-calibrated": lambda: feddle(lr=0.05, anchors=CalibratedAnchors(ClientCache(9, 3))).strategy,
    "feddle-blocks": lambda: feddle(lr=0.05, blocks=Blocks(("a", "b"), BLOCKS)).strategy,
    "feddle-server": lambda: feddle(lr=0.05, server_anchor=server_anchor()).strategy,
    "feddle-distil": lambda: Feddle(
        DistilObjective(bench(Scaled(), statistic=True), numbers(), teachers=2), Atlas(4, 3), SEARCH, FedBuffFallback()
    ),
    "feddle-gate": lambda: Feddle(Quadratic(0.0, 0.0, 0.0), Atlas(4, 3), GatedSearch(SEARCH, 0.5), FedBuffFallback()),
    "fedasync": lambda: FedAsync(FedAsyncOptions()),
    "ca2fl": lambda: CA2FL(Ca2flOptions(buffer_size=2), ClientCache(9, 3)),
    "fadas": lambda: Fadas(FadasOptions(buffer_size=2), 3),
    "median": lambda: CoordinateMedian(MedianOptions()),
    "convex": lambda: ConvexMerging(ConvexOptions(lr=0.05, epochs=2, batch_size=2), Quadratic(0.0, 0.0, 0.0), 0),
    "local": lambda: Local(Nobody(), limit=3, epochs=1, rounds=1),
    "center": lambda: Center(bench(statistic=True), numbers(), RECIPE, rounds=1, seed=0),
    "fed+ft": lambda: FedFT(FedBuff(FedBuffOptions(buffer_size=2)), bench(statistic=True), numbers(), RECIPE, seed=0),
    "hfcl": lambda: HFCL(HfclOptions(late="add_deltas"), bench(statistic=True), numbers(), RECIPE),
    "feddf": lambda: FedDF(FedDFOptions(late="add_deltas"), bench(Scaled(), statistic=True), numbers(), RECIPE),
}
TRAIN_ALONE = {"center", "fed+ft", "hfcl", "feddle-server"}  # they train on the server's data whatever arrives
START = weights(1.0, 2.0, 3.0, buffers=[0.5])
SCENARIOS: dict[str, Sequence[Arrival]] = {
    "none": [],
    "one": [arrival(1.0, 0.0, -1.0, start=START, buffers=[1.0])],
    "many": [arrival(float(i), 1.0, -1.0, client=i, start=START, buffers=[1.0], examples=i + 1) for i in range(7)],
    "stale": [arrival(1.0, 0.0, -1.0, staleness=9, start=START, buffers=[1.0])],
    "same client twice": [arrival(1.0, 0.0, -1.0, number=n, start=START, buffers=[1.0]) for n in range(2)],
    "zero": [arrival(0.0, 0.0, 0.0, start=START, buffers=[1.0])],
    "zero among others": [arrival(float(i % 2), 0.0, 0.0, client=i, start=START, buffers=[1.0]) for i in range(3)],
}
table = pytest.mark.parametrize("scenario", SCENARIOS)
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def made(name: str) -> Played:
    return Played(STRATEGIES[name]())


def same(a: Weights, b: Weights) -> bool:
    return torch.equal(a.vector, b.vector) and torch.equal(a.buffers, b.buffers)


@table
@every_strategy
def test_a_merge_is_finite_and_changes_no_argument(name: str, scenario: str) -> None:
    arrivals = SCENARIOS[scenario]
    before = [a.update.delta.clone() for a in arrivals], START.vector.clone()
    merged = made(name).merge(START, arrivals)
    assert merged.vector.shape == (3,)
    assert bool(merged.vector.isfinite().all())
    assert 0.5 <= merged.buffers.item() <= 1.0
    assert all(torch.equal(a.update.delta, b) for a, b in zip(arrivals, before[0], strict=True))
    assert torch.equal(START.vector, before[1])


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - TRAIN_ALONE))
def test_the_model_does_not_change_without_arrivals(name: str) -> None:
    assert same(made(name).merge(START, []), START)


@every_strategy
def test_a_saved_state_does_not_change_as_the_strategy_continues(name: str) -> None:
    strategy = made(name)
    model = strategy.merge(START, SCENARIOS["many"])
    saved = strategy.state_dict()
    before = {n: t.clone() for n, t in saved.items()}
    strategy.merge(model, SCENARIOS["many"])
    assert all(torch.equal(t.nan_to_num(-1), before[n].nan_to_num(-1)) for n, t in saved.items())


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - TRAIN_ALONE))
def test_a_zero_update_does_not_change_the_model(name: str) -> None:
    merged = made(name).merge(START, SCENARIOS["zero"])
    assert torch.equal(merged.vector, START.vector)


@table
@every_strategy
def test_the_same_merge_is_bit_identical(name: str, scenario: str) -> None:
    once, twice = (made(name).merge(START, SCENARIOS[scenario]) for _ in range(2))
    assert same(once, twice)


@table
@every_strategy
def test_a_restored_strategy_continues_identically(name: str, scenario: str) -> None:
    whole, first, second = (made(name) for _ in range(3))
    model = whole.merge(START, SCENARIOS["many"])
    assert same(first.merge(START, SCENARIOS["many"]), model)
    second.continue_from(first)
    assert same(whole.merge(model, SCENARIOS[scenario]), second.merge(model, SCENARIOS[scenario]))


@pytest.mark.parametrize(
    "name", ["fedavg-add-deltas", "fedbuff", "feddle", "ca2fl", "fadas", "convex", "fed+ft", "feddf"]
)
def test_running_statistics_are_averaged_by_examples(name: str) -> None:
    arrivals = [
        arrival(1.0, 0.0, 0.0, examples=1, buffers=[1.0], start=START),
        arrival(0.0, 1.0, 0.0, examples=3, buffers=[5.0], start=START),
    ]
    assert made(name).merge(START, arrivals).buffers.tolist() == [4.0]  # ¼·1 + ¾·5
