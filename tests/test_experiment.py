"""Configs, run folders, the library and the command line. Runs use real data and take about a second."""

import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest.mock import ANY

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import feddle
from command import FEDDLE, PYTHON, run_feddle, run_process
from feddle.clients.work import ClientWork
from feddle.core.errors import FeddleError
from feddle.data import datasets
from feddle.data.examples import Images
from feddle.methods import options as methods
from feddle.methods.fedavg import FedAvg, FedAvgOptions
from feddle.methods.fedbuff import FedBuff, FedBuffOptions
from feddle.methods.feddle.fallback import FedAsyncFallback, NoFallback
from feddle.methods.feddle.method import CalibratedAnchors, Feddle, FeddleOptions
from feddle.run.folder import run_config
from feddle.run.load import load_config, parse_config, with_value
from feddle.run.problem import PartitionedClients, build_problem
from feddle.run.reference import reference
from feddle.run.run import Run
from feddle.run.simulate import simulated
from feddle.runtimes.simulation import Delays, InlineTrainer, Simulation
from feddle.runtimes.workers import WorkerPool
from feddle.training.machine import require_bfloat16
from feddle.training.search import AnnealedSearch, LbfgsSearch, PaperSearch
from feddle.training.train import Recipe
from needs import skip_without_bfloat16
from tiny import TINY, tiny
from waiting import LIMIT, patient, wait_until


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


# --- configs


def test_defaults_are_the_papers_setting() -> None:
    config = parse_config({})
    assert (config.rounds, config.clients.count, config.clients.per_round) == (200, 500, 10)
    assert config.data.server.samples is None  # 1000 in-domain, all images of another data set
    assert isinstance(config.method, FeddleOptions)


def test_a_method_can_be_a_name_or_options_without_a_name() -> None:
    assert parse_config({"method": "fedbuff"}).method == FedBuffOptions()
    assert parse_config({}, ["method=fedavg", "method.late=add_deltas"]).method == FedAvgOptions(late="add_deltas")
    deep = parse_config({}, ["method.search.lr=0.5", "method.fallback=none"]).method
    assert isinstance(deep, FeddleOptions)
    assert deep.search == PaperSearch(lr=0.5)
    assert deep.fallback == NoFallback()


def test_configs_are_unchanged_after_saving_and_loading(tmp_path: Path) -> None:
    for config in (tiny(), tiny(method="fedbuff"), parse_config({})):
        path = tmp_path / "saved.yaml"
        path.write_text(yaml.safe_dump(config.model_dump(mode="json"), allow_unicode=True))
        assert load_config(path) == config


@pytest.mark.parametrize("path", sorted(Path("experiments").glob("*.yaml")), ids=str)
def test_the_configs_in_the_repo_are_valid(path: Path) -> None:
    assert load_config(path).data.name in [source.name for source in datasets.FETCHED]


