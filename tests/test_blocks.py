"""Coefficients per block and the server anchor: worked examples, then properties."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import feddle
from feddle.core.atlas import Atlas, FloatRows, JoinedRows, Rows, SearchSpace
from feddle.core.blocks import Blocks, Coefficients, Segment, make_blocks
from feddle.core.errors import DivergedError, FeddleError
from feddle.core.layout import Layout, Slot
from feddle.core.messages import Job
from feddle.core.packed import Int8Rows
from feddle.data.examples import FromDataset
from feddle.methods.convex import ConvexMerging, ConvexOptions
from feddle.methods.fedbuff import FedBuff, FedBuffOptions
from feddle.methods.feddle.fallback import FedBuffFallback
from feddle.methods.feddle.head_anchor import HeadAnchor, HeadAnchorOptions
from feddle.methods.feddle.method import Feddle, FeddlePlusOptions
from feddle.methods.feddle.server_anchor import ServerAnchor, ServerAnchorOptions
from feddle.methods.fedft import FedFT
from feddle.training.parts import Parts
from feddle.training.search import AnnealedSearch, LbfgsSearch, PaperSearch, SearchTask, SgdSearch
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench
from three_numbers import Played, Quadratic, arrival, bench, close, numbers, weights

MODEL = weights(1.0, 2.0, 3.0)
TWO = Blocks(("first", "rest"), (Segment(0, 1, 1, 0), Segment(1, 1, 2, 1)))  # the first number, and the other two


# --- coordinates of each block


def blocks_of(coefficients: Coefficients, layout: Layout) -> Blocks:
    blocks = make_blocks(coefficients, layout)
    assert blocks is not None
    return blocks


def test_blocks_per_layer_and_per_class_include_the_biases() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2), nn.Linear(2, 3)))
    layers = blocks_of("layer", layout)
    assert layers.names == ("0", "2", "3")
    # weight (2, 2) and bias (2) of the first layer, scale and shift of BatchNorm, weight (3, 2) and bias of the head
    first = [Segment(0, 1, 4, 0), Segment(4, 1, 2, 0), Segment(6, 1, 2, 1), Segment(8, 1, 2, 1)]
    assert list(layers.segments) == [*first, Segment(10, 1, 6, 2), Segment(16, 1, 3, 2)]
    classes = blocks_of("class", layout)
    assert classes.names == ("0", "2", "3 0", "3 1", "3 2")
    assert list(classes.segments) == [*first, Segment(10, 3, 2, 2), Segment(16, 3, 1, 2)]


def test_the_factors_of_an_adapter_are_one_block() -> None:
    names = ["query.lora_A.default.weight", "query.lora_B.default.weight", "head.weight", "head.bias"]
    shapes: list[tuple[int, ...]] = [(2, 4), (4, 2), (3, 4), (3,)]
    starts = [0, 8, 16, 28]
    layout = Layout(tuple(map(Slot, names, shapes, starts)), (), 16, "digest", "head")
    assert blocks_of("layer", layout).names == ("query", "head")
    assert blocks_of("class", layout).names == ("query", "head 0", "head 1", "head 2")


def test_a_layer_with_a_parametrised_weight_is_one_block() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert blocks_of("layer", Layout.of(nn.Sequential(layer, nn.Linear(2, 3)))).names == ("0", "1")


def test_a_head_without_a_row_for_each_class_is_one_block() -> None:
    names = ["0.weight", "head.lora_A.default.weight", "head.lora_B.default.weight"]
    layout = Layout(tuple(map(Slot, names, [(2,), (3, 4), (3, 3)], [0, 2, 14])), (), 2, "digest", "head")
    assert blocks_of("class", layout).names == ("0", "head")
    headless = Layout.of(nn.Sequential(nn.Conv2d(1, 2, 3)))
    assert blocks_of("class", headless) == blocks_of("layer", headless)


# --- points and slopes


def test_a_point_and_its_slopes_worked_out() -> None:
    # anchors (1, 2, 3) and (4, 5, 6), scales 1 and ½. With c = ((1, 10), (2, 20)) the first number is
    # 1 + 1·1 + 2·½·4 = 6, the others 2 + 10·2 + 20·½·5 = 72 and 3 + 10·3 + 20·½·6 = 93
    rows = FloatRows(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    space = SearchSpace(MODEL, rows, torch.tensor([1.0, 0.5]), TWO)
    assert close(space.point(torch.tensor([1.0, 10.0, 2.0, 20.0])).vector, 6.0, 72.0, 93.0)
    # the slopes at g = (1, 1, 2): 1·1; 2·1 + 3·2 = 8; ½·4 = 2; ½·(5 + 6·2) = 8.5
    assert close(space.project(torch.tensor([1.0, 1.0, 2.0])), 1.0, 8.0, 2.0, 8.5)
    assert space.in_every_block(torch.tensor([3.0, 4.0])).tolist() == [3.0, 3.0, 4.0, 4.0]
    assert space.table(torch.arange(4.0)).tolist() == [[0.0, 1.0], [2.0, 3.0]]


MAKERS: dict[str, Callable[[int, int], Rows]] = {"float32": FloatRows.empty, "int8": Int8Rows.empty}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("joined", [False, True])
@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 6), layers=st.lists(st.integers(1, 300), max_size=4), rows=st.integers(2, 5), seed=...)
def test_blocks_equal_a_coefficient_for_each_coordinate(
    kind: str, joined: bool, count: int, layers: list[int], rows: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed % 2**32)
    segments, start = [], 0
    for block, width in enumerate(layers):
        segments.append(Segment(start, 1, width, block))
        start += width
    segments += [Segment(start, rows, 7, len(layers)), Segment(start + 7 * rows, rows, 1, len(layers))]
    dimension, total = start + 8 * rows, len(layers) + rows
    blocks = Blocks(tuple(map(str, range(total))), tuple(segments))
    owner = torch.cat([torch.arange(p.block, p.block + p.rows).repeat_interleave(p.width) for p in segments])
    matrix = torch.rand(count, dimension, generator=generator) * 2 - 1
    stored = MAKERS[kind](count, dimension)
    for row, anchor in enumerate(matrix):
        stored.put(row, anchor)
    anchors: Any = stored
    if joined:
        matrix = torch.cat([matrix, torch.ones(1, dimension)])
        anchors = JoinedRows(stored, FloatRows(torch.ones(1, dimension)))
    origin, vector = (torch.randn(dimension, generator=generator) for _ in range(2))
    coefficients = torch.randn(len(matrix), total, generator=generator)
    error = 0.5 / 127 if kind == "int8" else 1e-6
    expected = origin + (coefficients[:, owner] * matrix).sum(0)
    assert torch.allclose(anchors.combine(origin, coefficients, blocks), expected, atol=error * 20 + 1e-4)
    slopes = torch.zeros(len(matrix), total).index_add(1, owner, matrix * vector)
    bound = error * float(vector.abs().sum()) + 1e-3
    assert torch.allclose(anchors.project(vector, blocks), slopes, atol=bound)
    one = Blocks(("all",), (Segment(0, 1, dimension, 0),))
    single = coefficients[:, :1].contiguous()  # with strides, BLAS may sum in another order
    same = anchors.combine(origin, single, one)
    assert torch.equal(same, anchors.combine(origin, single[:, 0]))


def test_the_score_of_an_anchor_is_the_mean_over_its_blocks() -> None:
    atlas = Atlas(2, 1)
    for client in range(2):
        atlas.insert(Job(client, 0, 0), torch.ones(1))
    atlas.score(torch.tensor([[0.1, -0.5], [-0.2, 0.2]]))  # 0.3 and 0.2
    assert atlas.insert(Job(2, 0, 0), torch.ones(1)) == 1


@pytest.mark.parametrize(
    ("search", "tolerance"),
    [
        (PaperSearch(lr=0.02, epochs=300, batch_size=4), 1e-2),
        (AnnealedSearch(lr=0.05, epochs=300, batch_size=4), 1e-2),
        (LbfgsSearch(iterations=20), 1e-3),
        (SgdSearch(step="lemma-1", epochs=300, batch_size=4), 1e-2),
    ],
)
def test_every_search_uses_the_directions_of_the_blocks(search: Any, tolerance: float) -> None:
    # one anchor (1, 1, 1): with one coefficient the best point on the line is (1, 1, 1)·4/3 for the target (2, 1, 1),
    # with two blocks the target itself is reached
    rows = FloatRows(torch.ones(1, 3))
    for blocks, expected in ((None, (4 / 3, 4 / 3, 4 / 3)), (TWO, (2.0, 1.0, 1.0))):
        space = SearchSpace(weights(0.0, 0.0, 0.0), rows, torch.ones(1), blocks)
        found = search(SearchTask(space, Quadratic(2.0, 1.0, 1.0), space.in_every_block(torch.zeros(1))))
        assert torch.allclose(space.point(found.coefficients).vector, torch.tensor(expected), atol=tolerance)


# --- Feddle with blocks


def with_blocks(blocks: Blocks | None, lr: float = 1e-9, **more: Any) -> Played:
    search = PaperSearch(lr=lr, epochs=1, batch_size=4)
    return Played(Feddle(Quadratic(0.0, 0.0, 0.0), Atlas(4, 3), search, FedBuffFallback(), blocks=blocks, **more))


def test_the_search_starts_at_the_fallbacks_step_for_any_blocks() -> None:
    arrivals = [arrival(3.0, 0.5, 0.0), arrival(-1.0, 1.0, 2.0, staleness=3), arrival(0.0, 1.0, 1.0, staleness=8)]
    fedbuff = Played(FedBuff(FedBuffOptions(buffer_size=3))).merge(MODEL, arrivals)
    assert torch.allclose(with_blocks(TWO).merge(MODEL, arrivals).vector, fedbuff.vector, atol=1e-6)


def test_feddle_with_blocks_worked_out() -> None:
    # the anchors (4,0,0) and (0,2,0) of test_feddle_worked_out: c′ = (⅔, ⅓) in both blocks. The slopes are (9, 0) and
    # (0, 9): Adam moves only the coefficients of the block where the anchor is not zero, so the model is the same
    strategy = with_blocks(TWO, lr=0.1)
    merged = strategy.merge(MODEL, [arrival(4.0, 0.0, 0.0), arrival(0.0, 2.0, 0.0)])
    assert close(merged.vector, 2.7, 2.7, 3.0)
    [first, second] = strategy.notes["block_coefficients"]
    assert first == pytest.approx([0.566667, 0.666667], abs=1e-5)
    assert second == pytest.approx([0.333333, 0.233333], abs=1e-5)
    assert strategy.notes["blocks"] == ["first", "rest"]
    assert strategy.notes["coefficients"] == pytest.approx([(0.566667 + 0.666667) / 2, 0.283333], abs=1e-5)


def test_convex_merging_stays_in_the_hull_of_each_block() -> None:
    strategy = Played(ConvexMerging(ConvexOptions(lr=0.5, epochs=50, batch_size=4), Quadratic(9.0, -9.0, -9.0), 0, TWO))
    start = weights(0.0, 0.0, 0.0)
    merged = strategy.merge(start, [arrival(1.0, 1.0, 1.0), arrival(-1.0, -1.0, -1.0)])
    assert close(merged.vector, 1.0, -1.0, -1.0)  # the first model in one block, the second in the other


# --- the server anchor


def test_with_a_server_anchor_the_search_starts_at_the_model_of_fed_ft() -> None:
    recipe = Recipe(lr=0.01, epochs=2, batch_size=2)
    rounds = [[arrival(3.0, 0.5, 0.0), arrival(-1.0, 1.0, 2.0, staleness=3)], [], [arrival(0.0, 1.0, 1.0)] * 2]
    for blocks in (None, TWO):
        anchor = ServerAnchor(ServerAnchorOptions(holdout=0), bench(), numbers(), recipe, seed=5)
        ours = with_blocks(blocks, server_anchor=anchor)
        theirs = Played(FedFT(FedBuff(FedBuffOptions(buffer_size=2)), bench(), numbers(), recipe, seed=5))
        model = MODEL
        for arrivals in rounds:
            expected = theirs.merge(model, arrivals)
            merged = ours.merge(model, arrivals)
            assert not torch.allclose(expected.vector, model.vector)
            assert torch.allclose(merged.vector, expected.vector, atol=1e-6)
            model = merged


@pytest.mark.parametrize("storage", ["float32", "int8"])
@pytest.mark.parametrize("coefficients", ["shared", "class"])
@pytest.mark.parametrize("search", ["paper", "sgd", "lbfgs"])
def test_rounds_before_the_first_arrival(storage: str, coefficients: str, search: str) -> None:
    method = {"server_anchor": {}, "storage": storage, "coefficients": coefficients, "search": search}
    run = simulate(method, delays={"sigma": 50.0})
    assert run.history[0]["arrivals"] == 0
    assert run.history[0]["coefficients"] == []


def test_a_search_without_directions_keeps_the_model() -> None:
    anchor = ServerAnchor(ServerAnchorOptions(holdout=0), bench(), numbers(), Recipe(lr=1e-30))
    search = SgdSearch(epochs=1, batch_size=4)
    strategy = Played(Feddle(Quadratic(0.0, 0.0, 0.0), Atlas(4, 3), search, FedBuffFallback(), server_anchor=anchor))
    assert torch.equal(strategy.merge(MODEL, []).vector, MODEL.vector)


def test_the_server_anchor_is_not_in_the_atlas() -> None:
    anchor = ServerAnchor(ServerAnchorOptions(holdout=0), bench(), numbers(), Recipe(lr=0.01))
    strategy = with_blocks(None, server_anchor=anchor)
    strategy.merge(MODEL, [])
    assert len(strategy.atlas) == 0
    assert strategy.notes["coefficients"] == []
    assert strategy.notes["server_coefficient"] == pytest.approx(1.0)
    strategy.merge(MODEL, [arrival(1.0, 0.0, 0.0, client=3)])
    assert strategy.notes["anchor_clients"] == [3]


def test_the_server_trains_on_at_least_one_example() -> None:
    one = FromDataset(TensorDataset(torch.zeros(1, 1), torch.zeros(1, 3)))
    kept, held = ServerAnchor(ServerAnchorOptions(holdout=0.9), bench(), one, Recipe()).split(1)
    assert kept.tolist() == held.tolist() == [0]


@given(share=st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]), round=st.integers(1, 500), rotate=st.booleans())
def test_the_server_does_not_train_on_held_out_examples(share: float, round: int, rotate: bool) -> None:
    count = 20
    examples = FromDataset(TensorDataset(torch.zeros(count, 1), torch.zeros(count, 3)))
    anchor = ServerAnchor(ServerAnchorOptions(holdout=share, rotate=rotate), bench(), examples, Recipe())
    kept, held = (set(part.tolist()) for part in anchor.split(round))
    assert kept | held == set(range(count))
    if share:
        assert not kept & held
        assert len(held) == int(share * count + 0.5)
        assert (held == set(anchor.split(round + 1)[1].tolist())) is not rotate


def simulate(method: dict[str, Any], **more: Any) -> feddle.Run[Any]:
    torch.manual_seed(0)
    points = torch.randn(120, 2)
    data = TensorDataset(points, (points.prod(1) > 0).long())
    clients = [torch.utils.data.Subset(data, range(i, i + 10)) for i in range(0, 80, 10)]
    server, test = torch.utils.data.Subset(data, range(80, 100)), torch.utils.data.Subset(data, range(100, 120))
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    plan: dict[str, Any] = {"rounds": 4, "per_round": 3, "delays": {"sigma": 1.0}, "workers": 0, **more}
    return feddle.simulate(model, clients, server=server, test=test, method={"name": "feddle"} | method, **plan)


@pytest.mark.parametrize("coefficients", ["shared", "layer", "class"])
@pytest.mark.parametrize("storage", ["float32", "int8"])
@pytest.mark.parametrize("search", ["paper", "annealed", "lbfgs", "sgd"])
def test_every_combination_runs(coefficients: str, storage: str, search: str) -> None:
    method = {
        "coefficients": coefficients,
        "storage": storage,
        "search": search,
        "server_anchor": {},
        "head_anchor": {},
    }
    run = simulate(method)
    counts = {"shared": 1, "layer": 2, "class": 3}  # the body, and the head or its two rows
    rows = run.history[-1].get("block_coefficients", [[0.0]])
    assert all(len(row) == counts[coefficients] for row in rows)


def test_the_server_anchor_needs_the_clients_labels() -> None:
    with pytest.raises(FeddleError, match=r"method\.server_anchor needs server data of the clients' own task"):
        simulate({"server_anchor": {}}, server_classes=5)


# --- the head anchor


class Headed(nn.Module):
    """x ↦ a·w·x + b: the body is w, the head (a, b)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.body(x))
        return outputs


