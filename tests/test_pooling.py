"""Pooling with a ReLU in one pass."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from feddle.core.compiled import compiled
from feddle.models.cnn import CNN, CnnOptions
from feddle.training.kernels.pooling import PooledReLU
from feddle.training.kernels.winograd import WinogradConv2d
from feddle.training.machine import one_thread


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)  # distinguishes zeros by their sign


def plain(images: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(images, 2))


def channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def test_worked_out() -> None:
    # two squares side by side: the first has its maximum, 3, twice and the first of them counts; −1 becomes 0
    images = channels_last(torch.tensor([[[[1.0, 3.0, -2.0, -4.0], [3.0, 0.0, -1.0, -3.0]]]])).requires_grad_()
    pooled = PooledReLU()(images)
    assert pooled.tolist() == [[[[3.0, 0.0]]]]
    pooled.backward(torch.tensor([[[[10.0, 20.0]]]]))
    assert images.grad is not None
    assert images.grad.tolist() == [[[[0.0, 10.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]]


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(0, 3), st.sampled_from([1, 3, 8, 33]), st.integers(2, 9), st.integers(2, 9)),
    scale=st.sampled_from([1.0, 1e-38]),
    coarse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_bit_identical_to_torch_forwards_and_backwards(
    shape: tuple[int, int, int, int], scale: float, coarse: bool, seed: int
) -> None:
    numbers = torch.Generator().manual_seed(seed)
    images = torch.randn(shape, generator=numbers)
    images = channels_last(images.round() if coarse else images)  # round: equal numbers, and zeros of both signs
    ours, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
    pooled, expected = PooledReLU()(ours), plain(theirs)
    assert torch.equal(bits(pooled), bits(expected))
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    upstream = torch.randn(expected.shape, generator=numbers) * scale
    upstream = upstream.round() if coarse else upstream
    with one_thread():  # where numbers below about 1e-38 are flushed to zero
        gradients = [torch.autograd.grad(y, x, upstream)[0] for y, x in ((pooled, ours), (expected, theirs))]
    assert torch.equal(bits(gradients[0]), bits(gradients[1]))


@pytest.mark.parametrize("size", [4, 5])
def test_the_gradient_of_a_gradient(size: int) -> None:
    images = channels_last(torch.randn(2, 3, size, size))
    found = []
    for pool in (PooledReLU(), plain):
        x = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((pool(x) ** 3).sum(), x, create_graph=True)
        gradient.square().sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        found.append(x.grad)
    assert found[0].any()
    assert torch.equal(*found)


def test_gradients_of_single_images() -> None:
    model = CNN(3, CnnOptions(channels=(4, 4), hidden=8, pools=2), image_size=28)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], image: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, weights, (image[None],))
        return logits.square().sum()

    images = torch.randn(2, 3, 28, 28)
    found = vmap(grad(loss), (None, 0))(weights, images)["features.0.weight"]
    expected = [grad(loss)(weights, image)["features.0.weight"] for image in images]
    assert torch.allclose(found, torch.stack(expected), atol=1e-5)


def test_a_model_is_copied_and_pickled() -> None:
    model, images = CNN(3).eval(), channels_last(torch.randn(2, 3, 32, 32))
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))  # noqa: S301
    assert all(torch.equal(other(images), model(images)) for other in copies)


@pytest.mark.parametrize("cause", [RuntimeError, OSError, pickle.UnpicklingError])
def test_kernels_without_a_cache(monkeypatch: pytest.MonkeyPatch, cause: type[Exception]) -> None:
    jit: Callable[..., Any] = numba.jit

    def uncached(*signature: str, cache: bool = False, **options: bool) -> Any:
        if cache:
            raise cause("no place for it")
        return jit(*signature, **options)

    monkeypatch.setattr("numba.jit", uncached)
    twice = compiled("int64(int64)")(lambda x: 2 * x)
    assert twice(21) == 42


def test_nan_is_passed_on() -> None:
    for place in range(4):
        images = torch.ones(4)
        images[place] = torch.nan
        assert PooledReLU()(channels_last(images.view(1, 1, 2, 2))).isnan().all()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own forward mode uses it
@pytest.mark.parametrize("size", [6, 7])
def test_forward_mode(size: int) -> None:
    images, along = (channels_last(torch.randn(2, 3, size, size)) for _ in range(2))
    ours, expected = jvp(PooledReLU(), (images,), (along,)), jvp(plain, (images,), (along,))
    assert torch.equal(ours[0], expected[0])
    assert torch.equal(ours[1], expected[1])


@pytest.mark.parametrize("images", [torch.randn(2, 3, 6, 6), channels_last(torch.randn(2, 3, 6, 6)).double()])
def test_other_tensors_use_torchs_own_pooling(images: Tensor) -> None:
    assert torch.equal(PooledReLU()(images), plain(images))


def test_the_network_keeps_the_names_of_its_weights() -> None:
    # the names from when pooling and ReLU were separate modules: saved models stay readable
    names = [
        name
        for name in CNN(10, CnnOptions(pools=2)).state_dict()
        if name.startswith("features") and name.endswith("weight")
    ]
    assert names == ["features.0.weight", "features.3.weight", "features.6.weight"]
    modules = [type(module) for module in CNN(10, CnnOptions(pools=2)).features]
    assert modules == [nn.Conv2d, PooledReLU, WinogradConv2d, PooledReLU, WinogradConv2d, nn.ReLU]
