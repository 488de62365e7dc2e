"""3×3 convolutions by Winograd's algorithm."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F

from feddle.models.cnn import CNN
from feddle.models.resnet import ResNet18
from feddle.training.kernels import convolution
from feddle.training.kernels.winograd import WinogradConv2d, _is_fast, _to_patches
from feddle.training.machine import one_thread


def channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def test_one_pixel_worked_out() -> None:
    # one pixel of 2 in a corner, the same in all 16 input channels; every filter has the weights 1 to 9, row by row.
    # The output at (i, j) is the sum over the channels of weight[1 - i, 1 - j] · 2, where the filter reaches the pixel:
    # at (0, 0) the middle weight 5, at (0, 1) the one to its left, 4, at (1, 0) the one above it, 2, at (1, 1) 1.
    layer = WinogradConv2d(16, 16)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(1.0, 10.0).view(3, 3).expand(16, 16, 3, 3))
        layer.bias.copy_(torch.full((16,), 0.5))  # type: ignore[union-attr]
    images = torch.zeros(1, 16, 4, 4)
    images[:, :, 0, 0] = 2
    expected = torch.full((4, 4), 0.5)
    expected[:2, :2] += 16 * 2 * torch.tensor([[5.0, 4.0], [2.0, 1.0]])
    found = layer(channels_last(images))
    assert _is_fast(channels_last(images), layer.weight)
    assert torch.allclose(found, expected.expand(1, 16, 4, 4), atol=1e-3)


def test_the_transform_of_a_patch() -> None:
    # an image of one row, 1 2 3 4: with padding, the patch has 0 1 2 3 4 0 in its second row, and Bᵀ of it is
    # (4·0 − 5·2 + 4, −4·1 − 4·2 + 3 + 4, 4·1 − 4·2 − 3 + 4, −2·1 − 2 + 2·3 + 4, 2·1 − 2 − 2·3 + 4, 4·1 − 5·3 + 0)
    patches = torch.empty(36, 1, 1)
    _to_patches(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]).numpy(), patches.numpy())
    columns = torch.tensor([-6.0, -5.0, -3.0, 6.0, -2.0, -11.0])
    rows = torch.tensor([0.0, -4.0, 4.0, -2.0, 2.0, 4.0])  # Bᵀ of a column with one number, in its second place
    assert torch.equal(patches.view(6, 6), rows[:, None] * columns)


@settings(deadline=None, max_examples=40)
@given(
    count=st.sampled_from([1, 3, 40]),
    channels=st.sampled_from([(16, 16), (16, 33), (48, 17)]),
    size=st.tuples(st.integers(4, 11), st.integers(4, 11)),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_match_torch(
    count: int, channels: tuple[int, int], size: tuple[int, int], bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = WinogradConv2d(*channels, bias=bias)
    images = channels_last(torch.randn(count, channels[0], *size)).requires_grad_()
    grad_output = torch.randn(count, channels[1], *size)
    exact = nn.Conv2d(*channels, 3, padding=1, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    inputs = images.detach().double().requires_grad_()
    found, expected = layer(images), exact(inputs)
    found.backward(grad_output)
    expected.backward(grad_output.double())
    pairs = [(found, expected), (images.grad, inputs.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(layer.parameters(), exact.parameters(), strict=True)]
    assert all(relative_error(ours, theirs) < 2e-5 for ours, theirs in pairs if ours is not None and theirs is not None)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("needed", [(False, True), (True, False)], ids=["weights only", "images only"])
def test_only_needed_gradients_are_computed(needed: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    layer, images = WinogradConv2d(16, 16), channels_last(torch.randn(2, 16, 8, 8))
    images.requires_grad_(needed[0])
    layer.requires_grad_(needed[1])
    layer(images).square().sum().backward()
    assert (images.grad is not None, layer.weight.grad is not None) == needed
    inputs = images.detach().clone().requires_grad_()
    weight = layer.weight.detach().clone().requires_grad_()
    F.conv2d(inputs, weight, layer.bias, padding=1).square().sum().backward()  # type: ignore[no-untyped-call]
    for ours, theirs in ((images.grad, inputs.grad), (layer.weight.grad, weight.grad)):
        assert ours is None or (theirs is not None and relative_error(ours, theirs) < 2e-5)


def test_double_backward() -> None:
    torch.manual_seed(0)
    layer, images = WinogradConv2d(16, 16), channels_last(torch.randn(2, 16, 5, 5))
    found = []
    for convolve in (layer, lambda x: F.conv2d(x, layer.weight, layer.bias, padding=1)):
        x = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((convolve(x) ** 3).sum(), x, create_graph=True)
        layer.zero_grad()
        gradient.square().sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert layer.weight.grad is not None
        found.append((x.grad, layer.weight.grad))
    assert all(relative_error(ours, theirs) < 1e-4 for ours, theirs in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own forward mode uses it
def test_transforms_and_unsupported_inputs_use_torch() -> None:
    torch.manual_seed(0)
    layer, images = WinogradConv2d(16, 16), channels_last(torch.randn(2, 16, 6, 6))

    def plain(inputs: Tensor) -> Tensor:
        return F.conv2d(inputs, layer.weight, layer.bias, padding=1)

    assert torch.equal(jvp(layer, (images,), (images,))[1], jvp(plain, (images,), (images,))[1])
    for inputs in (images.contiguous(), images[:, :, :3], images[0]):
        assert not _is_fast(inputs, layer.weight)
        assert torch.equal(layer(inputs), plain(inputs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not _is_fast(images, layer.weight)
    assert layer(images[:0]).shape == (0, 16, 6, 6)
    assert torch.equal(layer.double()(images.double()), plain(images.double()))


def test_gradients_for_each_image() -> None:
    layer = WinogradConv2d(16, 16)
    weights = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(weights: dict[str, Tensor], image: Tensor) -> Tensor:
        outputs: Tensor = functional_call(layer, weights, (image[None],))
        return outputs.square().sum()

    images = torch.randn(2, 16, 8, 8)
    found = vmap(grad(loss), (None, 0))(weights, images)["weight"]
    assert torch.allclose(found[1], grad(loss)(weights, images[1])["weight"], rtol=1e-3)


def test_nan_is_propagated() -> None:
    images = torch.ones(1, 16, 8, 8)
    images[0, 3, 2, 2] = torch.nan
    assert WinogradConv2d(16, 16)(channels_last(images))[0, :, 1:4, 1:4].isnan().all()


def test_repeated_training_is_bit_identical() -> None:
    def trained() -> Tensor:
        torch.manual_seed(0)
        model, images = CNN(10).to(memory_format=torch.channels_last), channels_last(torch.randn(33, 3, 32, 32))  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    with one_thread():
        assert torch.equal(trained(), trained())


def test_models_use_winograd_convolutions() -> None:
    assert sum(isinstance(module, WinogradConv2d) for module in CNN(10).modules()) == 2  # all but the first
    assert sum(isinstance(module, WinogradConv2d) for module in ResNet18(10).modules()) == 13  # stride 1, of 16
    assert not any(isinstance(c, WinogradConv2d) for c in (convolution(32, 32, padding=False), convolution(3, 64)))
    layer, images = WinogradConv2d(16, 16), channels_last(torch.randn(2, 16, 8, 8))
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))  # noqa: S301
    assert all(torch.equal(other(images), layer(images)) for other in copies)