def head_anchor(points: list[float], values: list[float], penalty: float, **more: Any) -> HeadAnchor:
    model = Headed()
    data = FromDataset(TensorDataset(torch.tensor(points)[:, None], torch.tensor(values)[:, None]))
    options = HeadAnchorOptions(penalty=penalty, steps=100)
    return HeadAnchor(options, Workbench(model, Layout.of(model), nn.functional.mse_loss), data, **more)


def test_the_head_anchor_worked_out() -> None:
    # w = 1, x = 1, y = 3: (a + b − 3)² + penalty/2·(a² + b²) is smallest at a = b = 12/(8 + 2·penalty), so 1 for 2
    start = weights(1.0, 0.0, 0.0)
    assert close(head_anchor([1.0], [3.0], 2.0).train(start, 1).vector, 1.0, 1.0, 1.0)
    # w = 2, a = 1: the penalty is on the distance to a = 1. (2a + b − 5)² + (a − 1)² + b² is smallest at a = 2, b = ½
    assert close(head_anchor([1.0], [5.0], 2.0).train(weights(2.0, 1.0, 0.0), 1).vector, 2.0, 2.0, 0.5)


def test_the_search_starts_with_the_fitted_head() -> None:
    for blocks in (None, TWO):
        strategy = with_blocks(blocks, head_anchor=head_anchor([1.0], [3.0], 2.0))
        merged = strategy.merge(weights(0.0, 0.0, 0.0), [arrival(1.0, 0.0, 0.0)])  # the fallback's step gives w = 1
        assert close(merged.vector, 1.0, 1.0, 1.0)
    assert strategy.notes["server_rows"] == ["head"]
    assert strategy.notes["block_coefficients"][1] == pytest.approx([1.0, 1.0])


