"""Pooling with a ReLU in one pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional as F

from feddle.learning.models import CNN
from feddle.learning.pooling import PooledReLU


def plain(images: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(images, 2))


def channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def test_worked_out() -> None:
    # two squares side by side: the first has its largest, 3, twice and the first of them counts; −1 is cut off
    images = channels_last(torch.tensor([[[[1.0, 3.0, -2.0, -4.0], [3.0, 0.0, -1.0, -3.0]]]])).requires_grad_()
    pooled = PooledReLU()(images)
    assert pooled.tolist() == [[[[3.0, 0.0]]]]
    pooled.backward(torch.tensor([[[[10.0, 20.0]]]]))
    assert images.grad is not None
    assert images.grad.tolist() == [[[[0.0, 10.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]]


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(0, 3), st.sampled_from([1, 3, 8, 33]), st.integers(2, 9), st.integers(2, 9)),
    coarse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_same_bits_as_torch_both_ways(shape: tuple[int, int, int, int], coarse: bool, seed: int) -> None:
    numbers = torch.Generator().manual_seed(seed)
    images = torch.randn(shape, generator=numbers)
    images = channels_last(images.round() if coarse else images)  # round: equal numbers, and zeros of both signs
    ours, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
    pooled, expected = PooledReLU()(ours), plain(theirs)
    assert torch.equal(pooled, expected)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    slope = torch.randn(expected.shape, generator=numbers)
    assert torch.equal(torch.autograd.grad(pooled, ours, slope)[0], torch.autograd.grad(expected, theirs, slope)[0])


def test_what_is_not_a_number_is_passed_on() -> None:
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
def test_other_tensors_take_the_plain_way(images: Tensor) -> None:
    assert torch.equal(PooledReLU()(images), plain(images))


def test_the_network_keeps_the_names_of_its_weights() -> None:
    # as when pooling and ReLU were modules of their own: saved models stay readable
    names = [name for name in CNN(10, pools=2).state_dict() if name.startswith("features") and name.endswith("weight")]
    assert names == ["features.0.weight", "features.3.weight", "features.6.weight"]
    modules = [type(module) for module in CNN(10, pools=2).features]
    assert modules == [nn.Conv2d, PooledReLU, nn.Conv2d, PooledReLU, nn.Conv2d, nn.ReLU]
