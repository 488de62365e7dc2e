"""The switch between the custom kernels and torch's own."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import feddle
from command import PYTHON, run_process
from feddle.core.errors import FeddleError
from feddle.training import kernels
from feddle.training.kernels import make_optimizer, own_kernels, pooled_relu

SRC = Path(feddle.__file__).parent
# pooling, both optimisers and the search; prints the SHA-256 of the weights
TRAINING = """if True:
    import hashlib, sys, torch
    import feddle
    from feddle.models.cnn import CNN, CnnOptions
    from torch.utils.data import TensorDataset
    digest = hashlib.sha256()
    for training in ({"epochs": 2}, {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.01}):
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(40, 1, 28, 28), torch.arange(40) % 4)
        model = CNN(4, CnnOptions(channels=(4, 4, 4), hidden=8), image_size=28, in_channels=1)
        options = dict(server=data, test=data, per_round=2, rounds=3, workers=0, delays={"sigma": 1})
        run = feddle.simulate(model, [data, data, data], training={"batch_size": 16, **training}, **options)
        digest.update(run.server.model.vector.numpy().tobytes())
    print("feddle.training.kernels.pooling" in sys.modules, digest.hexdigest())
"""


def test_training_without_the_kernels_is_bit_identical() -> None:
    on, off = (run_process(*PYTHON, TRAINING, env={"FEDDLE_KERNELS": switch}) for switch in ("on", "off"))
    assert (on.code, off.code) == (0, 0), on.err + off.err
    assert on.out.split()[0] == "True"
    assert off.out.split()[0] == "False"
    assert on.out.split()[1] == off.out.split()[1]


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "own_kernels", lambda: False)


@pytest.mark.usefixtures("without_kernels")
def test_without_the_kernels_torchs_own_modules_are_used() -> None:
    assert not any(type(module).__module__.startswith("feddle") for module in pooled_relu().modules())


@pytest.mark.parametrize("first", [True, False], ids=["kernels first", "torch first"])
def test_training_continues_from_a_state_of_the_other_kernels(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*switches: bool) -> torch.Tensor:
        torch.manual_seed(0)
        layer, state = nn.Conv2d(2, 3, 3), None
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        for number, own in enumerate(switches):
            monkeypatch.setattr(kernels, "own_kernels", lambda own=own: own)
            optimizer = make_optimizer("adam", layer.parameters(), lr=0.1, weight_decay=0.01)
            if state is not None:
                optimizer.load_state_dict(state)
            layer.zero_grad()
            layer(torch.arange(2 * 49.0).view(1, 2, 7, 7) + number).square().mean().backward()
            optimizer.step()
            state = {name: tensor.contiguous() for name, tensor in optimizer.state_dict().items()}
        weight: torch.Tensor = layer.weight.detach()
        return weight

    assert torch.equal(trained(first, not first, first), trained(first, first, first))


def test_an_unknown_value_of_the_switch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDLE_KERNELS", "0")
    own_kernels.cache_clear()
    with pytest.raises(FeddleError, match="expected FEDDLE_KERNELS to be on or off, got '0'"):
        own_kernels()


def test_only_the_kernels_use_private_names_of_torch() -> None:
    private = re.compile(r"""(?<!["'])\btorch(\.\w+)*\._[a-z]|\._version\b|from torch[\w.]* import [^\n]*\b_\w""")
    found = {path.relative_to(SRC).parts[:2] for path in SRC.rglob("*.py") if private.search(path.read_text())}
    assert found == {("training", "kernels")}