def test_the_head_is_fitted_without_arrivals_and_is_not_in_the_atlas() -> None:
    strategy = with_blocks(None, head_anchor=head_anchor([1.0], [3.0], 2.0))
    assert close(strategy.merge(weights(1.0, 0.0, 0.0), []).vector, 1.0, 1.0, 1.0)
    assert strategy.notes["head_coefficient"] == pytest.approx(1.0)
    assert len(strategy.atlas) == 0


def test_the_head_is_fitted_after_the_servers_update_on_the_same_examples() -> None:
    points, values = [float(x) for x in range(20)], [float(x) for x in range(100, 120)]
    head = head_anchor(points, values, 2.0)
    server = ServerAnchor(ServerAnchorOptions(holdout=0.25), head.bench, head.examples, Recipe(lr=0.1, epochs=1))
    head = replace(head, server_anchor=server)
    seen = head._drawn(3), replace(head, samples_per_round=4)._drawn(3)
    every, some = (set(part.take(torch.arange(len(part)))[0].flatten().long().tolist()) for part in seen)
    assert every == set(server.split(3)[0].tolist())
    assert len(some) == 4
    assert some < every
    merged = with_blocks(None, server_anchor=server, head_anchor=head).merge(MODEL, [])
    trained = server.train(MODEL, 1)
    assert torch.equal(merged.vector[:1], trained.vector[:1]), "the body comes from the server's update"
    assert torch.equal(merged.vector, head.train(trained, 1).vector)


