"""Layout, atlas, search, staleness and seeds, against numbers worked out by hand."""

import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import feddle
from command import PYTHON, run_process
from feddle.core.atlas import Atlas, Eviction, FloatRows, SearchSpace
from feddle.core.batches import mini_batches
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights, find_head
from feddle.core.messages import Job
from feddle.core.seeds import seed_for, torch_generator
from feddle.data.examples import Examples
from feddle.methods.strategy import polynomial, staleness_weight
from feddle.training.objectives import TaskObjective
from feddle.training.search import AnnealedSearch, LbfgsSearch, PaperSearch, SearchTask, full_pass
from three_numbers import Quadratic, close, weights


class HeadFirst(nn.Module):
    """A model whose classifier is declared before its body, with BatchNorm and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(2, 3)
        self.body = nn.Linear(4, 2, bias=False)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.frozen(self.norm(self.body(x))))
        return logits


def test_layout_puts_the_body_before_the_head() -> None:
    layout = Layout.of(HeadFirst(), head="classifier")
    assert [s.name for s in layout.parameters] == [
        "body.weight",
        "norm.weight",
        "norm.bias",
        "classifier.weight",
        "classifier.bias",
    ]
    # body 2·4 + norm 2 + 2 = 12, head 3·2 + 3 = 9; the statistics are 2 means and 2 variances, the counter is left out
    assert (layout.head_start, layout.size) == (12, 21)
    assert [s.name for s in layout.buffers] == ["norm.running_mean", "norm.running_var"]


def test_layout_finds_the_last_linear_layer_that_is_trained() -> None:
    assert find_head(HeadFirst()) == "body"
    assert find_head(nn.Linear(2, 2)) is None
    layout = Layout.of(nn.Linear(2, 2))
    assert layout.head_start == layout.size == 6


def test_layout_round_trip_in_any_memory_format() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    layout = Layout.of(model)
    before = layout.read(model)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert torch.equal(layout.read(model).vector, before.vector)
    new = Weights(torch.randn(layout.size), torch.rand(8))
    layout.write(model, new)
    after = layout.read(model)
    assert torch.equal(after.vector, new.vector)
    assert torch.equal(after.buffers, new.buffers)
    assert torch.equal(model.get_parameter("0.weight").flatten(), new.vector[: 4 * 3 * 9])


def test_layout_reads_gradients_in_order_with_zeros_for_unused_parameters() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1, bias=False), "idle": nn.Linear(1, 1, bias=False)})
    layout = Layout.of(model)
    model["used"](torch.tensor([3.0, 5.0])).sum().backward()
    assert layout.read_grad(model).tolist() == [3.0, 5.0, 0.0]


def test_digest_distinguishes_models() -> None:
    torch.manual_seed(0)
    model = HeadFirst()
    digest = Layout.of(model, head="classifier").digest
    with torch.no_grad():
        model.body.weight.add_(1)
    assert Layout.of(model, head="classifier").digest == digest, "trained weights are not part of the digest"
    with torch.no_grad():
        model.frozen.weight.add_(1)
    assert Layout.of(model, head="classifier").digest != digest, "frozen weights are part of the digest"
    assert Layout.of(nn.Linear(2, 3)).digest != Layout.of(nn.Linear(3, 2)).digest


def test_layout_refuses_frozen_models_and_unknown_heads() -> None:
    with pytest.raises(FeddleError, match="every parameter is frozen"):
        Layout.of(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(FeddleError, match="no trainable module named 'nothing'"):
        Layout.of(HeadFirst(), head="nothing")


def test_seeds_differ_by_purpose_and_id_and_agree_between_processes() -> None:
    seeds = {
        seed_for(0, "train", 1, 2),
        seed_for(0, "train", 12),
        seed_for(1, "train", 1, 2),
        seed_for(0, "delay", 1, 2),
    }
    assert len(seeds) == 4
    code = "from feddle.core.seeds import seed_for; print(seed_for(3, 'train', 7))"
    assert int(run_process(*PYTHON, code).out) == seed_for(3, "train", 7)


def test_staleness_weights() -> None:
    # 1/√(1+3) = 0.5; (1+3)^(−0.1) = 4^(−0.1) = 0.870551; the weight at τ = 0 is always 1
    assert staleness_weight("sqrt", 3) == 0.5
    assert staleness_weight("constant", 3) == 1.0
    assert polynomial(3, 0.1) == pytest.approx(0.870551, abs=1e-6)
    assert polynomial(0, 0.9) == 1.0


def insert(atlas: Atlas, *deltas: tuple[float, ...]) -> list[int]:
    return [atlas.insert(Job(10 + i, 0, i), torch.tensor(delta)) for i, delta in enumerate(deltas)]


@pytest.mark.parametrize(
    ("deltas", "scales"),
    [
        # norms 5, 1, 2: the median is 2, so r = 2/5, 2/1, 2/2
        ([(3.0, 4.0, 0.0), (0.0, 0.0, 1.0), (2.0, 0.0, 0.0)], [0.4, 2.0, 1.0]),
        # norms 5, 1: the mean of the two middle ones is 3, so r = 3/5, 3
        ([(3.0, 4.0, 0.0), (0.0, 0.0, 1.0)], [0.6, 3.0]),
        # norms 1, 2, 4, 8: (2 + 4)/2 = 3
        ([(1.0,), (2.0,), (4.0,), (8.0,)], [3.0, 1.5, 0.75, 0.375]),
    ],
)
def test_row_scales_bring_every_anchor_to_the_median_norm(deltas: list[tuple[float, ...]], scales: list[float]) -> None:
    atlas = Atlas(5, len(deltas[0]))
    insert(atlas, *deltas)
    assert close(atlas.row_scales(), *scales)


def test_a_full_atlas_evicts_the_least_important_anchor() -> None:
    atlas = Atlas(3, 1)
    assert insert(atlas, (1.0,), (2.0,), (3.0,)) == [0, 1, 2]
    atlas.score(torch.tensor([0.5, -0.1, 0.2])[:, None])  # |ĉ| = 0.5, 0.1, 0.2
    assert insert(atlas, (4.0,)) == [1]
    # the new anchor has no score yet and is protected: |0.2| is evicted next, then |0.5|
    assert insert(atlas, (5.0,), (6.0,)) == [2, 0]
    assert atlas.active().project(torch.ones(1)).tolist() == [6.0, 4.0, 5.0]
    # now all anchors are new: the oldest, row 1, is evicted
    assert insert(atlas, (7.0,)) == [1]


def test_fifo_ignores_importance() -> None:
    atlas = Atlas(2, 1, eviction="fifo")
    insert(atlas, (1.0,), (2.0,))
    atlas.score(torch.tensor([0.9, 0.0])[:, None])
    assert insert(atlas, (3.0,), (4.0,), (5.0,)) == [0, 1, 0]


def test_active_is_a_view_and_origins_name_the_jobs() -> None:
    atlas = Atlas(4, 2)
    insert(atlas, (1.0, 0.0), (0.0, 1.0))
    active = atlas.active()
    insert(atlas, (0.0, 5.0))
    assert len(active) == 2
    assert len(atlas.active()) == 3
    assert active.project(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert atlas.origins()[:2] == [Job(10, 0, 0), Job(11, 0, 1)]


@settings(deadline=None, max_examples=50)
@given(
    capacity=st.integers(1, 4),
    steps=st.lists(st.floats(0.1, 9.0) | st.lists(st.floats(-2, 2), min_size=4, max_size=4), max_size=12),
    eviction=st.sampled_from(["importance", "fifo"]),
)
def test_a_restored_atlas_continues(capacity: int, steps: list[float | list[float]], eviction: Eviction) -> None:
    def play(atlas: Atlas, part: list[float | list[float]]) -> list[int]:
        rows = []
        for step in part:
            if isinstance(step, list):
                atlas.score(torch.tensor(step[: len(atlas)])[:, None])
            else:
                rows.append(atlas.insert(Job(0, 0, 0), torch.tensor([step])))
        return rows

    whole, first, second = (Atlas(capacity, 1, eviction=eviction) for _ in range(3))
    half = len(steps) // 2
    rows = play(first, steps[:half])
    second.load_state_dict(first.state_dict())
    assert play(whole, steps) == rows + play(second, steps[half:])
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor.nan_to_num(-1), second.state_dict()[name].nan_to_num(-1))
    assert len(whole) <= capacity


def test_a_point_and_a_projection_worked_out() -> None:
    space = SearchSpace(
        weights(1.0, 1.0, 1.0), FloatRows(torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])), torch.tensor([2.0, 0.5])
    )
    # c∘r = (0.5·2, −1·0.5) = (1, −0.5): (1,1,1) + 1·(1,0,2) − 0.5·(0,3,0) = (2, −0.5, 3)
    assert space.point(torch.tensor([0.5, -1.0])).vector.tolist() == [2.0, -0.5, 3.0]
    # A·g = (1·1 + 2·3, 3·2) = (7, 6), times r: (14, 3)
    assert space.project(torch.tensor([1.0, 2.0, 3.0])).tolist() == [14.0, 3.0]


def test_one_step_of_the_paper_search() -> None:
    # ℓ = ½‖w − (1, −1, 0)‖² from w = 0 with anchors e₁, e₂: ∂ℓ/∂c = (−1, 1). Adam's first step is −lr·sign.
    space = SearchSpace(weights(0.0, 0.0, 0.0), FloatRows(torch.eye(3)[:2]), torch.ones(2))
    found = PaperSearch(lr=0.1, epochs=1, batch_size=4)(SearchTask(space, Quadratic(1.0, -1.0, 0.0), torch.zeros(2)))
    assert close(found.coefficients, 0.1, -0.1)
    assert found.loss == 1.0  # ½(1 + 1) at the start


def test_the_search_finds_negative_coefficients_and_regularisation_limits_them() -> None:
    space = SearchSpace(weights(0.0, 0.0, 0.0), FloatRows(torch.eye(3)[:2]), torch.ones(2))
    search = PaperSearch(lr=0.02, epochs=400, batch_size=2)
    free = search(SearchTask(space, Quadratic(1.0, -1.0, 0.0), torch.tensor([0.5, 0.5])))
    assert torch.allclose(free.coefficients, torch.tensor([1.0, -1.0]), atol=1e-3)
    # (c − 1) + λ(c − ½) = 0 with λ = 1: c₁ = ¾; (c + 1) + (c − ½) = 0: c₂ = −¼
    held = search(SearchTask(space, Quadratic(1.0, -1.0, 0.0), torch.tensor([0.5, 0.5]), regularisation=1.0))
    assert torch.allclose(held.coefficients, torch.tensor([0.75, -0.25]), atol=1e-3)


def test_annealing_reduces_the_learning_rate() -> None:
    # batches of 2 of 4 examples: two steps, with the full learning rate and half of it. The gradient of ½(w − 10)² is
    # −10 and then −9.9, so Adam's steps are nearly lr·sign: 0.1·1 + 0.1·½ = 0.15
    space = SearchSpace(weights(0.0), FloatRows(torch.ones(1, 1)), torch.ones(1))
    found = AnnealedSearch(lr=0.1, epochs=1, batch_size=2)(SearchTask(space, Quadratic(10.0), torch.zeros(1)))
    assert found.coefficients.item() == pytest.approx(0.15, abs=1e-3)
    assert found.loss == pytest.approx((50 + 9.9**2 / 2) / 2, rel=1e-4)


def test_lbfgs_finds_the_minimum_of_a_quadratic() -> None:
    # the same problem as above: c = (1, −1) without λ, (¾, −¼) with λ = 1 around (½, ½)
    space = SearchSpace(weights(0.0, 0.0, 0.0), FloatRows(torch.eye(3)[:2]), torch.ones(2))
    for regularisation, expected in ((0.0, (1.0, -1.0)), (1.0, (0.75, -0.25))):
        found = LbfgsSearch(iterations=8)(
            SearchTask(space, Quadratic(1.0, -1.0, 0.0), torch.tensor([0.5, 0.5]), regularisation=regularisation)
        )
        assert torch.allclose(found.coefficients, torch.tensor(expected), atol=1e-4)


def test_a_full_pass_weighs_every_example_equally() -> None:
    class Numbered(Quadratic):
        """Example i has loss i·w."""

        def loss_and_gradient(self, point: Weights, examples: Tensor) -> tuple[float, Tensor]:
            mean = examples.float().mean()
            return float(mean * point.vector), mean.view(1)

    # (0 + 1 + 2 + 3 + 4)/5 = 2, though the batches of 2, 2 and 1 have means ½, 2½ and 4
    loss, gradient = full_pass(Numbered(0.0, examples=5), weights(3.0), batch_size=2)
    assert loss == pytest.approx(6.0)
    assert gradient.item() == pytest.approx(2.0)


def test_a_diverging_search_suggests_a_lower_learning_rate() -> None:
    space = SearchSpace(weights(0.0), FloatRows(torch.ones(1, 1)), torch.ones(1))
    with pytest.raises(FeddleError, match=r"lower method\.search\.lr \(now 1e\+30"):
        PaperSearch(lr=1e30, epochs=2, batch_size=1)(SearchTask(space, Quadratic(1.0), torch.zeros(1)))


@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 2**40))
def test_mini_batches_cover_every_example_once(count: int, batch_size: int, seed: int) -> None:
    batches = list(mini_batches(count, batch_size, torch_generator(seed)))
    assert torch.cat(batches).sort().values.tolist() == list(range(count))
    assert all(len(b) == batch_size for b in batches[:-1])


class RandomExamples:
    """Inputs (n, 3, 8, 8) and labels of 4 classes."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch_generator(seed)
        self.inputs = torch.randn(count, 3, 8, 8, generator=generator)
        self.labels = torch.randint(4, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), anchors=st.integers(1, 5), batch=st.integers(1, 6))
