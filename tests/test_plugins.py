"""Custom methods, models and data sources, given by an import path."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import feddle
from command import run_feddle
from feddle.core.errors import FeddleError
from feddle.core.importing import called, check_arguments, imported
from feddle.methods.fedbuff import FedBuff, FedBuffOptions
from feddle.methods.imported import ImportedMethod
from feddle.run.folder import run_config
from feddle.run.load import parse_config
from feddle.server import Server
from test_reproduce import reproduce
from three_numbers import arrival, weights
from tiny import TINY, tiny

CODE = '''
from dataclasses import dataclass
import numpy as np
import torch
from torch import Tensor, nn
import feddle
from feddle.methods.strategy import MethodOptions

@dataclass
class Speed:
    value: Tensor | None = None

class FedBuffM:
    """The mean of the arrivals, with momentum."""

    def __init__(self, momentum=0.5, lr=1.0):
        self.momentum, self.lr, self.state = momentum, lr, Speed()

    def merge(self, model, arrivals, round):
        if not arrivals:
            return feddle.Merged(model)
        mean = torch.stack([a.update.delta for a in arrivals]).mean(0)
        old = self.state.value
        self.state.value = mean if old is None else self.momentum * old + mean
        return feddle.Merged(feddle.Weights(model.vector + self.lr * self.state.value, model.buffers), {"own": round})

class NeedsLr:
    def __init__(self, lr): ...
    def merge(self, model, arrivals, round): ...

class Fails(FedBuffM):
    def __init__(self): raise RuntimeError("no luck")

class Empty: ...

class Bug:
    def merge(self, model, arrivals, round):
        return helper(round)

def helper(round):
    return torch.zeros(1).view(round + 1)

class WithParts(MethodOptions):
    factor: float = 2.0

    def build(self, parts):
        return FedBuffM(lr=self.factor / parts.clients)

def make_model(classes, channels, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28 * channels, width), nn.ReLU(), nn.Linear(width, classes))

def not_a_model():
    return 3

def stripes(path=None):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 50, (120, 28, 28), dtype=np.uint8)
    labels = np.arange(120) // 6 % 2
    images[labels == 1, :, :14] += 200
    return {"images": images, "labels": np.array(["plain", "striped"])[labels], "clients": np.arange(120) % 6}
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the test's folder, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "feddle_own.py").write_text(CODE)
    (tmp_path / "feddle_broken.py").write_text("import json\njson.nothing\n")
    yield "feddle_own"
    sys.modules.pop("feddle_own", None)


def test_momentum_by_hand(module: str) -> None:
    # the first step is (1, 2, 3); the second is 0.5 · (1, 2, 3) + (1, 0, −1) = (1.5, 1, 0.5)
    method: Any = ImportedMethod(name=f"{module}:FedBuffM").build(None)  # type: ignore[arg-type]
    first = method.merge(weights(0.0, 0.0, 0.0), [arrival(1.0, 2.0, 3.0)], 1).weights
    second = method.merge(first, [arrival(1.0, 0.0, -1.0)], 2).weights
    assert second.vector.tolist() == [2.5, 3.0, 3.5]


def test_arguments_come_from_the_options_and_from_feddle(module: str) -> None:
    assert called(f"{module}:FedBuffM", {"momentum": 0.1}, {"lr": 3.0, "classes": 2}).lr == 3.0
    assert called(f"{module}:FedBuffM", {"lr": 4.0}, {"lr": 3.0}).lr == 4.0
    check_arguments(f"{module}:make_model", ["width"], ["classes", "channels"])
    assert imported("json:decoder.JSONDecoder") is json.JSONDecoder


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            "feddle_own:FedBufM",
            "cannot import 'feddle_own:FedBufM': feddle_own has no 'FedBufM'; did you mean 'FedBuffM'?",
        ),
        (
            "feddle_none:X",
            "there is no module 'feddle_none'; install it, set PYTHONPATH, or start feddle in the folder",
        ),
        ("feddle_own.sub:X", "cannot import 'feddle_own.sub:X'"),
        (
            "feddle_broken:X",
            "cannot import 'feddle_broken:X': AttributeError: module 'json' has no attribute 'nothing'",
        ),
        ("feddle_own:", "expected an import path such as mypackage.module:Name, got 'feddle_own:'"),
        ("os.system:('x')", "expected an import path such as mypackage.module:Name"),
        ("feddle_own:nn", "expected a class or function at 'feddle_own:nn', found module"),
        ("feddle_own:Empty", "expected a class with merge(model, arrivals, round); add it, or name another"),
        ({"name": "os:system", "command": "touch executed"}, "os:system: expected a class with merge"),
        ("feddle_own:NeedsLr", "feddle_own:NeedsLr needs a value for 'lr'; add that key"),
        ({"name": "feddle_own:FedBuffM", "momentun": 1}, "unknown key 'momentun' of feddle_own:FedBuffM; did you mean"),
        ({"name": "feddle_own:FedBuffM", "x": 1}, "unknown key 'x' of feddle_own:FedBuffM; it takes momentum, lr"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_mistake_is_reported_in_one_line_with_its_key(method: Any, expected: str) -> None:
    with pytest.raises(FeddleError) as caught:
        parse_config({**TINY, "method": method}, source="mine.yaml")
    assert str(caught.value).startswith("mine.yaml: method: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("executed").exists()


def test_failing_code_is_reported_in_one_line_and_writes_no_files(module: str, tmp_path: Path) -> None:
    for override, expected in (
        (f"method={module}:Fails", f"{module}:Fails failed: RuntimeError: no luck"),
        (f"model={module}:not_a_model", "expected a torch.nn.Module, but it returned int"),
        (f"data={{name: {module}:not_a_model}}", "expected a dict of NumPy arrays"),
        (f"data={{name: {module}:nothing}}", f"data.name: cannot import '{module}:nothing'"),
    ):
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
        result = run_feddle("run", "tiny.yaml", "-q", "-o", override, "--out", "failed")
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert expected in result.err
        assert not Path("failed").exists()


def test_a_failing_merge_is_reported_in_one_line_with_its_place(module: str, tmp_path: Path) -> None:
    line = CODE.splitlines().index("    return torch.zeros(1).view(round + 1)") + 1
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**TINY, "method": f"{module}:Bug"}))
    result = run_feddle("run", "tiny.yaml", "-q", "--out", "failed")
    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert "Bug.merge, round 1: RuntimeError: " in result.err
    assert f"({module}.py, line {line}); correct it; --debug shows the traceback" in result.err
    bug: Any = imported(f"{module}:Bug")()
    with pytest.raises(FeddleError, match=rf"^Bug\.merge, round 1: .* \({module}\.py, line {line}\)"):
        Server(weights(0.0), bug).advance()


def test_a_failing_merge_of_feddle_itself_keeps_its_traceback() -> None:
    method = FedBuff(FedBuffOptions())
    method.merge = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        Server(weights(0.0), method).advance()


def test_an_options_class_with_build_gets_the_parts(module: str, tmp_path: Path) -> None:
    run = run_config(
        tiny(workers=0, method={"name": f"{module}:WithParts", "factor": 10.0}), tmp_path / "run", quiet=True
    )
    assert run.server.strategy.lr == 10.0 / 20  # type: ignore[attr-defined]


def test_yaml_resume_compare_and_report(module: str, tmp_path: Path) -> None:
    path = f"{module}:FedBuffM"
    tree = {**TINY, "workers": 0, "checkpoint": {"every": 1}, "method": {"name": path, "lr": 0.5}}
    config = tmp_path / "own.yaml"
    config.write_text(yaml.safe_dump({**tree, "model": {"name": f"{module}:make_model", "width": 6}}))
    result = run_feddle("run", config, "-q", "--out", "whole")
    assert result.code == 0, result.err
    assert yaml.safe_load(Path("whole/config.yaml").read_text())["method"] == {"name": path, "lr": 0.5}

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(feddle.load_config(config), "stopped", stop, quiet=True)
    assert run_feddle("resume", "stopped", "-q").code == 0
    for name in ("model.safetensors", "history.jsonl"):
        assert Path("stopped", name).read_bytes() == Path("whole", name).read_bytes()
    both = run_feddle("compare", config, "--methods", f"fedbuff,{path}", "-q", "--out", "both")
    assert both.code == 0, both.err
    assert path in both.out
    assert Path("both/feddle_own.FedBuffM/result.json").is_file()
    (tmp_path / "feddle_own.py").unlink()  # a report reads files, it imports nothing
    sys.modules.pop(module)
    shown = run_feddle("report", "both", "--out", "page.html")
    assert shown.code == 0, shown.err
    assert path in Path("page.html").read_text()


def test_reproduce_adds_a_row_and_keeps_it(module: str) -> None:
    path = f"{module}:FedBuffM"
    result = reproduce(Path("grid"), "--methods", f"fedbuff,{path}")
    assert result.code == 0, result.err
    assert path in result.out
    again = reproduce(Path("grid"), "--methods", "fedbuff")
    assert again.code == 0, again.err
    assert path in again.out
    assert "are not methods" in run_feddle("reproduce", "components", "--methods", path).err


def test_a_source_is_a_function_that_returns_arrays(module: str, tmp_path: Path) -> None:
    data = {"name": f"{module}:stripes", "image_size": 28, "channels": 1}
    config = tiny(workers=0, data=data, clients={"count": 6, "per_round": 3}, rounds=10, training={"lr": 0.01})
    run = run_config(config, tmp_path / "run", quiet=True)
    assert len(run.problem.clients) == 6
    assert run.result["accuracy"] > 0.9
    (source,) = config.sources()
    assert source.digest() == type(source)(f"{module}:stripes", "anything").digest()  # type: ignore[call-arg]
