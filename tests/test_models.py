"""Pretrained models: how weights are fetched and checked, and which part of a model is trained and sent."""

import ast
import gc
import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import feddle
from command import run_feddle
from feddle.core.atlas import FloatRows
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.data.fetch.fetching import tensors_hash
from feddle.data.source import Unusable
from feddle.methods.feddle.method import Feddle
from feddle.models import weights
from feddle.models.checkpoints import read_checkpoint, read_onnx
from feddle.models.mobilenet import MobileNetV2
from feddle.models.pretrained import Standardise, fix_statistics
from feddle.models.resnet import ResNet18
from feddle.models.transformers import Adapters, Classifier, load_classifier
from feddle.run.load import parse_config
from feddle.run.problem import build_model
from feddle.training.train import Recipe, train
from tiny import tiny

SOURCES = Path(feddle.__file__).parent
STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


class Nested:
    """Hides another pickle in a tensor's storage, where torch's own function would unpickle it without restrictions."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.storage._load_from_bytes, (self.content,)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


# Reading checkpoints


def test_a_table_of_tensors_is_read_from_every_format(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "a.safetensors")
    torch.save(STATE, tmp_path / "a.pth")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(OrderedDict(STATE)))
    for file in ("a.safetensors", "a.pth", "a.pkl"):
        assert same(read_checkpoint(tmp_path / file), STATE), file


@pytest.mark.parametrize("file", ["a.pkl", "a.pth"])
def test_a_pickle_with_other_objects_runs_no_code(tmp_path: Path, file: str) -> None:
    mark = tmp_path / "mark"
    if file == "a.pkl":
        (tmp_path / file).write_bytes(pickle.dumps(OrderedDict(STATE, b=Evil(mark))))
    else:
        torch.save({**STATE, "b": Evil(mark)}, tmp_path / file)
    with pytest.raises(Unusable, match="system"):
        read_checkpoint(tmp_path / file)
    assert not mark.exists()


def test_a_pickle_inside_a_tensors_storage_runs_no_code(tmp_path: Path) -> None:
    mark, inner = tmp_path / "mark", io.BytesIO()
    torch.save(Evil(mark), inner)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"b": Nested(inner.getvalue())}))
    with pytest.raises(Unusable):
        read_checkpoint(tmp_path / "a.pkl")
    assert not mark.exists()
    torch.storage._load_from_bytes(inner.getvalue())  # type: ignore[no-untyped-call]  # so the attack is real
    assert mark.exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", pickle.dumps({"a": 1}), pickle.dumps([1, 2])[:-3]])
@pytest.mark.parametrize("file", ["a.pkl", "a.pth", "a.safetensors"])
def test_a_file_without_a_table_of_tensors_is_refused(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(Unusable, match=file):
        read_checkpoint(tmp_path / file)


def test_a_torchscript_program_is_refused_without_a_warning_or_wrong_advice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as file:
        for name in ("constants.pkl", "data.pkl", "version"):
            file.writestr(f"a/{name}", "3")
    with pytest.raises(Unusable, match=r"it is a program or damaged, not a table of tensors") as caught:
        read_checkpoint(tmp_path / "a.pth")
    assert "weights_only" not in str(caught.value)


def unrestricted_readers(code: str) -> list[int]:
    """The lines that unpickle without restrictions: torch.load without weights_only=True, or pickle's own readers."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            safe = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
            if (called == "torch.load" and not safe) or called in ("pickle.load", "pickle.loads", "pickle.Unpickler"):
                found.append(node.lineno)
    return found


def test_the_source_never_unpickles_without_restrictions() -> None:
    assert unrestricted_readers("torch.load(f)\npickle.loads(b)\ntorch.load(f, weights_only=True)") == [1, 2]
    files = sorted(SOURCES.rglob("*.py"))
    assert len(files) > 50
    found = {f.relative_to(SOURCES): unrestricted_readers(f.read_text(encoding="utf-8")) for f in files}
    # Ray's workers unpickle what their own driver sent. Whoever can send to a Ray cluster can run code there anyway.
    allowed = {Path("runtimes/packing.py"): 1}
    assert {path: len(lines) for path, lines in found.items() if lines} == allowed


# An ONNX file, written by hand: protobuf is a key (number and wire type), a length, and the content


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    head = b""
    while value > 127:
        head, value = head + bytes([value & 127 | 128]), value >> 7
    return head + bytes([value])


