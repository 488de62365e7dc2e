"""Adding a method takes one file and one entry in the list of methods. All commands then support it."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from command import FEDDLE, PYTHON, run_process
from tiny import TINY

TOY = '''
"""Toy: add the mean of the arrivals, in every second round only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.methods.strategy import MethodOptions, ServerLr
from feddle.training.parts import Parts


class ToyOptions(MethodOptions):
    """Add the mean of the arrivals every second round."""

    name: Literal["toy"] = "toy"
    lr: ServerLr = 1.0

    def build(self, parts: Parts) -> "Toy":
        """The method."""
        return Toy(self.lr, parts.bench.layout.size)


@dataclass
class ToyState:
    """What has been collected since the last step."""

    total: Tensor
    count: int = 0


class Toy:
    """A method with a state."""

    def __init__(self, lr: float, size: int) -> None:
        self.lr = lr
        self.state = ToyState(torch.zeros(size))

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """See `Strategy`."""
        for arrival in arrivals:
            self.state.total = self.state.total + arrival.update.delta
            self.state.count += 1
        if round % 2 or not self.state.count:
            return Merged(model, {"collected": self.state.count})
        step = self.lr * self.state.total / self.state.count
        self.state.total, self.state.count = torch.zeros_like(step), 0
        return Merged(Weights(model.vector + step, model.buffers), {"collected": 0})
'''

STOPPED = """
import sys, feddle
from pathlib import Path

def stop(line):
    if line["round"] == 3:
        raise KeyboardInterrupt

try:
    feddle.run_config(feddle.load_config(Path(sys.argv[1])), Path(sys.argv[2]), stop, quiet=True)
except KeyboardInterrupt:
    pass
"""


@pytest.fixture
def extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy feddle and add a method. Processes that the test starts import the copy."""
    source = tmp_path / "src"
    shutil.copytree(Path("src"), source, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "feddle/methods/toy.py").write_text(TOY)
    listed = source / "feddle/methods/options.py"
    entry = listed.read_text().replace(
        "\nAnyMethod = (", "\nfrom feddle.methods.toy import ToyOptions\n\nAnyMethod = ("
    )
    listed.write_text(entry.replace("    | MedianOptions\n", "    | MedianOptions\n    | ToyOptions\n"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


@pytest.mark.slow
def test_adding_a_method_takes_one_file_and_one_entry(extended: Path) -> None:
    config = extended / "toy.yaml"
    tree = {**TINY, "workers": 0, "checkpoint": {"every": 1}, "method": {"name": "toy", "lr": 0.5}}
    config.write_text(yaml.safe_dump(tree))
    whole, stopped, both = (extended / name for name in ("whole", "stopped", "both"))
    assert "Add the mean of the arrivals every second round" in run_process(*FEDDLE, "methods").out
    done = run_process(*FEDDLE, "run", config, "-q", "--out", whole)
    assert done.code == 0, done.err
    assert "collected" in (whole / "history.jsonl").read_text()
    run_process(*PYTHON, STOPPED, config, stopped)
    resumed = run_process(*FEDDLE, "resume", stopped, "-q")
    assert resumed.code == 0, resumed.err
    for name in ("model.safetensors", "history.jsonl"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes(), (
            "the state is saved without any code for it"
        )
    compared = run_process(*FEDDLE, "compare", config, "--methods", "toy,fedbuff", "-q", "--out", both)
    assert compared.code == 0, compared.err
    shown = run_process(*FEDDLE, "report", both, "--out", extended / "page.html")
    assert shown.code == 0, shown.err
    assert "toy" in (extended / "page.html").read_text()
    wrong = run_process(*FEDDLE, "run", config, "-o", "method.lrr=1")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "did you mean 'lr'?" in wrong.err
