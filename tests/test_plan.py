"""`feddle plan`: examples worked out by hand, properties, and one real run that is compared with its estimate."""

import json
import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from command import run_feddle
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.data.datasets import Contents
from feddle.grids import estimate as grid_estimate
from feddle.grids.estimate import core_seconds
from feddle.methods.fedasync import FedAsync, FedAsyncOptions
from feddle.methods.fedavg import FedAvg, FedAvgOptions
from feddle.methods.options import AnyMethod
from feddle.methods.strategy import cost_of, max_staleness
from feddle.models.options import ModelOptions
from feddle.run.checkpoint import Checkpoint
from feddle.run.estimate import Held, Sizes, Time, checkpoint_rounds, setting_of
from feddle.run.folder import run_config
from feddle.run.forecast import forecast, forecast_on_paper, subject_of
from feddle.run.load import parse_config
from feddle.run.measure import Measured, Speed, measure
from feddle.run.plan import Config
from feddle.run.problem import build_problem
from feddle.run.simulate import simulated
from feddle.run.traffic import Scheduled, delay_shares, expected, none, replayed
from feddle.run.wall import Walked, walk
from feddle.runtimes.simulation import Delays, InlineTrainer, Simulation
from feddle.server import Server
from feddle.training.train import Recipe
from test_text import text_model
from tiny import TINY, tiny


def simulation(clients: int, per_round: int, delays: Delays, *, discards: bool = False, seed: int = 0) -> Simulation:
    """A simulation that is only replayed, so it needs no data."""
    strategy = FedAvg(FedAvgOptions()) if discards else FedAsync(FedAsyncOptions())
    server = Server(Weights(torch.zeros(1), torch.zeros(0)), strategy)
    return Simulation(server, InlineTrainer(_no_work), delays, np.arange(clients), per_round, seed)


def _no_work(job: Job, start: Weights) -> Update:
    raise AssertionError(f"a plan trains nothing, but was asked for {job} from {start}")


def paper(*overrides: str, sizes: Sizes = Sizes(3, 2)) -> dict[str, float]:  # noqa: B008 - frozen
    """An estimate on paper, as a flat table."""
    made = forecast_on_paper(parse_config({}, overrides), sizes, None).estimate
    return {**vars(made.network), **vars(made.space)}


# Worked out by hand

THREE = ("rounds=3", "clients.count=10", "clients.per_round=2", "delays.sigma=0")


def test_three_numbers_on_paper() -> None:
    # Three numbers and two running statistics are (3 + 2) × 4 = 20 bytes. Three rounds of two clients are 6 jobs.
    found = paper(*THREE, "method=fedbuff")
    assert (found["updates"], found["bytes_up"], found["bytes_down"]) == (6, 120, 120)
    assert (found["in_flight"], found["pinned"]) == (2, 1)
    # At the server 1 model, 1 pinned version, 2 arrivals, 1 buffer and 2 in the merge: 7 vectors of 12 bytes. At a
    # client start, model, gradient, result and two moments of Adam: 6.
    assert (found["server"], found["client"]) == (84, 72)
    # Two checkpoints: 2 × (1 model + 1 buffer) + 2 pinned versions, each of 20 bytes.
    assert found["checkpoint"] == 120


def test_the_estimate_of_feddle_includes_its_atlas() -> None:
    # 6 updates fill all 2 × 2 anchors: 4 vectors instead of 1, and 5 in the merge instead of 2.
    assert paper(*THREE)["server"] == 84 + 12 * 6
    assert paper(*THREE, "method.storage=int8")["server"] == 84 + 12 * 3
    assert paper(*THREE, "method.atlas_size=3")["server"] == 84 + 12 * 5
    assert paper(*THREE, "method.atlas_size=300")["server"] == 84 + 12 * 8, "a larger atlas is not filled"
    assert paper(*THREE, "training.optimizer=sgd")["client"] == 48
    assert paper(*THREE, "checkpoint.every=0")["checkpoint"] == 0


def test_a_cache_above_its_limit_is_in_a_file() -> None:
    small, large = (paper(*THREE, "method=ca2fl", f"method.cache_limit={mb}") for mb in (1, 1e-6))
    assert small["cache_file"] == 0
    assert large["cache_file"] > 0
    assert small["server"] > large["server"]