def onnx_tensor(name: str, tensor: Tensor) -> bytes:
    dims = b"".join(varint(1 << 3) + varint(n) for n in tensor.shape)
    return field(5, dims + varint(2 << 3) + varint(1) + field(8, name.encode()) + field(9, tensor.numpy().tobytes()))


def onnx_node(kind: str, name: str, *inputs: str) -> bytes:
    return field(1, b"".join(field(1, i.encode()) for i in inputs) + field(3, name.encode()) + field(4, kind.encode()))


def test_the_weights_of_an_onnx_file_get_their_original_names(tmp_path: Path) -> None:
    bias, matrix = torch.arange(200.0), torch.arange(400.0).reshape(2, 200)
    graph = onnx_node("MatMul", "/net/fc1/MatMul", "x", "onnx::MatMul_7")
    graph += onnx_tensor("net.fc1.bias", bias) + onnx_tensor("onnx::MatMul_7", matrix)
    (tmp_path / "a.onnx").write_bytes(field(7, graph))
    assert same(read_onnx(tmp_path / "a.onnx"), {"net.fc1.bias": bias, "net.fc1.weight": matrix.T})


@pytest.mark.parametrize("content", [b"", b"PK", field(7, b"\x0a\xff"), bytes(range(256))])
def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(Unusable, match=r"a\.onnx"):
        read_onnx(tmp_path / "a.onnx")


def test_position_embeddings_of_another_shape_are_refused(tmp_path: Path) -> None:
    graph = b"".join(onnx_tensor(name, torch.ones(3)) for name in ("onnx::Concat_1957", "onnx::Reshape_1962"))
    (tmp_path / "vit_s_focus.onnx").write_bytes(field(7, graph))
    with pytest.raises(Unusable, match="no position embeddings"):
        weights.named("dinov2-small-focus").reader(tmp_path)


# Weights by name


@pytest.fixture
def tiny_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> weights.FetchedWeights:
    """A spec whose only source is a folder that the user names."""
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "cache"))
    spec = replace(
        weights.named("mobilenet-v2"), name="tiny", sha256=tensors_hash(dict(sorted(STATE.items()))), origins=()
    )
    monkeypatch.setattr(weights, "WEIGHTS", (spec,))
    return spec


def test_weights_are_read_from_a_folder_checked_and_cached(
    tmp_path: Path, tiny_weights: weights.FetchedWeights
) -> None:
    (tmp_path / "mine").mkdir()
    counted = {**STATE, "bn.num_batches_tracked": torch.tensor(7)}  # which older files do not have
    torch.save(counted, tmp_path / "mine" / "mobilenet_v2-b0353104.pth")
    assert not tiny_weights.is_here()
    assert same(weights.named("tiny", tmp_path / "mine").read(quiet=True), STATE)
    assert tiny_weights.is_here()
    assert same(tiny_weights.read(quiet=True), STATE)  # from the cache now
    assert tiny_weights.place == tmp_path / "cache" / "weights" / "tiny"
    tiny_weights.file.write_bytes(b"broken")
    with pytest.raises(FeddleError, match="is broken and no source of tiny answered"):
        tiny_weights.read(quiet=True)


@pytest.mark.usefixtures("tiny_weights")
def test_weights_with_other_numbers_are_refused(tmp_path: Path) -> None:
    other = {**STATE, "a.bias": torch.tensor([1.0, 1.0000001])}
    torch.save(other, tmp_path / "mobilenet_v2-b0353104.pth")
    with pytest.raises(FeddleError, match=r"SHA-256.*model\.folder or --folder"):
        weights.named("tiny", tmp_path).read(quiet=True)
    with pytest.raises(FeddleError, match="there is no folder"):
        weights.named("tiny", tmp_path / "absent").read(quiet=True)


def test_an_unknown_name_is_reported_with_the_nearest() -> None:
    with pytest.raises(FeddleError, match="did you mean 'resnet18'"):
        weights.named("resnet_18")


def test_the_command_lists_weights() -> None:
    listed = run_feddle("weights", "list")
    assert listed.code == 0
    assert all(source.name in listed.out for source in weights.WEIGHTS)


# ResNet-18 and MobileNetV2


def test_mobilenet_v2_has_the_official_keys_and_size() -> None:
    model = MobileNetV2(1000)
    assert sum(p.numel() for p in model.parameters()) == 3_504_872  # as in torchvision
    keys = model.state_dict().keys()
    assert len(keys) == 314
    assert {
        "features.0.0.weight",
        "features.1.conv.2.running_var",
        "features.17.conv.0.1.bias",
        "classifier.1.bias",
    } <= keys
    assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)