def test_the_projected_gradient_equals_autograd_through_the_anchors(seed: int, anchors: int, batch: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 4))
    layout = Layout.of(model)
    origin = layout.read(model)
    matrix, scales = torch.randn(anchors, layout.size) * 0.1, torch.rand(anchors) + 0.5
    examples: Examples = RandomExamples(batch, seed)
    space = SearchSpace(origin, FloatRows(matrix), scales)
    coefficients = torch.randn(anchors)
    loss, gradient = TaskObjective(model, layout, examples).loss_and_gradient(
        space.point(coefficients), torch.arange(batch)
    )

    leaf = coefficients.clone().requires_grad_()
    vector = origin.vector + (leaf * scales) @ matrix
    state = {s.name: vector[s.place].view(s.shape) for s in layout.parameters}
    inputs, labels = examples.take(torch.arange(batch))
    direct = nn.functional.cross_entropy(torch.func.functional_call(model.eval(), state, (inputs,)), labels)
    direct.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert loss == pytest.approx(direct.item(), rel=1e-4, abs=1e-5)
    assert torch.allclose(space.project(gradient), leaf.grad, rtol=1e-3, atol=1e-4 * float(leaf.grad.abs().max() + 1))


def test_type_checkers_see_the_public_names() -> None:
    stub = ast.parse(Path(feddle.__file__).with_suffix(".pyi").read_text())
    declared = {alias.name for part in stub.body if isinstance(part, ast.ImportFrom) for alias in part.names}
    assert declared == set(feddle.__all__) == set(dir(feddle))
    assert all(hasattr(feddle, name) for name in declared)
