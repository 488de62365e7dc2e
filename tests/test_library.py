"""Mistakes in calls of `simulate` and `by_dirichlet` are reported in one line."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import feddle
from feddle.core.errors import FeddleError
from test_experiment import Net, cloud


def refused(model: Any = None, clients: Any = None, **more: Any) -> str:
    """The error of a short simulation, in one line."""
    clients = clients or [cloud(10, seed) for seed in range(4)]
    settings = {"server": cloud(20, 9), "per_round": 4, "rounds": 2, "workers": 0, "delays": {"sigma": 0}, **more}
    with pytest.raises(FeddleError) as caught:
        feddle.simulate(model, clients, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


MODELS: dict[str, tuple[Any, str]] = {
    "none": (lambda: None, "expected a model (torch.nn.Module), got NoneType"),
    "a class": (lambda: Net, "got the class Net; create one: Net()"),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)),
        "has lazy layers or is on the meta device, so it has no weights; run it once",
    ),
    "on the meta device": (
        lambda: nn.Linear(2, 2, device="meta"),
        "is on the meta device, so it has no weights; run it once on an input, or load its weights",
    ),
    "frozen": (lambda: Net().requires_grad_(False), "every parameter is frozen; set requires_grad"),
    "without parameters": (nn.Flatten, "expected trainable parameters, but the model has none"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_cannot_be_trained_is_reported(kind: str) -> None:
    make, expected = MODELS[kind]
    assert expected in refused(make())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_reported() -> None:
    assert "compiled by torch.jit" in refused(torch.jit.script(Net()))


@pytest.mark.parametrize("count", [1, 0, -3, 2.5, "3", True])
def test_the_server_needs_two_classes_or_more(count: Any) -> None:
    assert f"server_classes must be a whole number from 2 up, got {count!r}" in refused(Net(), server_classes=count)


def test_missing_server_data_is_reported_with_the_argument() -> None:
    assert "pass server= to simulate" in refused(Net(), server=None)
    assert "(in Python: server_classes=)" in refused(Net(), server_classes=3, method="hfcl")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["cat", "dog"] * 5, "expected a number for each label, got 'cat'"),
        ([None] * 10, "expected a number for each label, got None"),
        ([[0, 1]] * 10, "expected a number for each label, got [0, 1]"),
    ],
)
def test_labels_that_are_not_numbers_are_reported(labels: Any, expected: str) -> None:
    with pytest.raises(FeddleError) as caught:
        feddle.by_dirichlet(cloud(10, 0), labels, 2)
    assert expected in str(caught.value)


def with_nan(count: int, seed: int) -> TensorDataset:
    points, labels = cloud(count, seed).tensors
    points[0, 0] = torch.nan
    return TensorDataset(points, labels)


@pytest.mark.parametrize("workers", [0, 1])
def test_inputs_that_are_not_finite_are_reported(workers: int) -> None:
    clients = [cloud(10, 0), with_nan(10, 1), cloud(10, 2), cloud(10, 3)]
    assert "the data of client 1 has values that are not finite" in refused(Net(), clients, workers=workers)
    assert "lower training.lr (now 1e+30)" in refused(Net(), training={"lr": 1e30}, workers=workers)


@pytest.mark.parametrize(("name", "expected"), [("server", "the server's data has"), ("test", "the test data has")])
def test_server_and_test_data_that_is_not_finite_is_reported(name: str, expected: str) -> None:
    assert f"{expected} values that are not finite" in refused(Net(), **{name: with_nan(20, 9)})


SHAPES: list[tuple[int, tuple[int, ...]]] = [(1, (10,)), (3, (10, 1))]


def numbers(*shape: int) -> list[TensorDataset]:
    """Four clients with two-dimensional inputs and floating-point targets."""
    return [TensorDataset(torch.randn(shape[0], 2), torch.rand(shape)) for _ in range(4)]


@pytest.mark.parametrize(
    ("outputs", "shape"), [(1, (10, 1)), (1, (10,)), (3, (10,))], ids=["a column", "a row", "of classes"]
)
def test_floating_point_targets_are_not_classes(outputs: int, shape: tuple[int, ...]) -> None:
    expected = "simulate: clients[0]: the targets are floating-point numbers; pass loss=F.mse_loss (or loss=F.binary_"
    assert refused(nn.Linear(2, outputs), numbers(*shape), server=None, method="fedbuff").startswith(expected)


@pytest.mark.parametrize(
    ("loss", "outputs", "shape"),
    [
        *((loss, *each) for each in SHAPES for loss in (F.mse_loss, nn.SmoothL1Loss(), lambda o, t: F.l1_loss(o, t))),
        (lambda o, t: (o - t).square().mean(), 1, (10,)),  # without torch's functions: torch does not warn
        (lambda o, t: (o - t).abs().sum(), 1, (10,)),
    ],
)
def test_a_loss_that_would_broadcast_is_refused(loss: Any, outputs: int, shape: tuple[int, ...]) -> None:
    message = refused(nn.Linear(2, outputs), numbers(*shape), server=None, method="fedbuff", loss=loss)
    assert message == (
        f"simulate: clients[0]: the loss needs equal shapes, but got targets {(2, *shape[1:])} and outputs "
        f"{(2, outputs)} of two examples; reshape the targets"
    )


@pytest.mark.parametrize(
    ("outputs", "shape", "loss"),
    [
        (3, (10, 3), F.cross_entropy),  # probabilities
        (1, (10, 1), F.mse_loss),
        (1, (10,), lambda o, t: F.mse_loss(o.squeeze(1), t)),
        (1, (10,), lambda o, t: (o.flatten() - t).square().sum()),
        (1, (10,), lambda o, t: (o[:, 0] - t).square().mean().sqrt()),  # not a mean over examples
        (2, (10,), lambda o, t: F.gaussian_nll_loss(o[:, 0], t, o[:, 1].exp())),
    ],
)
def test_floating_point_targets_that_fit_are_trained(outputs: int, shape: tuple[int, ...], loss: Any) -> None:
    clients = numbers(*shape)
    run = feddle.simulate(
        nn.Linear(2, outputs), clients, test=clients[0], loss=loss, method="fedbuff", rounds=1, per_round=4, workers=0
    )
    assert len(run.history) == 1


def test_classes_must_name_every_output() -> None:
    message = refused(Net(), classes=["cat", "dog", "cow", "hen", "owl"])
    assert "simulate: classes has 5 names, but the model has 2 outputs; name each" in message


class Yields(Dataset[Any]):
    """A data set that yields the same item for every index."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.row


@pytest.mark.parametrize("place", ["clients", "server", "test"])
@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"pixels": torch.zeros(2), "label": 1}, "dict"),
        ({"a": torch.zeros(2), "b": 1, "c": 2}, "dict"),
        (torch.zeros(2), "Tensor"),
        ((torch.zeros(2), 1, 2), "Tensor, int, int"),
        (({"x": "cat"}, 1), "dict, int"),
        ((("cat", torch.zeros(2)), 1), "tuple, int"),
        (((), 1), "tuple, int"),
        ((torch.zeros(2), "cat"), "Tensor, str"),
        (None, "NoneType"),
    ],
)
def test_data_without_pairs_is_reported(place: str, row: Any, found: str) -> None:
    data: Any = [Yields(row)] * 4 if place == "clients" else Yields(row)
    message = refused(Net(), **{place: data})
    assert f"expected (input, target) pairs of tensors or numbers, but the data set yields {found}; wrap it" in message
