"""`feddle compare` over seeds, and messages of the command line."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import feddle
from command import FEDDLE, run_feddle, run_process
from feddle.cli.display import stop
from feddle.core.errors import FeddleError, nearest
from feddle.core.importing import imported
from feddle.grids.grid import chosen, load_grid
from feddle.reading import read_run
from feddle.run.progress import about
from test_report import Document, make_run
from test_reproduce import CNN
from tiny import TINY


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


# Several seeds


def test_compare_over_seeds_shows_means_and_bands(tmp_path: Path, config: Path) -> None:
    both = ["--methods", "fedbuff,fedavg", "-q", "--out"]
    done = run_feddle("compare", config, "--seeds", "0,3", *both, tmp_path / "all")
    assert done.code == 0, done.err
    assert " ± " in done.out
    runs = sorted(path.parent.name for path in (tmp_path / "all").glob("*/config.yaml"))
    assert runs == ["fedavg-seed0", "fedavg-seed3", "fedbuff-seed0", "fedbuff-seed3"]
    html = (tmp_path / "all" / "report.html").read_text()
    assert html.count('class="band') == 2 * 2  # a band for each method, wide and narrow
    assert "Lines are means over seeds, bands are their range." in " ".join(Document(html).inside("p"))
    alone = run_feddle("compare", config, "--seed", "3", *both, tmp_path / "one")
    assert alone.code == 0, alone.err
    for method in ("fedbuff", "fedavg"):
        weights = [tmp_path / name / "model.safetensors" for name in (f"all/{method}-seed3", f"one/{method}")]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_comparison_over_seeds_is_resumed(tmp_path: Path, config: Path) -> None:
    done = run_feddle("compare", config, "--seeds", "0,1", "--methods", "fedavg", "-q", "--out", tmp_path / "all")
    assert done.code == 0, done.err
    (tmp_path / "all" / "fedavg-seed1" / "result.json").unlink()
    again = run_feddle("resume", tmp_path / "all", "-q")
    assert again.code == 0, again.err
    assert read_run(tmp_path / "all" / "fedavg-seed1").config["seed"] == 1
    assert "0 of" not in again.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0,x"], "--seeds: expected whole numbers from 0 up, such as 0,1,2, but found '0,x'"),
        (["--seeds", "0,1", "--seed", "2"], "expected --seed or --seeds, but found both"),
        (["--methods", "fedavg,fedbuf"], "--methods: unknown name 'fedbuf'; did you mean 'fedbuff'?"),
        (["-o", "rounds=9", "-o", "clients.per_round=50"], "-o clients.per_round=50: clients: per_round is 50, but"),
        (["--seed", "abc"], "Invalid value for '--seed': 'abc' is not a valid whole number from 0 up."),
        (["-o", "method.atlas_siz=3"], "-o method.atlas_siz=3: method: unknown key 'atlas_siz'"),
    ],
)
def test_errors_name_the_option(tmp_path: Path, config: Path, arguments: list[str], message: str) -> None:
    refused = run_feddle("compare", config, *arguments, "--out", tmp_path / "out")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert refused.err.startswith(f"feddle: {message}")
    assert not (tmp_path / "out").exists()


def test_only_similar_names_are_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nearest("data", ["attack", "delays"]) is None
    assert nearest("dgo", ["dog", "cat"]) == "dog"
    (tmp_path / "mymodule.py").write_text("import numpy as np\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FeddleError, match="mymodule has no 'nope'; check the name after the colon"):
        imported("mymodule:nope")


def test_a_folder_that_does_not_exist_cannot_be_resumed(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path / 'nope'}; check the path" in run_feddle("resume", tmp_path / "nope").err


def test_the_help_of_completion_has_a_line_for_each_shell() -> None:
    lines = [line.strip() for line in run_feddle("completion", "--help").out.splitlines()]
    assert 'bash, ~/.bashrc:  eval "$(feddle completion bash)"' in lines
    assert 'zsh, ~/.zshrc:    autoload -U compinit && compinit && eval "$(feddle completion zsh)"' in lines
    assert "fish, ~/.config/fish/config.fish:  feddle completion fish | source" in lines


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.2, "1 s"), (89, "89 s"), (240, "4 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_the_remaining_time(seconds: float, expected: str) -> None:
    assert about(seconds) == f"about {expected}"


def test_without_a_terminal_the_lines_show_the_remaining_time(tmp_path: Path, config: Path) -> None:
    done = run_feddle("run", config, "-o", "rounds=4", "-o", "evaluation.every=2", "--out", tmp_path / "run")
    middle, end = [line for line in done.err.splitlines() if "accuracy" in line]
    assert re.search(r"accuracy [\d.]+%  about \d+ s left$", middle)
    assert re.search(r"accuracy [\d.]+%$", end)


def test_an_error_in_the_file_is_not_attributed_to_an_option(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("rounds: many\n")
    assert run_feddle("run", path, "-o", "seed=1").err.startswith(f"feddle: {path}: rounds: ")


# The arguments of simulate


def examples(features: int = 2, labels: int = 2) -> TensorDataset:
    return TensorDataset(torch.randn(8, features), torch.arange(8) % labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "pass server= to simulate"),
        ({"server": 3}, "simulate: server=: expected a map-style torch Dataset of (input, target) pairs, got int"),
        ({"server": examples(3)}, "simulate: server=: mat1 and mat2 shapes cannot be multiplied"),
        ({"server": examples(), "test": examples(labels=5)}, "simulate: test=: Target 4 is out of bounds; check"),
        ({"server": TensorDataset(torch.randn(0, 2), torch.arange(0))}, "simulate: server=: the data is empty"),
        ({"server": TensorDataset(torch.randn(8, 2))}, "simulate: server=: expected (input, target) pairs of tensors"),
        ({"server": examples(), "clients": [examples(), [1]]}, "simulate: clients[1]: expected a map-style"),
        (
            {"server": torch.randn(8, 2)},
            "simulate: server=: expected a map-style torch Dataset of (input, target) pairs",
        ),
        ({"server": torch.randn(8, 2)}, "got Tensor; wrap it: TensorDataset(inputs, targets)"),
        ({"callbacks": [3]}, "simulate: callbacks must be functions of a line of history (a dict), got 3"),
        ({"callbacks": 3}, "simulate: callbacks must be a function or a list of functions, got 3"),
        ({"metrics": 3}, "simulate: metrics must be names and functions, or one of them, got 3"),
        ({"strategy": "fedavg"}, "for a method by name, method='fedavg'"),
        ({"strategy": TensorDataset}, "got the class TensorDataset; create one: TensorDataset()"),
        ({"strategy": 3}, "simulate: strategy must be an object with merge, got int"),
        ({"checkpoint": {"every": 2}}, "simulate: checkpoint= needs a folder for the run; add out="),
        ({"data": 3}, "simulate: unknown key 'data'; the known keys are seed, rounds, "),
        ({"rounds": "ten"}, "simulate: rounds: expected a whole number, such as 10, got 'ten'"),
        ({"training": {"lr": "high"}}, "simulate: training.lr: expected a number, such as 0.1, got 'high'"),
        ({"clients": torch.randn(3, 2)}, "simulate: clients must be a list with one data set per client, got Tensor"),
        ({"clients": 3}, "simulate: clients must be a list with one data set per client, got int"),
    ],
)
def test_errors_name_the_argument(arguments: dict[str, object], message: str) -> None:
    given = {"clients": [examples(), examples()], **arguments}
    with pytest.raises(FeddleError) as refused:
        feddle.simulate(nn.Linear(2, 2), **{"per_round": 1, "rounds": 1, "workers": 0, **given})  # type: ignore[arg-type]
    assert message in str(refused.value)


@pytest.mark.parametrize("label", [-1, 7])
def test_a_wrong_label_of_any_client_is_found_before_the_run(label: int) -> None:
    wrong = TensorDataset(torch.randn(2, 2), torch.tensor([0, label]))
    with pytest.raises(FeddleError, match=rf"simulate: clients\[2\]: Target {label} is out of bounds; check its"):
        feddle.simulate(nn.Linear(2, 2), [examples(), examples(), wrong], method="fedavg", per_round=1)


class ReadOnDemand(Dataset[Any]):
    """A data set whose labels can only be read together with the inputs."""

    def __init__(self, inner: TensorDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_label_found_during_training_gives_the_same_advice(workers: int) -> None:
    clients = [examples(), ReadOnDemand(examples(labels=5))]
    with pytest.raises(
        FeddleError, match=r"client 1: Target \d is out of bounds; check its inputs and labels, and the m"
    ):
        feddle.simulate(
            *(nn.Linear(2, 2), clients), method="fedavg", per_round=2, rounds=3, workers=workers, delays={"sigma": 0.0}
        )


def test_a_single_class_causes_a_warning() -> None:
    clients = [TensorDataset(torch.randn(4, 2), torch.zeros(4).long())] * 2
    with pytest.warns(UserWarning, match="all labels of the clients are 0"):
        feddle.simulate(nn.Linear(2, 2), clients, method="fedavg", per_round=1, rounds=1, workers=0)


# Rows of a table


def test_a_name_selects_the_rows_that_begin_with_it_and_a_hyphen() -> None:
    grid = load_grid(CNN)
    rows = {str(cell.key["method"]) for cell in chosen(grid, [], ["feddle"])}
    assert rows == {"feddle-id", "feddle-ood"}
    assert {str(cell.key["method"]) for cell in chosen(grid, [], ["fedavg", "feddle-id"])} == {"fedavg", "feddle-id"}
    with pytest.raises(FeddleError, match="has no row 'fedd'"):
        chosen(grid, [], ["fedd"])


def test_the_exact_name_of_a_row_selects_only_this_row() -> None:
    grid = load_grid("guidance")
    assert {str(cell.key["method"]) for cell in chosen(grid, [], ["feddle+"])} == {"feddle+"}


# Help, completion, Ctrl-C


@pytest.mark.parametrize("group", [[], ["federation"], ["data"]])
def test_the_help_is_not_shortened(group: list[str]) -> None:
    assert "..." not in run_feddle(*group, "--help").out.replace("[ARGS]...", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    script = run_feddle("completion", shell)
    assert (script.code, "_FEDDLE_COMPLETE" in script.out) == (0, True)


def test_completion_lists_the_matching_commands() -> None:
    environment = {"_FEDDLE_COMPLETE": "bash_complete", "COMP_WORDS": "feddle re", "COMP_CWORD": "1"}
    assert run_process(*FEDDLE, env=environment).out.split() == ["plain,report", "plain,reproduce", "plain,resume"]


@pytest.mark.parametrize(("terminal", "before"), [(True, "\n"), (False, "")])
def test_the_message_after_ctrl_c_starts_a_new_line(
    terminal: bool, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(SystemExit):
        stop("interrupted", code=130)
    assert screen.getvalue() == f"{before}feddle: interrupted\n"


# Exports and other tools


def test_a_single_run_is_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    formats = [word for kind in ("csv", "markdown", "latex", "png") for word in ("--export", kind)]
    done = run_feddle("report", run, "--out", tmp_path / "page" / "report.html", *formats)
    assert done.code == 0, done.err
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert names == {"report.html", "runs.csv", "runs.md", "runs.tex", "runs-Accuracy.png"}
    counts = "Examples: 50,000 for training, 500 for guidance at the server and 1,000 for testing."
    assert all(counts in (tmp_path / "page" / f"runs.{ending}").read_text() for ending in ("md", "tex"))
    assert ",50000,500,1000," in (tmp_path / "page" / "runs.csv").read_text()


def test_a_comparison_is_tracked(tmp_path: Path, config: Path) -> None:
    track = ["--track", "tensorboard"]
    done = run_feddle("compare", config, "--methods", "fedbuff,fedavg", *track, "-q", "--out", tmp_path / "all")
    assert done.code == 0, done.err
    assert len(list((tmp_path / "all").glob("*/tensorboard/*"))) == 2


def test_weights_and_biases_records_the_run_offline(tmp_path: Path, config: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb; to enable: pip install 'feddle[wandb]'")
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    done = run_process(*FEDDLE, "run", config, "--track", "wandb", "-q", "--out", tmp_path / "run", env=offline)
    assert done.code == 0, done.err
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"test_loss" in written.read_bytes()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished"]