def test_requirements_of_a_head_anchor() -> None:
    with pytest.raises(FeddleError, match=r"method\.head_anchor needs server data of the clients' own task"):
        simulate({"head_anchor": {}}, server_classes=5)
    parts = Parts("feddle", bench(), Recipe(), 0, 1, 1, 1, server=numbers())
    with pytest.raises(FeddleError, match=r"method\.head_anchor needs a model whose last module is a trainable linear"):
        HeadAnchorOptions().build(parts, None)
    model = nn.Sequential(nn.Linear(1, 1), nn.Softmax(1))  # the head's outputs differ from the model's
    scaled = replace(parts, bench=Workbench(model, Layout.of(model)))
    with pytest.raises(FeddleError, match="whose last module is a trainable linear layer"):
        HeadAnchorOptions().build(scaled, None)
    plus = FeddlePlusOptions(head_anchor=HeadAnchorOptions(), coefficients="shared")
    assert plus.build(scaled).head_anchor is None, "feddle+ omits the head anchor"


class Squeezed(Headed):
    """Outputs (n,) instead of (n, 1)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).squeeze(-1)


class Bounded(Headed):
    """Outputs that are bounded at 100, which no example reaches at first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(-100, 100)


class Tied(Headed):
    """The head's weights are also used before the head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.head.bias)


class Uncalled(Headed):
    """The head's weights are used, but the head is not called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.body(x), self.head.weight, self.head.bias)