BAD: list[tuple[str, str]] = [
    ("method={name: fedavg, atlas_size: 3}", "method: unknown key 'atlas_size'; 'atlas_size' is an option of feddle"),
    (
        "method={name: fedavg, atlas: 3}",
        "unknown key 'atlas'; 'atlas_size' is an option of feddle, feddle+, not of fedavg",
    ),
    ("method={name: fed+ft, late: discard}", "method: unknown key 'late'; did you mean 'base.late'?"),
    (
        "seed=2001-99-99",
        "the value of seed is not valid YAML: expected a value of the type timestamp, got '2001-99-99'",
    ),
    ("seed=!!timestamp x", "expected a value of the type timestamp, got 'x'"),
    ("seed=!!bool abc", "expected a value of the type bool, got 'abc'"),
    ("seed=!!int ''", "expected a value of the type int, got ''"),
    ("seed=!!float x", "expected a value of the type float, got 'x'"),
    ("seed=!!binary aGk=", "the tag 'tag:yaml.org,2002:binary'"),
    ("seed=!!python/name:os.system", "the tag 'tag:yaml.org,2002:python/name:os.system'"),
    ("method=&a {name: fed+ft, base: *a}", "a mapping or list contains itself"),
    ("seed=&a [*a]", "a mapping or list contains itself"),
    ("training.lr=1e39", "training.lr: input should be less than or equal to 1e+36, got '1e39'"),
    ("method.search.lr=1e39", "method.search.lr: input should be less than or equal to 1e+36"),
    ("method={name: fedbuff, lr: 1e39}", "method.lr: input should be less than or equal to 1e+36"),
    ("seed={a: 1, a: 2}", "the key 'a' is given twice"),
    ("delays.sigma=1e308", "delays.sigma: input should be less than or equal to 1000000"),
    ("training.precision=half", "training.precision: input should be 'float32' or 'bfloat16', got 'half'"),
    ("training.lr=true", "training.lr: expected a number, got True"),
    ("model={channels: [4, 4, 4, 4, 4, 4], pools: 6}", "lower model.pools"),
    ("method.atlas_size=100000000", "lower method.atlas_size"),
    ("data={name: digits, folder: ~nobody-of-that-name/x}", "refers to a user that does not exist"),
    ("data={name: digits, folder: /no/such/folder}", "there is no folder /no/such/folder"),
    ("method.atlas_sise=3", "method: unknown key 'atlas_sise'; did you mean 'atlas_size'?"),
    ("round=3", "unknown key 'round'; did you mean 'rounds'?"),
    ("zzz=3", "unknown key 'zzz'; the known keys are seed, rounds"),
    ("method=fedbuf", "method: unknown name 'fedbuf'; did you mean 'fedbuff'?"),
    ("method.fallback=foo", "method.fallback: unknown name 'foo'; the known names are fedbuff"),
    ("rounds=many", "rounds: expected a whole number, such as 10, got 'many'"),
    ("rounds=0", "rounds: input should be greater than or equal to 1, got 0"),
    ("data.partition.alpha=0", "data.partition.alpha: input should be greater than 0, got 0"),
    ("data.partition.alpha=.nan", "data.partition.alpha: input should be"),
    ("clients.per_round=600", "clients: per_round is 600, but count is 20"),
    ("data=3", "data: expected options ({KEY: VALUE}, or {} for the defaults), got 3"),
    (
        "method.head_anchor=true",
        "method.head_anchor: expected options ({KEY: VALUE}, or {} for the defaults), got True",
    ),
    ("rounds", "expected KEY=VALUE"),
    ("data.server.samples=359", "data.server.samples must be less than the 359 images that"),
    ("data.name=digitz", "did you mean 'digits'?"),
    ("data.image_size=16", "the CNN takes images from 28×28 up"),
    ("data.server.samples=0", "feddle uses the server's data, but there is none"),
    ("training.lr=1e30", "lower training.lr"),
    ("method.search.lr=1e36", "lower method.search.lr"),  # the largest that is accepted
    ("clients={count: 500, per_round: 400}", "clients have data, but clients.per_round is 400"),
]


@pytest.mark.parametrize(("override", "text"), BAD, ids=[override for override, _ in BAD])
def test_the_error_for_bad_input_is_one_line_that_names_the_key(tiny_file: Path, override: str, text: str) -> None:
    out = tiny_file.parent / "run"
    overrides = [override, "data.partition.alpha=0.01"] if "400" in override else [override]
    with pytest.raises(FeddleError) as caught:
        run_config(load_config(tiny_file, overrides), out, quiet=True)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_is_one_line_and_exit_code_2_without_a_traceback(tiny_file: Path, tmp_path: Path) -> None:
    bad = run_process(*FEDDLE, "run", tiny_file, "-o", "method.atlas_sise=3")
    assert (bad.code, bad.out) == (2, "")
    assert bad.err.count("\n") == 1
    assert bad.err.startswith("feddle: -o method.atlas_sise=3: method: unknown key 'atlas_sise'")
    assert "Traceback" in run_process(*FEDDLE, "run", "--debug", tiny_file, "-o", "rounds=0").err
    missing = run_feddle("run", tmp_path / "tinny.yaml")
    assert missing.code == 2
    assert f"did you mean {tiny_file}?" in missing.err
    for usage in (["run"], ["fly"], ["run", tiny_file, "--sed", "1"]):
        wrong = run_feddle(*usage)
        assert (wrong.code, wrong.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "text",
    ["a: [", "- 1\n- 2", "just words", "\x00", "&a {data: *a}", "&a {b: *a}", "seed: !!bool x", "seed: !!timestamp x"],
)
def test_a_file_without_a_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(FeddleError, match=r"odd\.yaml"):
        load_config(path)


def test_the_reference_in_the_docs_is_up_to_date() -> None:
    assert Path("docs/configuration.md").read_text() == reference() + "\n", (
        "feddle schema --markdown > docs/configuration.md"
    )


# --- run folders


