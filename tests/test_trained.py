"""Custom data in Python, inputs of several tensors, and use of a trained model."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

import feddle
from command import run_feddle
from feddle.core.errors import FeddleError
from feddle.data.examples import FromDataset, are_finite
from feddle.run.folder import run_config
from feddle.run.own import open_data
from feddle.run.trained import load_model, predict
from feddle.training.train import outputs_of
from test_experiment import Net, cloud
from tiny import tiny

Image = pytest.importorskip("PIL.Image")
SHADES = {"dark": 30, "light": 220}


@pytest.fixture(scope="module")
def shades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of plain images in two classes, which four clients own."""
    folder = tmp_path_factory.mktemp("shades")
    lines = ["path,label,client"]
    for i in range(80):
        label = list(SHADES)[i % 2]
        Image.new("L", (16, 16), SHADES[label] + i % 20).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{label},hospital {i // 2 % 4}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained(shades: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on these images."""
    data = {"name": "csv", "path": str(shades / "table.csv"), "image_size": 28, "channels": 1}
    config = tiny(workers=0, data=data, clients={"count": 4, "per_round": 4}, rounds=10, training={"lr": 0.01})
    out = tmp_path_factory.mktemp("trained") / "run"
    assert run_config(config, out, quiet=True).result["accuracy"] == 1.0
    return out


def test_class_names_are_stored_with_the_model(trained: Path) -> None:
    model = load_model(trained)
    assert model.class_names == ("dark", "light")
    assert not model.training
    kept = load_file(trained / "model.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_predictions_for_an_image_a_folder_a_table_and_an_archive(trained: Path, shades: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    for name, shade in (("a.png", 25), ("inside/b.png", 230)):
        Image.new("L", (20, 12), shade).save(tmp_path / name)
    expected = [(str(tmp_path / "a.png"), "dark"), (str(tmp_path / "inside/b.png"), "light")]
    assert [(each.image, each.class_name) for each in predict(trained, tmp_path)] == expected
    assert [(each.image, each.class_name) for each in predict(trained, tmp_path / "a.png")] == expected[:1]
    (tmp_path / "new.csv").write_text("file,note\ninside/b.png,x\na.png,y\n")
    assert [(each.image, each.class_name) for each in predict(trained, tmp_path / "new.csv")] == expected[::-1]
    images = np.full((3, 16, 16), 25, dtype=np.uint8)
    images[1] = 225
    np.savez(tmp_path / "new.npz", images=images)
    found = predict(trained, tmp_path / "new.npz", batch_size=2)
    assert [(each.image, each.class_name) for each in found] == [("0", "dark"), ("1", "light"), ("2", "dark")]
    assert all(0.5 < each.probability <= 1 for each in found)
    printed = run_feddle("predict", trained, shades)
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    assert (printed.code, len(rows), list(rows[0])) == (0, 80, ["image", "class", "probability"])
    assert all(row["class"] == list(SHADES)[int(Path(row["image"]).stem) % 2] for row in rows)


def test_invalid_inputs_of_predict_are_reported_in_one_line(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    np.savez(tmp_path / "bad.npz", other=np.zeros(3))
    (tmp_path / "run").mkdir()
    for arguments, message in (
        ((trained, tmp_path / "none.png"), "there is no file or folder"),
        ((trained, tmp_path / "empty"), "holds no images"),
        ((trained, tmp_path / "notes.txt"), "expected an image, a folder, a .csv or an .npz file"),
        ((trained, tmp_path / "bad.csv"), "has no column path or image"),
        ((trained, tmp_path / "bad.npz"), "has no array images"),
        ((tmp_path / "run", tmp_path), "there is no model"),
    ):
        result = run_feddle("predict", *arguments)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.text
        assert message in result.err


def test_a_run_of_local_has_no_model_to_predict_with(shades: Path, tmp_path: Path) -> None:
    data = {"name": "csv", "path": str(shades / "table.csv"), "image_size": 28, "channels": 1}
    config = tiny(workers=0, data=data, clients={"count": 4, "per_round": 4}, rounds=1, method="local")
    run_config(config, tmp_path / "run", quiet=True)
    result = run_feddle("predict", tmp_path / "run", shades)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.text
    assert "local trains one model per client and saves none; name a run of another method" in result.err


def test_open_data_returns_the_arguments_of_simulate(shades: Path, tmp_path: Path) -> None:
    data = open_data(shades / "table.csv", image_size=16, channels=1, test_share=0.25)
    assert (len(data.clients), data.classes) == (4, ("dark", "light"))
    assert data.server is not None
    assert data.test is not None
    assert sum(len(client) for client in data.clients) + len(data.server) + len(data.test) == 80
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    run = feddle.simulate(
        model, data.clients, server=data.server, test=data.test, classes=data.classes, per_round=4, rounds=5,
        workers=0, out=tmp_path / "run",
    )  # fmt: skip
    assert run.result["accuracy"] == 1.0
    assert repr(data) == f"OpenedData(clients: 4, server: {len(data.server)}, test: {len(data.test)}, classes: 2)"
    assert run.per_client is not None
    assert run.per_client.measured_on == "test"
    own = [run.per_client.rows(client) for client in range(4)]
    assert sorted(torch.cat(own).tolist()) == list(range(len(data.test)))
    for client, rows in enumerate(own):  # image i has the shade of its label + i % 20, and belongs to i // 2 % 4
        shades_of = ((data.test.take(rows)[0][:, 0, 0, 0] + 1) * 127.5).round().int()
        places = torch.where(shades_of < 100, shades_of - 30, shades_of - 220)
        assert {place // 2 % 4 for place in places.tolist()} <= {client, (client + 2) % 4}
    with pytest.raises(
        FeddleError, match="holds a simulation, which does not say how to make its model; pass it in Python: feddle"
    ):
        load_model(tmp_path / "run")
    again: Any = load_model(tmp_path / "run", nn.Sequential(nn.Flatten(), nn.Linear(256, 2)))
    assert torch.equal(again[1].weight, model[1].weight)
    assert again.class_names == ("dark", "light")
    with pytest.raises(FeddleError, match="belong to another model"):
        load_model(tmp_path / "run", nn.Linear(3, 2))
    with pytest.raises(FeddleError, match=r"open_data: data.image_sizes|open_data: .*unknown key 'image_sizes'"):
        open_data(shades / "table.csv", image_sizes=3)
    assert len(open_data(shades / "table.csv", clients=2).clients) == 2


def test_a_damaged_or_old_model_file_is_an_error(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes((trained / "config.yaml").read_bytes())
    save_file(load_file(trained / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(FeddleError, match="has no class names"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(FeddleError, match="cannot read the model"):
        load_model(tmp_path)


# Inputs of several tensors


class Sum(nn.Module):
    """w · (left − 2 · right)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(3.0))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.weight * (left - 2 * right)


def test_a_tuple_is_positional_arguments_and_a_dict_keyword_arguments() -> None:
    left, right = (
        torch.tensor([5.0]),
        torch.tensor([1.0]),
    )  # 3 · (5 − 2 · 1) = 9, the other way round 3 · (1 − 10) = −27
    assert outputs_of(Sum(), (left, right)).item() == 9
    assert outputs_of(Sum(), [right, left]).item() == -27
    assert outputs_of(Sum(), {"right": right, "left": left}).item() == 9


class Split(Dataset[Any]):
    """The points of a cloud as two tensors."""

    def __init__(self, count: int, seed: int, *, named: bool) -> None:
        self.points, self.labels = cloud(count, seed).tensors
        self.named = named

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        x, y = self.points[index]
        return ({"y": y, "x": x} if self.named else (x, y)), self.labels[index]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.net(torch.stack([x, y], 1))
        return logits


@pytest.mark.parametrize("method", ["feddle", "feddle+", "feddf", "fed+ft"])
@pytest.mark.parametrize("named", [False, True])
def test_several_inputs_train_like_one(method: str, named: bool) -> None:
    def trained_on(model: nn.Module, data: Any) -> Tensor:
        plan: dict[str, Any] = {"rounds": 3, "per_round": 3, "workers": 0, "method": method}
        run = feddle.simulate(model, [data(20, i) for i in range(4)], server=data(30, 8), test=data(30, 9), **plan)
        return run.server.model.vector

    torch.manual_seed(0)
    two = TwoInputs()
    one = Net()
    one.load_state_dict(two.net.state_dict())
    assert torch.equal(trained_on(two, lambda count, seed: Split(count, seed, named=named)), trained_on(one, cloud))


def test_several_inputs_guide_from_another_task() -> None:
    clients = [Split(20, i, named=True) for i in range(4)]
    run = feddle.simulate(
        TwoInputs(), clients, server=Split(30, 8, named=True), server_classes=2, rounds=2, per_round=2, workers=0
    )
    assert bool(run.server.model.vector.isfinite().all())


def test_values_that_are_not_finite_are_found_in_every_input() -> None:
    data = Split(4, 0, named=True)
    assert are_finite(FromDataset(data))
    data.points[2, 1] = torch.nan
    assert not are_finite(FromDataset(data))