def test_the_shares_of_delays() -> None:
    # P(|x| < 1) = 68.3 % and P(|x| < 2) = 95.4 % of a normal distribution
    assert delay_shares(1.0, 100)[:2] == pytest.approx([0.6827, 0.2718], abs=1e-4)
    assert delay_shares(0.0, 100).tolist() == [1.0]
    assert delay_shares(1.0, 1) == pytest.approx([0.6827, 0.3173], abs=1e-4), "the last share has the rest"


def test_a_version_is_pinned_until_its_last_job_has_arrived() -> None:
    # Without delays, jobs return in the round in which they start: only the current version is pinned.
    assert expected(10, 2, 50, Delays(sigma=0)).pinned == 1
    # With one of many clients per round, a version is pinned as long as its one job is in flight: 1 + mean delay, plus
    # two standard deviations at most.
    mean = float(np.arange(len(delay_shares(5.0, 500))) @ delay_shares(5.0, 500))
    assert 1 + mean < expected(10**6, 1, 500, Delays(sigma=5)).pinned < 1 + mean + 2 * math.sqrt(mean)


def test_the_time_of_a_job() -> None:
    # 70 examples are three batches of 32, twice: 1 + 2 × (3 × 0.1 + 70 × 0.01)
    assert Speed(1.0, 0.1, 0.01, 0, 0).job_of(70, Recipe(epochs=2, batch_size=32)) == pytest.approx(3.0)


JOBS = [Scheduled(0, 0, 0), Scheduled(1, 0, 1), Scheduled(2, 1, 1)]


def test_rounds_without_workers_add_up() -> None:
    assert walk(JOBS, [4, 2, 6], [1, 1], workers=0, cores=2, ahead=9) == Walked(14, 0)


def test_workers_train_while_the_server_merges() -> None:
    # Round 0: two workers take 2 s for the 4 s of job 0. In the merge of 1 s, one core trains half of job 1. Round 1:
    # the other 1 s of job 1 and the 6 s of job 2 take 3.5 s, and the merge 1 s.
    assert walk(JOBS, [4, 2, 6], [1, 1], workers=2, cores=2, ahead=9) == Walked(7.5, 0)
    # A longer merge leaves time to finish job 1, whose update then waits.
    assert walk(JOBS, [4, 2, 6], [3, 1], workers=2, cores=2, ahead=9) == Walked(9.0, 1)
    assert walk(JOBS, [4, 2, 6], [3, 1], workers=2, cores=2, ahead=0).waiting == 0


def test_checkpoints_are_a_minute_apart() -> None:
    hour = Time(3600, 0, 0, 0, 0)
    assert checkpoint_rounds(tiny(rounds=180), hour) == list(range(4, 180, 4))  # a round takes 20 s
    assert checkpoint_rounds(tiny(rounds=10, checkpoint={"every": 4}), hour) == [4, 8]
    assert checkpoint_rounds(tiny(rounds=10, checkpoint={"every": 0}), hour) == []
    assert checkpoint_rounds(tiny(rounds=10), Time(30, 0, 0, 0, 0)) == [], "a short run has none"


# Properties


@settings(max_examples=25, deadline=None, derandomize=True)  # one seed of a run is compared with a mean
@given(
    clients=st.integers(50, 400),
    per_round=st.integers(1, 20),
    rounds=st.integers(40, 120),
    sigma=st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    per=st.sampled_from(["client", "job"]),
)
def test_expected_traffic_is_near_a_replayed_one(
    clients: int, per_round: int, rounds: int, sigma: float, per: str
) -> None:
    delays = Delays.model_validate({"sigma": sigma, "per": per})
    real, mean = (
        replayed(simulation(clients, per_round, delays), rounds).traffic,
        expected(clients, per_round, rounds, delays),
    )
    spread = 4 * math.sqrt(real.dispatched)  # of counts
    for name in ("dispatched", "returned", "used"):
        assert getattr(mean, name) == pytest.approx(getattr(real, name), rel=0.1, abs=spread), name
    for name in ("pinned", "in_flight"):
        assert getattr(mean, name) == pytest.approx(getattr(real, name), rel=1 / 3, abs=6), name