def test_a_run_folder_holds_everything(tmp_path: Path) -> None:
    run = run_config(tiny(), tmp_path / "run", quiet=True)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.yaml",
        "data.json",
        "history.jsonl",
        "model.safetensors",
        "result.json",
    ]
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert history == run.history
    assert [line["round"] for line in history] == [1, 2, 3, 4]
    assert ["accuracy" in line for line in history] == [False, True, False, True]
    searched = [line for line in history if line["arrivals"]]
    assert searched
    assert all(len(line["coefficients"]) == len(line["anchor_clients"]) for line in searched)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    accuracies = [line["accuracy"] for line in history if "accuracy" in line]
    assert (result["accuracy"], result["last_accuracy"]) == (max(accuracies), accuracies[-1])
    assert result["finished"]
    assert result["torch"] == torch.__version__
    assert load_config(tmp_path / "run" / "config.yaml") == tiny()
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(saved[n], t) for n, t in run.problem.model.state_dict().items())


def test_sent_and_received_bytes_are_counted(tmp_path: Path) -> None:
    run = run_config(tiny(delays={"sigma": 0}), tmp_path / "run", quiet=True)
    size = run.layout.size * 4
    assert [line["bytes_down"] for line in run.history] == [size * 5 * n for n in (1, 2, 3, 4)]
    assert run.history[-1]["bytes_up"] == size * 20


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    run_config(tiny(rounds=1), tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(FeddleError, match="already holds a run"):
        run_config(tiny(rounds=1), tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    (tmp_path / "file").touch()
    with pytest.raises(FeddleError, match="is a file"):
        run_config(tiny(rounds=1), tmp_path / "file", quiet=True)


@pytest.mark.parametrize("method", ["feddle", "fedbuff", "fedavg"])
def test_runs_with_the_same_seed_are_bit_identical_in_any_process(tmp_path: Path, tiny_file: Path, method: str) -> None:
    config = load_config(tiny_file, [f"method={method}"])
    run_config(config, tmp_path / "here", quiet=True)
    there = run_process(*FEDDLE, "run", tiny_file, "-o", f"method={method}", "--out", tmp_path / "there")
    assert there.code == 0, there.err
    for name in ("history.jsonl", "model.safetensors", "config.yaml"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    run_config(load_config(tiny_file, [f"method={method}", "seed=1"]), tmp_path / "other", quiet=True)
    assert (tmp_path / "here" / "model.safetensors").read_bytes() != (
        tmp_path / "other" / "model.safetensors"
    ).read_bytes()


METHODS = [member.named() for member in get_args(methods.AnyMethod)]


def test_every_method_has_a_section_in_the_docs() -> None:
    titles = [line for line in Path("docs/methods.md").read_text().splitlines() if line.startswith("## ")]
    assert {f"## {name}" for name in METHODS} <= set(titles)


with_a_model = pytest.mark.parametrize("method", [name for name in METHODS if name != "local"])


@with_a_model
def test_every_method_is_reproducible_and_changes_the_model(tmp_path: Path, method: str) -> None:
    runs = [
        run_config(tiny(method=method, workers=w, delays={"sigma": 0.5}), tmp_path / str(w), quiet=True) for w in (0, 2)
    ]
    assert torch.equal(runs[0].server.model.vector, runs[1].server.model.vector)
    fresh = simulated(tiny(method=method), build_problem(tiny(method=method)))
    assert not torch.equal(runs[0].server.model.vector, fresh.server.model.vector)


def test_center_trains_no_client(tmp_path: Path) -> None:
    run = run_config(tiny(method="center"), tmp_path / "run", quiet=True)
    assert not any(line["arrivals"] or line["bytes_down"] for line in run.history)


def test_images_resized_in_advance_or_on_demand_are_bit_identical() -> None:
    kept, taken = (build_problem(tiny(data={**TINY["data"], "image_size": 40, "cache_mb": room})) for room in (1024, 0))
    assert isinstance(kept.clients, PartitionedClients)
    assert isinstance(taken.clients, PartitionedClients)
    assert isinstance(kept.clients.examples, Images)
    assert isinstance(taken.clients.examples, Images)
    assert kept.clients.examples.pixels[torch.tensor([0])].shape[-1] == 40
    assert (
        taken.clients.examples.pixels[torch.tensor([0])].shape[-1] == 8
    )  # the size of the stored digits: no large images are in memory
    for ours, theirs in ((kept.clients[3], taken.clients[3]), (kept.server, taken.server), (kept.test, taken.test)):
        assert ours is not None
        assert theirs is not None
        index = torch.arange(len(ours)).flip(0)[:7]
        assert all(map(torch.equal, ours.take(index), theirs.take(index)))


@pytest.mark.slow
def test_feddf_and_feddle_accept_data_of_another_domain() -> None:
    outside = {"name": "digits", "samples": 50}
    config = tiny(method="feddf", data={**TINY["data"], "name": "fashion-mnist", "server": outside})
    federation = build_problem(config)
    assert federation.server is not None
    assert federation.test is not None
    assert (federation.out_of_domain, len(federation.server), len(federation.test)) == ("digits", 50, 10_000)
    assert federation.server.take(torch.arange(2))[0].shape == (2, 1, 28, 28)
    noisy = build_problem(tiny(data={**config.data.model_dump(), "server": {**outside, "label_noise": 0.2}}))
    assert noisy.server is not None
    (images, wrong), (same, right) = (server.take(torch.arange(50)) for server in (noisy.server, federation.server))
    assert int((wrong != right).sum()) == 10
    assert torch.equal(images, same)
    distilled = simulated(config, federation)
    distilled.go()
    assert any("distillation_loss" in line for line in distilled.history)
    guided = simulated(tiny(method="feddle", diagnostics={"every": 2, "clients": 2}), federation)
    guided.go()
    assert any("signal_cosine" in line for line in guided.history)
    with pytest.raises(FeddleError, match=r"center needs server data of the clients' own task, but .* digits"):
        simulated(tiny(method="center"), federation)


@pytest.mark.parametrize("method", ["feddle", "fedbuff", "fedavg"])
def test_any_number_of_workers_is_bit_identical(tmp_path: Path, method: str) -> None:
    for workers in (0, 1, 3):
        run_config(tiny(method=method, workers=workers, rounds=6), tmp_path / str(workers), quiet=True)
    for name in ("history.jsonl", "model.safetensors"):
        assert len({(tmp_path / str(workers) / name).read_bytes() for workers in (0, 1, 3)}) == 1


class Dropout(nn.Module):
    """A model that draws from torch's global generator; `Jittered` draws from NumPy's and Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(points)
        return logits


class Jittered(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([random.random(), np.random.rand()]), index % 2  # noqa: NPY002, S311


def test_dropout_and_augmentation_are_bit_identical_with_any_number_of_workers() -> None:
    vectors = []
    for workers in (0, 1, 3):
        torch.manual_seed(0)
        run = feddle.simulate(
            Dropout(), [Jittered() for _ in range(6)], per_round=3, rounds=4, method="fedbuff", workers=workers
        )
        vectors.append(run.server.model.vector)
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[0], vectors[2])


def test_training_does_not_change_the_global_generators() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002, S311
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    model = Dropout()
    torch.manual_seed(1)
    feddle.simulate(model, [Jittered()], per_round=1, rounds=2, method="fedavg", delays={"sigma": 0}, workers=0)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected  # noqa: NPY002, S311


def test_options_reach_the_method_the_training_and_the_runtime() -> None:
    def parts(tree: dict[str, Any]) -> Run[Simulation]:
        config = tiny(**tree)
        return simulated(config, build_problem(config))

    built = parts(
        {
            "method": {
                "name": "feddle",
                "atlas_size": 7,
                "eviction": "fifo",
                "normalise": False,
                "regularisation": 0.25,
                "fallback": {"name": "fedasync", "alpha": 0.9, "exponent": 0.1},
                "search": {"name": "paper", "lr": 0.5, "epochs": 3, "batch_size": 9},
            },
            "training": {"optimizer": "sgd", "lr": 0.25, "epochs": 4, "batch_size": 6, "weight_decay": 0.125},
            "delays": {"sigma": 3.0, "per": "job"},
            "data": {**TINY["data"], "label_noise": 0.5},
            "workers": 0,
        }
    )
    strategy = built.server.strategy
    assert isinstance(strategy, Feddle)
    assert (strategy.atlas.capacity, strategy.atlas.eviction) == (7, "fifo")
    assert (strategy.normalise, strategy.regularisation) == (False, 0.25)
    assert strategy.fallback == FedAsyncFallback(alpha=0.9, exponent=0.1)
    assert strategy.search == PaperSearch(lr=0.5, epochs=3, batch_size=9)
    assert isinstance(built.runtime.trainer, InlineTrainer)
    assert isinstance(built.runtime.trainer.work, ClientWork)
    assert built.runtime.trainer.work.recipe == Recipe(
        optimizer="sgd", lr=0.25, epochs=4, batch_size=6, weight_decay=0.125
    )
    assert built.runtime.delays == Delays(sigma=3.0, per="job")
    clean = parts({})
    assert isinstance(clean.runtime.trainer, WorkerPool)
    labels = [torch.cat([e.take(torch.arange(len(e)))[1] for e in r.problem.clients]) for r in (built, clean)]
    assert int((labels[0] != labels[1]).sum()) == 719  # half of 1438
    fedbuff = parts(
        {"method": {"name": "fedbuff", "buffer_size": 3, "lr": 0.5, "staleness": "constant"}}
    ).server.strategy
    assert isinstance(fedbuff, FedBuff)
    assert fedbuff.options == FedBuffOptions(buffer_size=3, lr=0.5, staleness="constant")
    fedavg = parts({"method": {"name": "fedavg", "late": "average_models"}}).server.strategy
    assert isinstance(fedavg, FedAvg)
    assert fedavg.options.late == "average_models"
    searches: dict[str, Any] = {"annealed": AnnealedSearch(lr=0.01), "lbfgs": LbfgsSearch(iterations=5)}
    for name, search in searches.items():
        other = parts({"method": {"search": name}}).server.strategy
        assert isinstance(other, Feddle)
        assert other.search == search


BFLOAT16 = """
import sys
from pathlib import Path
from feddle.run.folder import run_config
from feddle.run.load import load_config
for name, precision, workers in (("inline", "bfloat16", 0), ("pool", "bfloat16", 2), ("exact", "float32", 0)):
    changes = [f"training.precision={precision}", f"workers={workers}", "device=cpu"]
    run_config(load_config(Path(sys.argv[1]), changes), Path(name), quiet=True)
"""


def test_bfloat16_is_bit_identical_with_any_number_of_workers(tiny_file: Path, tmp_path: Path) -> None:
    env = {
        "PYTHONWARNINGS": "error",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    }  # read before torch's first matrix product
    done = run_process(*PYTHON, BFLOAT16, tiny_file, env=env, cwd=tmp_path)
    if "bfloat16 does not run" in done.err:
        skip_without_bfloat16()
    assert done.code == 0, done.err
    inline, pool, exact = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("inline", "pool", "exact"))
    assert inline == pool != exact


def test_a_cpu_that_crashes_with_bfloat16_is_reported_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(training={"precision": "bfloat16"}, workers=0, device="cpu")
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\nkill -ILL $$\n")
    crashing.chmod(0o755)
    require_bfloat16.cache_clear()
    for python, cause in ((str(crashing), "ended with SIGILL"), (shutil.which("false"), "failed: exit code 1")):
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(FeddleError, match=cause) as caught:
            run_config(config, tmp_path / "run", quiet=True)
        assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment" in str(caught.value)
        assert "or set training.precision: float32" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    trainer = simulated(config, build_problem(config)).runtime.trainer
    assert isinstance(trainer, InlineTrainer)
    assert isinstance(trainer.work, ClientWork)
    assert trainer.work.recipe.precision == "bfloat16"
    require_bfloat16.cache_clear()


def strategy_of(**method: Any) -> Any:
    config = tiny(method=method)
    return simulated(config, build_problem(config)).server.strategy


def test_options_reach_the_other_methods() -> None:
    fedasync = strategy_of(name="fedasync", alpha=0.9, exponent=0.1)
    assert (fedasync.options.alpha, fedasync.options.exponent) == (0.9, 0.1)
    ca2fl = strategy_of(name="ca2fl", buffer_size=3, lr=0.5)
    assert (ca2fl.options.buffer_size, ca2fl.options.lr, ca2fl.state.cache.clients) == (3, 0.5, 20)
    fadas = strategy_of(name="fadas", buffer_size=3, lr=0.5, beta1=0.1, beta2=0.2, epsilon=0.3, delay_threshold=4)
    assert (fadas.options.buffer_size, fadas.options.lr, fadas.options.delay_threshold) == (3, 0.5, 4)
    assert (fadas.options.beta1, fadas.options.beta2, fadas.options.epsilon) == (0.1, 0.2, 0.3)
    center = strategy_of(name="center", lr=0.5, epochs=7, batch_size=3)
    assert (center.recipe, center.rounds) == (Recipe(lr=0.5, epochs=7, batch_size=3), 4)
    tuned = strategy_of(name="fed+ft", base={"name": "fedbuff", "buffer_size": 3}, lr=0.5, epochs=7, batch_size=3)
    assert (tuned.recipe, tuned.base.options.buffer_size) == (Recipe(lr=0.5, epochs=7, batch_size=3), 3)
    assert strategy_of(name="fed+ft", base={"late": "add_deltas"}).base.options.late == "add_deltas"
    hfcl = strategy_of(name="hfcl", late="average_models")
    assert (hfcl.options.late, hfcl.recipe) == ("average_models", Recipe(epochs=1))
    feddf = strategy_of(name="feddf", late="add_deltas", lr=0.5, epochs=7, temperature=3, average="losses", patience=2)
    assert (feddf.options.late, feddf.recipe) == ("add_deltas", Recipe(lr=0.5, epochs=7))
    assert (feddf.options.temperature, feddf.options.average, feddf.options.patience) == (3.0, "losses", 2)
    convex = strategy_of(name="convex", lr=0.5, epochs=7, batch_size=3)
    assert (convex.options.lr, convex.options.epochs, convex.options.batch_size) == (0.5, 7, 3)
    assert strategy_of(name="median", lr=0.5).options.lr == 0.5
    calibrated = strategy_of(name="feddle", anchors="calibrated").anchors
    assert isinstance(calibrated, CalibratedAnchors)


def test_the_papers_rule_is_the_best_of_the_last_five_evaluations() -> None:
    run = simulated(tiny(workers=0), build_problem(tiny()))
    run.history = [{"accuracy": a, "bytes_up": 0, "bytes_down": 0} for a in (0.9, 0.1, 0.3, 0.5, 0.2, 0.4)]
    assert (run.result["accuracy"], run.result["last_accuracy"]) == (0.5, 0.4)


def test_a_run_cannot_be_repeated(tmp_path: Path) -> None:
    run = run_config(tiny(rounds=1), tmp_path / "run", quiet=True)
    with pytest.raises(FeddleError, match="create a new one"):
        run.go()


def test_a_full_disk_is_reported_in_one_line_and_the_result_is_kept(tiny_file: Path) -> None:
    # the model does not fit in 2 KB, the result does: as if the disk had filled up at the end
    out = tiny_file.parent / "run"
    run = f"{shlex.join(FEDDLE)} run {tiny_file} -q -o rounds=1 -o method=fedavg --out {out}"
    full = run_process("bash", "-c", f"ulimit -f 2; {run}")
    assert (full.code, full.err.count("\n")) == (2, 1), full.err
    assert f"cannot write to {out}: File too large; to continue once that is fixed: feddle resume {out}" in full.err
    kept = json.loads((out / "result.json").read_text())
    assert (kept["rounds"], kept["finished"]) == (1, False), "the model is missing"
    assert run_feddle("resume", out, "-q").code == 0
    assert json.loads((out / "result.json").read_text()) == {**kept, "finished": True, "seconds": ANY}
    assert load_file(out / "model.safetensors")


def test_all_methods_have_the_same_clients_delays_and_first_model() -> None:
    runs = [simulated(tiny(method=m), build_problem(tiny(method=m))) for m in ("feddle", "fedbuff", "fedavg")]
    assert all(torch.equal(r.server.model.vector, runs[0].server.model.vector) for r in runs)
    for run in runs:
        run.go()
    assert len({tuple(line["bytes_up"] for line in r.history) for r in runs}) == 1


@patient
def test_ctrl_c_ends_the_run_cleanly_and_keeps_its_rounds(tmp_path: Path, tiny_file: Path) -> None:
    out = tmp_path / "run"
    # a shell starts background jobs with SIGINT ignored, and children inherit that, so the handler is reset here
    running = subprocess.Popen(
        [*FEDDLE, "run", tiny_file, "-o", "rounds=100000", "--out", out],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    history = out / "history.jsonl"
    wait_until(lambda: history.exists() and history.stat().st_size, "a round", out)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=LIMIT)
    assert running.returncode == 130
    assert "Traceback" not in stderr
    assert f"the rounds so far are in {out}; to continue: feddle resume {out}\n" in stderr
    result = json.loads((out / "result.json").read_text())
    assert not result["finished"]
    assert result["rounds"] == len((out / "history.jsonl").read_text().splitlines()) > 0
    assert load_file(out / "model.safetensors")


def test_a_run_that_diverges_keeps_its_history(tmp_path: Path) -> None:
    with pytest.raises(FeddleError, match="diverged"):
        run_config(tiny(method={"search": {"lr": 1e30}}), tmp_path / "run", quiet=True)
    assert not json.loads((tmp_path / "run" / "result.json").read_text())["finished"]


# --- the library


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(points)
        return logits


def cloud(count: int, seed: int) -> TensorDataset:
    points = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points.prod(1) > 0).long())


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = Path("README.md").read_text().split("```python\n")[1].split("```")[0]
    torch.manual_seed(0)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102  # the README of this repository
    accuracy, coefficients = capsys.readouterr().out.split(" ", 1)
    assert float(accuracy) > 0.85
    assert len(json.loads(coefficients)) == 10


def test_a_custom_model_and_custom_data() -> None:
    model, clients = Net(), [cloud(20 + i, seed=i) for i in range(12)]
    run = feddle.simulate(
        model, clients, server=cloud(100, 98), test=cloud(500, 99), rounds=30, per_round=4, delays={"sigma": 1.0}
    )
    assert run.result["accuracy"] > 0.8
    assert run.problem.model is model
    with torch.no_grad():
        points, labels = cloud(500, 99).tensors
        assert (model.eval()(points).argmax(1) == labels).sum().item() == 500 * run.result["last_accuracy"]


@with_a_model
def test_every_method_trains_a_model_with_batchnorm(method: str) -> None:
    torch.manual_seed(0)
    # 17 examples in batches of 16: a last batch of one, which BatchNorm cannot train on, is left out
    clients, training = [cloud(17, seed=i) for i in range(6)], {"batch_size": 16, "epochs": 2}
    run = feddle.simulate(
        Net(), clients, server=cloud(33, 98), per_round=3, rounds=6, method=method, training=training, workers=0
    )
    model = run.server.model
    assert bool(model.vector.isfinite().all())
    mean, variance = model.buffers[:16], model.buffers[16:]
    assert bool((variance > 0).all())
    assert bool(mean.any()), "the statistics were learnt"


def test_a_custom_method() -> None:
    class Latest:
        """Take the last arrival's model."""

        def merge(self, model: feddle.Weights, arrivals: Any, round: int) -> feddle.Merged:  # noqa: ARG002
            for a in arrivals:
                model = feddle.Weights(a.start.vector + a.update.delta, a.update.buffers)
            return feddle.Merged(model, {"taken": len(arrivals)})

    run = feddle.simulate(Net(), [cloud(50, i) for i in range(4)], per_round=2, rounds=3, strategy=Latest())
    assert run.result["finished"]
    assert run.result["method"] == "Latest"
    assert [line["taken"] for line in run.history] == [line["arrivals"] for line in run.history]
    assert run.result["accuracy"] is None


def test_the_library_reports_errors_in_one_line() -> None:
    with pytest.raises(FeddleError, match=r"simulate: unknown key 'ronds'; did you mean 'rounds'\?"):
        feddle.simulate(Net(), [cloud(5, 0)], per_round=1, ronds=3)
    with pytest.raises(FeddleError, match="per_round is 10, but count is 1"):
        feddle.simulate(Net(), [cloud(5, 0)])
    with pytest.raises(FeddleError, match="expected a map-style torch Dataset"):
        feddle.simulate(Net(), [[1, 2]], per_round=1)  # type: ignore[list-item]
    assert not hasattr(feddle, "nothing")


# --- the command line


def test_compare_runs_each_method_and_writes_a_page(tiny_file: Path) -> None:
    out = tiny_file.parent / "all"
    done = run_feddle("compare", tiny_file, "--out", out)
    assert done.code == 0, done.err
    for method in ("feddle", "fedbuff", "fedavg"):
        assert method in done.out
        assert (out / method / "result.json").exists()
    assert f"Report: {out / 'report.html'}" in done.out
    assert "accuracy" in done.err, "progress goes to stderr"
    saved = load_config(out / "feddle" / "config.yaml").method
    assert isinstance(saved, FeddleOptions)
    assert saved.search == PaperSearch(epochs=1), "the file's own method keeps its options"


def test_compare_checks_before_it_trains(tiny_file: Path) -> None:
    out = tiny_file.parent / "all"
    (out / "fedavg").mkdir(parents=True)
    refused = run_feddle("compare", tiny_file, "--out", out)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "is not empty (it holds fedavg)" in refused.err
    assert not (out / "feddle").exists()
    none = run_feddle("compare", tiny_file, "--methods", " , ")
    assert (none.code, none.err.count("\n")) == (2, 1)
    twice = run_feddle("compare", tiny_file, "--methods", "fedavg,fedavg", "--out", out / "twice", "-o", "rounds=1")
    assert twice.code == 0, twice.err


def test_run_creates_a_new_folder_each_time(tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_file.parent)
    for _ in range(2):
        assert run_feddle("run", tiny_file, "-o", "rounds=1", "--seed", "7", "-q").code == 0
    assert sorted(p.name for p in (tiny_file.parent / "runs").iterdir()) == ["tiny-feddle-seed7", "tiny-feddle-seed7-2"]


def test_listing_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path))
    listed = run_feddle("methods").out
    assert all(name in listed for name in ("feddle", "fedbuff", "fedavg"))
    schema = json.loads(run_feddle("schema").out)
    assert schema["additionalProperties"] is False
    assert {"method", "data", "model"} <= schema["properties"].keys()
    assert "fashion-mnist" in run_feddle("data", "list").out
    assert run_feddle("data", "fetch", "digits", "-q").out.strip() == str(tmp_path / "digits.safetensors")


LONG = "x" * 130_000  # Linux takes at most 131,072 bytes in one argument


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (["report", LONG], "/grid.json"),
        (["run", f"{LONG}.yaml"], ".yaml"),
        (["data", "fetch", LONG], "images, npz, huggingface"),
        (["reproduce", LONG], "shows all tables"),
        (["reproduce", "async-sync", "--cells", LONG], "fedavg-waiting"),
        ([LONG], "x'."),
        (["federation", "watch", "a\nb\x1b[2J\udcff"], "but there is no such folder; check the path"),
    ],
)
def test_an_error_is_one_printable_line_and_keeps_its_end(arguments: list[str], end: str) -> None:
    refused = run_feddle(*arguments)
    assert (refused.code, refused.out) == (2, "")
    line = refused.err.removesuffix("\n")
    assert line.startswith("feddle: ")
    assert line.endswith(end)
    assert line.isprintable()
    assert len(line) < 1100


