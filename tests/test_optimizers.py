"""The optimisers: the same steps as torch's, without its compiler."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from command import PYTHON, run_process
from feddle.core.errors import FeddleError
from feddle.training.kernels.optimizers import SGD, Adam, Optimizer
from feddle.training.search import SmallAdam
from feddle.training.train import Recipe

PAIRS: dict[str, tuple[Any, Any]] = {"adam": (Adam, torch.optim.Adam), "sgd": (SGD, torch.optim.SGD)}


def test_adam_worked_out() -> None:
    # the first step is lr against the sign of the gradient; after the gradients 2 and 1, m = 0.28 and v = 0.004996
    at = torch.tensor([1.0])
    adam = SmallAdam(at)
    adam.step(at, torch.tensor([2.0]), 0.1)
    assert at.item() == pytest.approx(0.9)
    adam.step(at, torch.tensor([1.0]), 0.1)
    assert at.item() == pytest.approx(0.9 - 0.1 * (0.28 / 0.19) / (0.004996 / 0.001999) ** 0.5)


def test_small_adam_is_bit_identical_to_torch() -> None:
    ours = torch.linspace(-1, 1, 20)
    theirs = ours.clone().requires_grad_()
    adam, reference = SmallAdam(ours), torch.optim.Adam([theirs], lr=1e-3)
    for step in range(30):
        gradient = torch.sin(torch.arange(20.0) * (step + 1))
        theirs.grad = gradient.clone()
        reference.step()
        adam.step(ours, gradient, 1e-3)
    assert torch.equal(ours, theirs)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))


def differentiate(model: nn.Module, step: int) -> None:
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
    model.zero_grad(set_to_none=True)
    model(images).square().mean().backward()
    if step < 2:
        model[0].bias.grad = None  # type: ignore[index]  # a parameter without a gradient at first


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_bit_identical_to_torch(kind: str, weight_decay: float) -> None:
    ours, theirs = network(), network()
    make, reference = PAIRS[kind]
    optimizer = make(list(ours.parameters()), lr=1e-2, weight_decay=weight_decay)
    expected = reference(theirs.parameters(), lr=1e-2, weight_decay=weight_decay, fused=True)
    for step in range(5):
        differentiate(ours, step)
        differentiate(theirs, step)
        optimizer.step()
        expected.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("kind", PAIRS)
def test_it_continues_from_a_saved_state(kind: str) -> None:
    model = network()
    optimizer: Optimizer = PAIRS[kind][0](list(model.parameters()), lr=1e-2)
    for step in range(3):
        differentiate(model, step)
        optimizer.step()
    other = copy.deepcopy(model)
    restored: Optimizer = PAIRS[kind][0](list(other.parameters()), lr=1e-2)
    restored.load_state_dict(optimizer.state_dict())
    for step in range(3, 6):
        for trained, its_optimizer in ((model, optimizer), (other, restored)):
            differentiate(trained, step)
            its_optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_state_has_the_names_of_torch() -> None:
    # so that either optimiser can load a checkpoint of the other
    model = network()
    optimizer = Adam(list(model.parameters()), lr=1e-2)
    differentiate(model, 9)
    optimizer.step()
    reference = torch.optim.Adam(model.parameters(), fused=True)
    reference.step()
    names = {f"{i}.{name}" for i, kept in reference.state_dict()["state"].items() for name in kept}
    assert optimizer.state_dict().keys() == names


def test_a_loaded_state_has_the_parameters_memory_format() -> None:
    weights = nn.Parameter(torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    optimizer, saved = Adam([weights], lr=1.0), torch.arange(24.0).view(2, 3, 2, 2)
    optimizer.load_state_dict({"0.step": torch.tensor(1.0), "0.exp_avg": saved, "0.exp_avg_sq": saved})
    kept = optimizer.state_dict()["0.exp_avg"]
    assert torch.equal(kept, saved)
    assert optimizer._state[0][1].stride() == weights.stride()


def test_the_step_count_does_not_depend_on_the_default_type() -> None:
    weights = nn.Parameter(torch.zeros(1))
    weights.grad = torch.ones(1)
    torch.set_default_dtype(torch.bfloat16)  # counts to 256 and no further
    try:
        optimizer = Adam([weights], lr=1e-3)
        for _ in range(260):
            optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert optimizer.state_dict()["0.step"] == 260


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(FeddleError, match="expected dense gradients, but a parameter has a sparse one"):
        Adam(list(table.parameters()), lr=0.1).step()


def test_parameters_of_two_types() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [p.detach().clone() for p in model.parameters()]
    Recipe(lr=0.5).make_optimizer(model).step()
    for was, parameter in zip(before, model.parameters(), strict=True):
        assert torch.allclose(parameter, was - 0.5)


def test_training_does_not_import_the_compiler() -> None:
    # its import takes a second in every worker
    code = """if True:
        import sys, torch
        import feddle
        from torch.utils.data import TensorDataset
        data = TensorDataset(torch.eye(4), torch.tensor([0, 1, 0, 1]))
        model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        options = dict(server=data, test=data, per_round=2, rounds=2, workers=0, delays={"sigma": 0})
        feddle.simulate(model, [data, data], **options)
        raise SystemExit("torch._dynamo" in sys.modules)
    """
    assert run_process(*PYTHON, code).code == 0