def test_images_are_standardised_by_a_layer_without_state() -> None:
    layer = Standardise()
    white = layer(torch.ones(1, 3, 2, 2))
    black = layer(-torch.ones(1, 3, 2, 2))
    mean, deviation = torch.tensor(weights.IMAGENET_MEAN), torch.tensor(weights.IMAGENET_STD)
    torch.testing.assert_close(white[0, :, 0, 0], (1 - mean) / deviation)
    torch.testing.assert_close(black[0, :, 1, 1], -mean / deviation)
    assert not layer.state_dict()
    assert not list(layer.parameters())
    model = ResNet18(10, inputs=layer)
    assert model.state_dict().keys() == ResNet18(10).state_dict().keys()
    assert len(Layout.of(model).buffers) == len(Layout.of(ResNet18(10)).buffers)


def test_a_model_loads_all_weights_except_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "cache"))
    torch.manual_seed(0)
    given = {n: t for n, t in ResNet18(1000).state_dict().items() if t.is_floating_point()}
    torch.save(given, tmp_path / "resnet18-f37072fd.pth")
    spec = replace(weights.named("resnet18"), sha256=tensors_hash(dict(sorted(given.items()))), origins=())
    monkeypatch.setattr(weights, "WEIGHTS", (spec,))
    held = built(name="resnet18", folder=str(tmp_path)).state_dict()
    assert held["fc.weight"].shape == (10, 512)
    assert same({n: held[n] for n in given if not n.startswith("fc.")}, {n: given[n] for n in given if n[:3] != "fc."})
    assert all(n in given or n.endswith("num_batches_tracked") for n in held)


def test_fixed_statistics_do_not_change_in_training_but_the_scale_does() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    norm.running_mean = torch.tensor([0.1, 0.2, 0.3, 0.4])
    images, labels = torch.randn(8, 1, 8, 8), torch.arange(8) % 2
    expected, keys = model.eval()(images), model.state_dict().keys() - {"1.num_batches_tracked"}
    fix_statistics(model)
    torch.testing.assert_close(model.train()(images), expected)
    assert model.state_dict().keys() == keys
    before = {n: t.clone() for n, t in model.state_dict().items()}
    train(model, feddle_examples(images, labels), Recipe(epochs=1, batch_size=4), seed=0)
    after = model.state_dict()
    assert torch.equal(after["1.running_mean"], before["1.running_mean"])
    assert torch.equal(after["1.running_var"], before["1.running_var"])
    assert not torch.equal(after["1.weight"], before["1.weight"])


def feddle_examples(inputs: Tensor, targets: Tensor) -> Any:
    from feddle.data.examples import as_examples

    return as_examples(TensorDataset(inputs, targets))


def built(**model: Any) -> nn.Module:
    return build_model(parse_config({"model": model}), 10, quiet=True)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v2"])
def test_a_config_builds_the_model_that_it_names(name: str) -> None:
    model = built(name=name, pretrained=False)
    assert Layout.of(model).head_name == {"resnet18": "fc", "mobilenet-v2": "classifier.1"}[name]
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert Layout.of(model).buffers


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"model": {"name": "resnet18"}, "data": {"channels": 1}}, "3 channels.*data.channels 1"),
        ({"model": "mobilenet-v2", "data": {"image_size": 28}}, "at least 32×32.*image_size"),
        ({"model": {"name": "transformers", "path": "nowhere"}}, r"there is no nowhere.config\.json"),
        (
            {"model": {"channels": [100_000] * 3}},
            r"the CNN has 180,821,905,120 weights, which need 2,694 GiB of memory or more, but .* lower model.channels",
        ),
        ({"model": {"hidden": 100_000_000}, "data": {"image_size": 4096}}, r"weights, which need .* lower model.ch"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_in_one_line(tree: dict[str, Any], reason: str) -> None:
    with pytest.raises(FeddleError, match=reason):
        build_model(parse_config(tree), 10, quiet=True)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"name": "resnet"}, "unknown name 'resnet'; did you mean 'resnet18'"),
        ({"name": "resnet18", "hidden": 3}, "'hidden' is an option of cnn, not of resnet18"),
        ({"name": "transformers"}, "model.path"),
    ],
)
def test_a_wrong_model_option_is_reported(model: dict[str, Any], expected: str) -> None:
    with pytest.raises(FeddleError, match=expected):
        parse_config({"model": model})


# Transformers and adapters

WIDTH, HEADS, LAYERS, PATCH, SIDE = 16, 2, 3, 4, 4  # of a generated ViT; SIDE patches per side