def test_a_nul_from_yaml_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text('data: {name: csv, path: "a\\0b"}')
    assert run_feddle("run", tmp_path / "c.yaml").err == (
        "feddle: data.name is csv, but there is no regular file a\\x00b to read the data from; correct data.path, "
        "or set data.name to one of csv, images, npz, huggingface\n"
    )


def test_warnings_of_libraries_never_precede_an_error(tmp_path: Path) -> None:
    # a reader that emits a warning, as libraries do, before it opens the file
    code = """
import sys, warnings
import feddle.cli.main, feddle.run.load
read = feddle.run.load.read_yaml
def read_with_a_warning(path):
    warnings.warn("from a library")
    return read(path)
feddle.run.load.read_yaml = read_with_a_warning
sys.argv = ["feddle", "run", *sys.argv[1:]]
feddle.cli.main.main()
"""
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump({**TINY, "rounds": 1, "workers": 0}))
    fine = run_process(*PYTHON, code, config, "-q", "--out", tmp_path / "fine")
    assert fine.code == 0, fine.err
    assert fine.err == "feddle: warning: UserWarning: from a library\n"
    broken = run_process(*PYTHON, code, tmp_path / "missing.yaml", "-q")
    assert (broken.code, broken.err.count("\n")) == (2, 1)
    assert broken.err.startswith(f"feddle: no config file {tmp_path / 'missing.yaml'}")
    shown = run_process(*PYTHON, code, tmp_path / "missing.yaml", "-q", env={"PYTHONWARNINGS": "default"})
    assert "UserWarning: from a library" in shown.err
    assert shown.err.endswith(broken.err)


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, feddle.cli.main as m; m.app(['--help'], standalone_mode=False); assert 'torch' not in sys.modules"
    )
    assert run_process(*PYTHON, code).code == 0


def test_validation_images_come_from_the_clients_and_not_from_the_server() -> None:
    tree: dict[str, Any] = {**TINY, "data": {**TINY["data"], "server": {"samples": 100}}}
    plain = build_problem(parse_config(tree))
    split = build_problem(parse_config(with_value(tree, ["data", "validation"], 200)))
    assert split.test is not None
    assert plain.server is not None
    assert split.server is not None
    assert len(split.test) == 200
    assert int(split.sizes.sum()) == int(plain.sizes.sum()) - 200
    every = torch.arange(100)
    assert torch.equal(split.server.take(every)[0], plain.server.take(every)[0])


def test_validation_must_leave_images_for_the_clients() -> None:
    tree = {**TINY, "data": {**TINY["data"], "validation": 5000}}
    with pytest.raises(
        FeddleError, match=r"data\.validation must be less than the 1438 images that it is taken from, got 5000"
    ):
        build_problem(parse_config(tree))