def test_a_method_without_clients_sends_nothing() -> None:
    assert expected(10, 2, 5, Delays(), limit=-1) == none(5)


def test_late_updates_that_are_discarded_are_sent_but_not_trained() -> None:
    delays = Delays(sigma=5, per="job")
    schedule = replayed(simulation(200, 10, delays, discards=True), 100)
    assert all(job.due == job.start for job in schedule.jobs)
    assert len(schedule.jobs) == schedule.traffic.used < schedule.traffic.returned
    mean = expected(200, 10, 100, delays, limit=0)
    assert mean.used == pytest.approx(schedule.traffic.used, rel=0.2)
    assert mean.returned == pytest.approx(schedule.traffic.returned, rel=0.05)


def test_a_plan_of_a_million_clients() -> None:
    traffic = expected(10**6, 1000, 10**6, Delays(sigma=20))
    assert traffic.dispatched == pytest.approx(1e9)
    assert 0.9999 * traffic.dispatched < traffic.returned <= traffic.dispatched


def test_delays_that_are_too_long_for_an_estimate_are_refused() -> None:
    with pytest.raises(FeddleError, match="expected delays of at most 4000 rounds"):
        expected(10, 1, 10**6, Delays(sigma=1e5))


@pytest.mark.parametrize("name", [member.model_fields["name"].default for member in get_args(AnyMethod)])
def test_every_method_estimates_its_cost(name: str, tmp_path: Path) -> None:
    config = tiny(method=name)
    run = simulated(config, build_problem(config), scratch=tmp_path)
    schedule = replayed(run.runtime, config.rounds)
    setting = setting_of(config, schedule.traffic, Sizes(run.layout.size), Held(20, 72, 100, 259))
    cost = cost_of(config.method, setting)
    assert cost.known
    assert cost.max_staleness == max_staleness(run.server.strategy), "equal to that of the method itself"
    run.go()
    state = run.server.state_dict()
    kept = sum(t.nbytes for name, t in state.items() if name.startswith("strategy")) / (4 * run.layout.size)
    assert cost.kept + cost.cached == pytest.approx(kept, rel=1 / 3, abs=1.5), "vectors in the method's state"


def test_a_custom_method_is_not_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "still_there.py").write_text("class Same:\n    def merge(self, model, arrivals, round): ...\n")
    monkeypatch.chdir(tmp_path)
    result = run_feddle("plan", config_file(tmp_path), "--method", "still_there:Same", "-q")
    assert result.code == 0, result.err
    assert "What still_there:Same itself computes and keeps is not known" in result.out


# A real run


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("method", ["feddle", "ca2fl", "fedavg", "center"])
def test_a_real_run_sends_pins_and_saves_as_estimated(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(rounds=12, workers=0, method=method, delays={"sigma": 2.0}, checkpoint={"every": 3})
    config = Config.model_validate(
        {**config.model_dump(), "model": {"name": "cnn", "channels": [8, 8, 8], "hidden": 64}}
    )
    planned = forecast(config, 0.0, quiet=True).estimate
    pinned, saved, dispatch, tidy = [0], [0], Server.dispatch, Checkpoint.tidy

    def counting(self: Server, client: int) -> object:
        job = dispatch(self, client)
        pinned.append(len(self.state.pinned))
        return job

    def weighing(self: Checkpoint) -> None:
        saved.append(folder_size(self.folder))
        tidy(self)

    monkeypatch.setattr(Server, "dispatch", counting)
    monkeypatch.setattr(Checkpoint, "tidy", weighing)
    result = run_config(config, tmp_path / "run").result
    assert (planned.network.bytes_up, planned.network.bytes_down) == (result["bytes_up"], result["bytes_down"])
    assert planned.network.pinned == max(pinned)
    assert planned.space.checkpoint == pytest.approx(max(saved), rel=1 / 3)
    assert planned.time is not None
    assert planned.time.wall == pytest.approx(planned.time.cpu), "without workers, one core does everything"


def test_the_measurement_does_not_change_the_model() -> None:
    config = tiny()
    run = simulated(config, build_problem(config))
    before = run.layout.read(run.problem.model).vector
    speed = measure(subject_of(run, config)).speed
    assert min(speed.job, speed.batch, speed.example, speed.evaluated, speed.product) >= 0
    assert speed.trained() > 0
    assert torch.equal(run.layout.read(run.problem.model).vector, before)


# The estimate of grids


def test_the_time_of_a_cell_depends_on_its_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny(method="fedbuff", rounds=400)
    half = tiny(method="fedbuff", rounds=400, data={**TINY["data"], "classes": [0, 1, 2, 3, 4]})
    requested, measured = [], grid_estimate._measured

    def counting(model: ModelOptions, classes: int, size: int, channels: int, text: bool) -> tuple[int, Measured]:
        requested.append(classes)
        return measured(model, 10, size, channels, text)

    monkeypatch.setattr(grid_estimate, "_measured", counting)
    assert core_seconds(half) - 3 == pytest.approx((core_seconds(whole) - 3) / 2, rel=0.2)
    assert requested == [5, 10]


def test_the_time_of_a_cell_with_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"name": "transformers", "path": str(text_model(tmp_path / "model")), "length": 8}
    monkeypatch.setattr(grid_estimate, "contents_of", lambda _: Contents((), 100, 50, 2))
    assert core_seconds(tiny(model=model, method="fedbuff")) > 3