def timm_state() -> dict[str, Tensor]:
    """A generated checkpoint in timm's ViT layout, like its vit_base_patch16_224."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    state = {
        "cls_token": draw(1, 1, WIDTH),
        "pos_embed": draw(1, SIDE * SIDE + 1, WIDTH),
        "patch_embed.proj.weight": draw(WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": draw(WIDTH),
        "norm.weight": draw(WIDTH),
        "norm.bias": draw(WIDTH),
        "head.weight": draw(1000, WIDTH),
        "head.bias": draw(1000),
    }
    shapes = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
    shapes |= {"mlp.fc1": (4 * WIDTH, WIDTH), "mlp.fc2": (WIDTH, 4 * WIDTH)}
    for i in range(LAYERS):
        for name, shape in shapes.items():
            state |= {f"blocks.{i}.{name}.weight": draw(*shape), f"blocks.{i}.{name}.bias": draw(shape[0])}
        for name in ("norm1", "norm2"):
            state |= {f"blocks.{i}.{name}.weight": draw(WIDTH), f"blocks.{i}.{name}.bias": draw(WIDTH)}
    return state


def hugging_face_state(timm: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers under the names of google/vit-base-patch16-224-in21k."""
    state = {
        "vit.embeddings.cls_token": timm["cls_token"],
        "vit.embeddings.position_embeddings": timm["pos_embed"],
        "classifier.weight": timm["head.weight"],
        "classifier.bias": timm["head.bias"],
    }
    for kind in ("weight", "bias"):
        state[f"vit.embeddings.patch_embeddings.projection.{kind}"] = timm[f"patch_embed.proj.{kind}"]
        state[f"vit.layernorm.{kind}"] = timm[f"norm.{kind}"]
        for i in range(LAYERS):
            new, old = f"vit.encoder.layer.{i}", f"blocks.{i}"
            parts = timm[f"{old}.attn.qkv.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                state[f"{new}.attention.attention.{name}.{kind}"] = part.clone()
            state[f"{new}.attention.output.dense.{kind}"] = timm[f"{old}.attn.proj.{kind}"]
            state[f"{new}.layernorm_before.{kind}"] = timm[f"{old}.norm1.{kind}"]
            state[f"{new}.layernorm_after.{kind}"] = timm[f"{old}.norm2.{kind}"]
            state[f"{new}.intermediate.dense.{kind}"] = timm[f"{old}.mlp.fc1.{kind}"]
            state[f"{new}.output.dense.{kind}"] = timm[f"{old}.mlp.fc2.{kind}"]
    return state


def reference_features(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """The features of a ViT (n, width), computed as in the paper that introduced it."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)

    patches = F.conv2d(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=PATCH)
    x = torch.cat([state["cls_token"].expand(len(images), -1, -1), patches.flatten(2).mT], 1) + state["pos_embed"]
    for i in range(LAYERS):
        inputs = norm(x, f"blocks.{i}.norm1")
        qkv = linear(inputs, f"blocks.{i}.attn.qkv").reshape(*inputs.shape[:2], 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1) @ v
        x = x + linear(attended.transpose(1, 2).flatten(2), f"blocks.{i}.attn.proj")
        x = x + linear(F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")), f"blocks.{i}.mlp.fc2")
    return norm(x, "norm")[:, 0]


def save_vit(folder: Path, layout: str = "hugging face") -> Path:
    """A small ViT in a folder, in one of the two layouts that ViT-B/16 is published in."""
    folder.mkdir()
    state = timm_state()
    if layout == "timm":
        config: dict[str, Any] = {"architecture": "vit_base_patch16_224", "model_args": {"num_heads": HEADS}}
        config["pretrained_cfg"] = {"mean": [0.4] * 3, "std": [0.2] * 3}
        save_file(state, folder / "model.safetensors")
    else:
        config = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "layer_norm_eps": 1e-6}
        config |= {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
        config |= {"intermediate_size": 4 * WIDTH, "image_size": SIDE * PATCH, "patch_size": PATCH}
        save_file(hugging_face_state(state), folder / "model.safetensors", {"format": "pt"})
        processor = {"image_mean": [0.4] * 3, "image_std": [0.2] * 3}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("layout", ["hugging face", "timm"])
def test_a_vit_is_loaded_from_either_official_layout(tmp_path: Path, layout: str) -> None:
    torch.manual_seed(0)
    model = load_classifier(save_vit(tmp_path / "vit", layout), 5).eval()
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    expected = reference_features(timm_state(), ((images + 1) / 2 - 0.4) / 0.2)
    logits = F.linear(expected, model.model.classifier.weight, model.model.classifier.bias)  # type: ignore[union-attr,arg-type]
    torch.testing.assert_close(model(images), logits, atol=1e-4, rtol=1e-4)
    assert model(images).shape == (2, 5)


def test_another_image_size_works_too(tmp_path: Path) -> None:
    folder = save_vit(tmp_path / "vit")
    assert load_classifier(folder, 5, image_size=28)(torch.zeros(1, 3, 28, 28)).shape == (1, 5)


def test_only_adapters_and_head_are_trained(tmp_path: Path) -> None:
    model = load_classifier(save_vit(tmp_path / "vit"), 5, Adapters(rank=4))
    layout = Layout.of(model)
    adapters = LAYERS * 2 * 2 * 4 * WIDTH  # query and value, A and B of rank 4
    head = 5 * WIDTH + 5
    assert (layout.head_start, layout.size) == (adapters, adapters + head)
    assert layout.head_name == "model.classifier"
    assert all("lora_" in slot.name for slot in layout.parameters if slot.start < layout.head_start)
    assert not layout.buffers


@pytest.mark.parametrize(
    ("adapters", "numbers"),
    [
        (Adapters(rank=2, target_modules=["q_proj", "k_proj"]), LAYERS * 2 * 2 * 2 * WIDTH),
        (Adapters(rank=2, target_modules=r".*\.1\.attention\.v_proj"), 2 * 2 * WIDTH),
        (Adapters(rank=2, target_modules="all-linear"), LAYERS * (4 * 2 * 2 * WIDTH + 2 * 2 * 5 * WIDTH)),
        (Adapters(rank=2, options={"use_dora": True}), LAYERS * 2 * (2 * 2 * WIDTH + WIDTH)),
        (Adapters(rank=2, options={"bias": "lora_only"}), LAYERS * 2 * (2 * 2 * WIDTH + WIDTH)),
    ],
    ids=["names", "expression", "all linear", "dora", "biases"],
)
def test_any_lora_config_of_peft_works(tmp_path: Path, adapters: Adapters, numbers: int) -> None:
    layout = Layout.of(load_classifier(save_vit(tmp_path / "vit"), 5, adapters))
    assert layout.head_start == numbers
    assert layout.size == numbers + 5 * WIDTH + 5


@pytest.mark.parametrize(
    ("adapters", "expected"),
    [
        (Adapters(target_modules=["nothing"]), "does not fit.*No modules"),
        (Adapters(options={"rnak": 3}), "does not fit.*rnak"),
        (Adapters(target_modules="("), "does not fit.*missing ., unterminated.*correct its target_modules"),
        (Adapters(options={"bias": "nosuch"}), "does not fit.*nosuch"),
        (Adapters(options={"rank_pattern": 3}), "does not fit.*AttributeError"),
        (Adapters(rank=100_000_000), "above the 64 numbers of the widest layer"),
    ],
)
def test_adapters_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, adapters: Adapters, expected: str) -> None:
    with pytest.raises(FeddleError, match=expected) as caught:
        load_classifier(save_vit(tmp_path / "vit"), 5, adapters)
    assert "\n" not in str(caught.value)


Damage = Callable[[Path], object]


def overwrite(name: str, content: str | bytes) -> Damage:
    """Replace a file of the folder."""
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def change_settings(name: str = "config.json", **changes: Any) -> Damage:
    """Change keys in a JSON file of the folder."""
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def garbled_header(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:8] + b"\xff" * 40 + whole[48:])


def other_shapes(folder: Path) -> None:
    named = read_checkpoint(folder / "model.safetensors")
    save_file({name: torch.zeros(3, 2) for name in named}, folder / "model.safetensors", {"format": "pt"})


def pipe(name: str) -> Damage:
    """Replace a file by a named pipe, which blocks whoever opens it."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def only_a_pickle(folder: Path) -> None:
    torch.save(timm_state(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def bring_code(folder: Path) -> None:
    brought = {"model_type": "brought", "auto_map": {"AutoConfig": "code.Brought"}}
    (folder / "config.json").write_text(json.dumps(brought))
    (folder / "code.py").write_text("raise SystemExit('it was run')")


PROCESSOR = "preprocessor_config.json"
WEIGHTS = "model.safetensors"
DAMAGES: dict[str, tuple[str, Damage, str]] = {
    "code": ("hugging face", bring_code, "cannot load the model"),
    "another width": ("hugging face", change_settings(hidden_size=32), "do not fit its config.json"),
    "another depth": ("hugging face", change_settings(num_hidden_layers=LAYERS + 1), "do not fit.*3.*is missing"),
    "only a pickle": ("hugging face", only_a_pickle, "cannot load the model"),
    "weights cut": ("hugging face", cut, "cannot load the model.*incomplete metadata.*save it again"),
    "weights empty": ("hugging face", overwrite(WEIGHTS, ""), "cannot load the model.*header too small"),
    "weights garbled": ("hugging face", garbled_header, "cannot load the model.*invalid UTF-8"),
    "weights misshaped": ("hugging face", other_shapes, "do not fit its config.json: vit.embeddings.cls_token"),
    "weights are text": (
        "hugging face",
        overwrite(WEIGHTS, "PK\x03\x04 and more text"),
        "cannot load the model.*header",
    ),
    "weights are a pipe": ("hugging face", pipe(WEIGHTS), "cannot load the model.*no file named"),
    "config empty": ("hugging face", overwrite("config.json", ""), "config.json is not valid JSON"),
    "config cut": ("hugging face", overwrite("config.json", "{"), "config.json is not valid JSON"),
    "config nested": ("hugging face", overwrite("config.json", "[" * 100_000), "config.json is not valid JSON"),
    "config not in UTF-8": ("hugging face", overwrite("config.json", b"\xff\xfe"), "config.json is not valid JSON"),
    "config a list": ("hugging face", overwrite("config.json", "[1]"), "must hold a table of settings, got list"),
    "config without keys": ("hugging face", overwrite("config.json", "{}"), "cannot load the model.*model_type"),
    "config is a pipe": ("hugging face", pipe("config.json"), "there is no .*config.json"),
    "unknown type": ("hugging face", change_settings(model_type="nosuch"), "cannot load the model.*nosuch"),
    "list of types": ("hugging face", change_settings(model_type=["vit"]), "cannot load the model.*TypeError"),
    "width as text": (
        "hugging face",
        change_settings(hidden_size="wide"),
        "cannot load.*'hidden_size' expected int, got str",
    ),
    "no width": ("hugging face", change_settings(hidden_size=0), "cannot load the model"),
    "no heads": ("hugging face", change_settings(num_attention_heads=0), "cannot load the model.*ZeroDivisionError"),
    "unknown function": (
        "hugging face",
        change_settings(hidden_act="nosuch"),
        "cannot load the model.*KeyError: 'nosuch'",
    ),
    "processor empty": ("hugging face", overwrite(PROCESSOR, ""), "preprocessor_config.json is not valid JSON"),
    "processor a list": ("hugging face", overwrite(PROCESSOR, "[1]"), "must hold a table of settings, got list"),
    "mean as text": (
        "hugging face",
        change_settings(PROCESSOR, image_mean="x"),
        "image_mean should be a list of 3 numbers",
    ),
    "one mean": (
        "hugging face",
        change_settings(PROCESSOR, image_mean=0.5),
        "image_mean should be a list of 3 .* got 0.5",
    ),
    "two means": (
        "hugging face",
        change_settings(PROCESSOR, image_mean=[0.5] * 2),
        "image_mean .* got .0.5, 0.5.; correct it",
    ),
    "no numbers": (
        "hugging face",
        change_settings(PROCESSOR, image_std=[None] * 3),
        "image_std should be a list of 3 numbers",
    ),
    "no deviation": (
        "hugging face",
        change_settings(PROCESSOR, image_std=[0, 1, 1]),
        "a list of 3 numbers above 0, got",
    ),
    "timm's weights cut": ("timm", cut, "model.safetensors cannot be read"),
    "timm's weights misshaped": ("timm", other_shapes, "patch_embed.proj.weight.* missing or has the wrong shape"),
    "timm's weights are a pipe": ("timm", pipe(WEIGHTS), "it holds no model.safetensors"),
    "timm's mean": ("timm", change_settings(pretrained_cfg={"mean": "x"}), "config.json: image_mean should be a list"),
    "timm's heads": (
        "timm",
        change_settings(model_args={"num_heads": "x"}),
        "cannot load the model.*expected int, got str",
    ),
}


@pytest.mark.parametrize(("layout", "damage", "expected"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_model_folder_is_refused_in_one_line(
    tmp_path: Path, layout: str, damage: Damage, expected: str
) -> None:
    folder = save_vit(tmp_path / "vit", layout)
    damage(folder)
    with pytest.raises(FeddleError, match=expected) as caught:
        load_classifier(folder, 5)
    assert "\n" not in str(caught.value)


def test_a_timm_model_that_is_not_a_plain_vit_is_refused(tmp_path: Path) -> None:
    folder = save_vit(tmp_path / "vit", "timm")
    save_file({**timm_state(), "blocks.0.ls1.gamma": torch.ones(WIDTH)}, folder / "model.safetensors")
    with pytest.raises(FeddleError, match=r"blocks\.0\.ls1\.gamma, which a plain ViT does not have"):
        load_classifier(folder, 5)


def coloured(count: int, seed: int) -> TensorDataset:
    """Images (n, 3, 16, 16) whose class is their brightest channel."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    images = torch.randn(count, 3, 16, 16, generator=generator) * 0.3
    images[torch.arange(count), labels] += 0.5
    return TensorDataset(images, labels)


CLIENTS, SERVER, TEST = [coloured(40, seed=10 + client) for client in range(8)], coloured(60, 1), coloured(100, 2)


def federate(model: Classifier, rounds: int = 6, workers: int = 0) -> Any:
    return feddle.simulate(
        model,
        CLIENTS,
        server=SERVER,
        test=TEST,
        rounds=rounds,
        per_round=4,
        training={"lr": 0.01, "epochs": 2},
        delays={"sigma": 1.0},
        workers=workers,
    )


def test_an_update_is_the_adapters_and_the_head_and_the_base_is_never_copied(tmp_path: Path) -> None:
    model = load_classifier(save_vit(tmp_path / "vit"), 3, Adapters(rank=2))
    base = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    places = {n: p.data_ptr() for n, p in model.named_parameters()}
    size = LAYERS * 2 * 2 * 2 * WIDTH + 3 * WIDTH + 3
    run = federate(model)
    strategy = run.server.strategy
    assert isinstance(strategy, Feddle)
    anchors = strategy.atlas.active()
    assert isinstance(anchors, FloatRows)
    assert anchors.matrix.shape[1] == size  # a row of the atlas
    sent = sum(line["arrivals"] for line in run.history)
    assert run.history[-1]["bytes_up"] == sent * 4 * size  # four bytes per number, and nothing else
    assert {n: p.data_ptr() for n, p in model.named_parameters()} == places
    assert all(torch.equal(p, base[n]) for n, p in model.named_parameters() if n in base)
    assert run.result["accuracy"] > 0.5  # of three classes


def test_workers_train_adapters_bit_identically(tmp_path: Path) -> None:
    folder = save_vit(tmp_path / "vit")
    vectors = []
    for workers in (0, 2):
        torch.manual_seed(0)
        run = federate(load_classifier(folder, 3, Adapters(rank=2)), rounds=2, workers=workers)
        vectors.append(run.server.model.vector)
    assert torch.equal(*vectors)


def test_a_config_runs_a_transformer_with_adapters(tmp_path: Path) -> None:
    model = {"name": "transformers", "path": str(save_vit(tmp_path / "vit")), "lora": {"rank": 2}}
    data = {"name": "digits", "image_size": 16, "server": {"samples": 50}}
    run = feddle.run_config(tiny(model=model, data=data, rounds=2, workers=0), tmp_path / "run")
    head = 10 * WIDTH + 10
    assert run.layout.size == LAYERS * 2 * 2 * 2 * WIDTH + head
    assert run.result["bytes_down"] == 2 * 5 * 4 * run.layout.size
    kept = read_checkpoint(tmp_path / "run" / "model.safetensors")
    slots = run.layout.parameters
    assert torch.equal(torch.cat([kept[s.name].flatten() for s in slots]), run.server.model.vector)


def held_bytes() -> int:
    """The size of all storages of live tensors."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if issubclass(type(t), Tensor)]
    found = [t.untyped_storage() for t in tensors if t.layout is torch.strided]  # other tests may leave other layouts
    return sum({s.data_ptr(): s.nbytes() for s in found}.values())


def test_memory_grows_by_adapters_not_by_bases(tmp_path: Path) -> None:
    model = load_classifier(save_vit(tmp_path / "vit"), 3, Adapters(rank=1, target_modules=["q_proj"]))
    layout = Layout.of(model)
    base = 4 * sum(p.numel() for p in model.parameters() if not p.requires_grad)
    before = held_bytes()
    run = federate(model)
    grown = held_bytes() - before
    assert len(run.server.strategy.atlas.active()) >= 6
    assert 4 * layout.size * 30 < base  # so that a copied base would show among atlas, versions and updates
    assert grown < base


def save_bert(folder: Path) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, pad_token_id=0
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def test_a_text_classifier_takes_token_ids_and_ignores_padding(tmp_path: Path) -> None:
    model = load_classifier(save_bert(tmp_path / "bert"), 4, Adapters(rank=2)).eval()
    short = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(model(F.pad(short, (0, 4))), model(short))
    assert model(short).shape == (1, 4)
    assert Layout.of(model).head_name == "model.classifier"
    with pytest.raises(FeddleError, match="reads text"):
        model(torch.zeros(1, 3, 16, 16))


def test_a_pooler_without_weights_is_trained_with_the_head(tmp_path: Path) -> None:
    folder = save_bert(tmp_path / "bert")
    held = read_checkpoint(folder / "model.safetensors")
    without = {n: t for n, t in held.items() if ".pooler." not in n}
    assert len(without) == len(held) - 2
    save_file(without, folder / "model.safetensors", {"format": "pt"})
    trained = {slot.name for slot in Layout.of(load_classifier(folder, 4, Adapters())).parameters}
    assert {"model.bert.pooler.dense.weight", "model.bert.pooler.dense.bias", "model.classifier.weight"} <= trained
    assert all("lora_" in n or "pooler" in n or "classifier" in n for n in trained)


def test_a_text_federation_learns(tmp_path: Path) -> None:
    def texts(count: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(2, (count,), generator=generator)
        words = torch.randint(10, 30, (count, 6), generator=generator)
        words[:, 0] = 2 + labels  # the first word determines the class
        return TensorDataset(words, labels)

    run = feddle.simulate(
        load_classifier(save_bert(tmp_path / "bert"), 2, Adapters(rank=4)),
        [texts(40, seed=10 + client) for client in range(6)],
        server=texts(40, seed=1),
        test=texts(100, seed=2),
        method="fedbuff",
        rounds=6,
        per_round=6,
        training={"lr": 0.02, "epochs": 4},
        delays={"sigma": 0.0},
        workers=0,
    )
    assert run.result["accuracy"] > 0.8


# Real weights, and the two photographs that come with scikit-learn

PALACE = 698  # of ImageNet's classes


def photograph(name: str, size: int, left: int = 107) -> Tensor:
    """A square cut out of a photograph, (1, 3, size, size) in [−1, 1]."""
    from PIL import Image

    with Image.open(Path(sklearn.__file__).parent / "datasets" / "images" / name) as image:
        cut = image.crop((left, 0, left + image.height, image.height)).resize((size, size))
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1)[None] / 127.5 - 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet-v2"])
def test_imagenet_weights_are_fetched_and_classify_a_photograph(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path))
    state = weights.named(name).read(quiet=True)
    model = {"resnet18": ResNet18, "mobilenet-v2": MobileNetV2}[name](1000, inputs=Standardise())
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(n.endswith("num_batches_tracked") for n in missing)
    assert model.eval()(photograph("china.jpg", 224)).argmax() == PALACE
    if name == "resnet18":  # the first numbers of torchvision's weights
        first = torch.tensor([-1.0419e-02, -6.1356e-03, -1.8098e-03, 7.4841e-02, 5.6615e-02, 1.7083e-02, -1.2694e-02])
        torch.testing.assert_close(state["conv1.weight"][0, 0, 0], first, atol=1e-6, rtol=1e-4)
    small = build_model(parse_config({"model": name, "data": {"image_size": 64}}), 10, quiet=True)
    assert small.eval()(photograph("china.jpg", 64)).shape == (1, 10)
    assert torch.equal(next(small.parameters()), next(model.parameters()))


@pytest.mark.slow
def test_the_vit_in_the_onnx_file_is_fetched_and_distinguishes_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path))
    tree = {"model": {"name": "transformers", "path": "dinov2-small-focus", "lora": {}}, "data": {"image_size": 112}}
    model = build_model(parse_config(tree), 10, quiet=True).eval()
    layout = Layout.of(model)
    assert (layout.head_start, layout.size) == (12 * 2 * 2 * 4 * 384, 12 * 2 * 2 * 4 * 384 + 2 * 384 * 10 + 10)
    seen: list[Tensor] = []
    model.get_submodule("model.classifier").register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
    for name in ("china.jpg", "flower.jpg"):
        for left in (0, 213):  # two parts of each photograph
            model(photograph(name, 112, left))
    cosines = F.cosine_similarity(torch.stack(seen)[:, None], torch.stack(seen)[None], dim=2)
    assert min(cosines[0, 1], cosines[2, 3]) > cosines[:2, 2:].max() + 0.2