class Wider(nn.Module):
    """The last linear layer in the order of registration is not the last one of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(3, 1), nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(self.first(x))
        return outputs


class Named(Headed):
    """The head is called with a keyword, which is supported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(input=self.body(x))
        return outputs


@pytest.mark.parametrize("kind", [Headed, Named, Squeezed, Bounded, Tied, Uncalled, Wider])
def test_a_model_whose_head_cannot_be_fitted_alone_is_refused(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.5)
    before = Layout.of(model).read(model).vector
    points = torch.linspace(-20, 20, 40)[:, None]
    data = FromDataset(TensorDataset(points, points))
    parts = Parts("feddle", Workbench(model, Layout.of(model)), Recipe(), 0, 1, 1, 1, server=data)
    fits = kind in (Headed, Named)
    plus = FeddlePlusOptions(head_anchor=HeadAnchorOptions(), coefficients="shared")
    assert (plus.build(parts).head_anchor is not None) == fits, "feddle+ omits the head anchor"
    with nullcontext() if fits else pytest.raises(FeddleError, match="that is used nowhere else"):
        HeadAnchorOptions().build(parts, None)
    assert torch.equal(Layout.of(model).read(model).vector, before), "the test leaves the model as it was"


def test_a_fit_of_the_head_that_diverges_names_its_options() -> None:
    with pytest.raises(
        DivergedError, match=r"the fit of method.head_anchor diverged; lower its penalty \(now 1e\+30\)"
    ):
        head_anchor([1e20], [1e30], 1e30).train(weights(1e20, 1.0, 1e20), 1)