# The command


def config_file(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    result = run_feddle("plan", config_file(tmp_path), "--seed", "3")
    assert result.code == 0, result.err
    for label in ("CPU time", "memory of the run", "sent by clients", "pinned versions", "checkpoint on disk", "σ = 1"):
        assert label in result.out
    assert "measuring" in result.err
    assert list(tmp_path.iterdir()) == [tmp_path / "tiny.yaml"], "no file is written"


def test_the_command_prints_json(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    once = json.loads(run_feddle("plan", path, "--json", "-q").out)
    twice = json.loads(run_feddle("plan", path, "--json", "-q", "--rounds", "8", "-o", "delays.sigma=0").out)
    assert (once["rounds"], twice["rounds"]) == (4, 8)
    assert twice["network"]["updates"] == 40
    assert twice["network"]["bytes_up"] == 40 * 4 * (twice["parameters"] + twice["statistics"])
    assert once["time"]["cpu"] > 0


def test_a_million_clients_on_paper() -> None:
    arguments = ("--clients", "1e6", "--params", "1e7", "--per-round", "1000", "--rounds", "500", "--sigma", "20")
    result = run_feddle("plan", *arguments)
    assert result.code == 0, result.err
    assert "sent to clients" in result.out
    assert "20 TB" in result.out
    assert "there is no time" in result.out
    tree = json.loads(run_feddle("plan", *arguments, "--json", "--method", "fedbuff").out)
    assert tree["time"] is None
    assert tree["network"]["bytes_down"] == 500 * 1000 * 4e7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a CONFIG (a YAML file), --data with your own data, or --params"),
        (("--params", "1e6", "--rounds", "1e9"), "--rounds: input should be less than or equal to"),
        (("no.yaml",), "no config file"),
        (("--params", "x"), "expected a whole number from 1 to 1e12"),
        (("--params", "1.5"), "expected a whole number from 1 to 1e12"),
        (("--params", "1e6", "--method", "fedbuf"), "did you mean 'fedbuff'?"),
        (("--params", "1e6", "--clients", "5"), "lower per_round or raise count"),
        (("--params", "1e6", "--sigma", "-1"), "--sigma: input should be"),
        (("--params", "1e6", "--sigma", "1e6", "--rounds", "1e6"), "lower --sigma"),
        (("--params", "1e6", "tiny.yaml"), "leave one out"),
        (
            ("--params", "1e6", "--atlas-size", "100", "-o", "method.storage={name: disk, memory: 0.4}"),
            "method.storage: 0.4 MB of memory is not enough for 100 anchors; set memory to 0.41 or more",
        ),
        (("tiny.yaml", "--examples", "5"), "add --params"),
        (("tiny.yaml", "--method", "fedbuff", "--atlas-size", "5"), "atlas_size"),
        (("tiny.yaml", "-o", "rounds=x"), "-o rounds=x"),
        (("tiny.yaml", "-o", "data.name=femnist"), "femnist cannot be downloaded"),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "data"))
    result = run_feddle("plan", *arguments, "-q")
    assert result.code == 2, result.text
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not result.out