def test_feddle_plus_has_no_head_anchor_with_data_of_another_task() -> None:
    strategy = simulate({"name": "feddle+", "head_anchor": {}}, server_classes=2).server.strategy
    assert isinstance(strategy, Feddle)
    assert strategy.head_anchor is None


# --- feddle+


def test_feddle_plus_adds_blocks_and_a_server_anchor() -> None:
    run = simulate({"name": "feddle+"})
    strategy = run.server.strategy
    assert isinstance(strategy, Feddle)
    assert strategy.blocks is not None
    assert strategy.server_anchor is not None
    assert strategy.server_anchor.options == ServerAnchorOptions()
    assert strategy.server_anchor.recipe.epochs == 50  # 1000 / 20 server images
    assert isinstance(strategy.fallback, FedBuffFallback)
    assert (strategy.fallback.buffer_size, strategy.fallback.staleness) == (3, "constant")  # 3 clients per round


@pytest.mark.parametrize(("images", "epochs"), [(1, 1000), (30, 34), (100, 10), (999, 2), (1000, 1), (5000, 1)])
def test_the_server_sees_a_thousand_examples_per_round(images: int, epochs: int) -> None:
    workbench = bench()
    examples = FromDataset(TensorDataset(torch.zeros(images, 1), torch.zeros(images, 3)))
    parts = Parts("feddle+", workbench, Recipe(), 0, 1, 1, 1, server=examples)
    assert ServerAnchorOptions().build(parts).recipe.epochs == epochs
    assert ServerAnchorOptions(epochs=7).build(parts).recipe.epochs == 7


def test_feddle_plus_has_no_server_anchor_with_data_of_another_task() -> None:
    strategy = simulate({"name": "feddle+"}, server_classes=2).server.strategy
    assert isinstance(strategy, Feddle)
    assert strategy.blocks is None, "the surrogate has no gradient at the clients' head"
    assert strategy.server_anchor is None


def test_the_error_for_a_misplaced_option_names_its_method() -> None:
    with pytest.raises(FeddleError, match=r"'buffer_size' is an option of .*fedbuff.*, not of feddle\+"):
        simulate({"name": "feddle+", "buffer_siz": 3})
