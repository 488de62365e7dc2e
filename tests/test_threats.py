"""Poisoned clients, a server with wrong labels, and clients that add noise."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import feddle
from command import run_feddle
from feddle.clients.attacks import FlippedLabels, Mixed, draw_attackers, randomised, scaled
from feddle.clients.private import PrivateWork
from feddle.clients.work import Work
from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.core.privacy import clip, epsilon, privatise, secret_normal
from feddle.core.seeds import torch_generator
from feddle.reading import read_run
from feddle.report.setting import remarks, setting
from feddle.run.folder import run_config
from feddle.run.plan import Config
from feddle.run.problem import build_problem
from feddle.run.run import Run
from feddle.run.simulate import simulated
from feddle.runtimes.simulation import InlineTrainer, Simulation
from three_numbers import close, weights
from tiny import tiny

START = weights(0.0, 0.0, 0.0)
JOB = Job(1, 0, 0)


def honest(job: Job, _: Weights) -> Update:
    return Update(job, torch.tensor([1.0, 2.0, -2.0]), torch.zeros(0), 7, {"loss": 0.5}, "layout")


# --- attacks


def test_scaled_and_flipped_updates_differ_only_in_delta() -> None:
    update = scaled(honest(JOB, START), -2.0)
    assert close(update.delta, -2.0, -4.0, 4.0)
    assert replace(update, delta=START.vector).__dict__ | {"buffers": None} == (
        replace(honest(JOB, START), delta=START.vector).__dict__ | {"buffers": None}
    )


def test_a_random_direction_is_as_long_as_the_honest_update() -> None:
    one, again, other = (randomised(honest(job, START), seed=0) for job in (JOB, JOB, Job(1, 1, 0)))
    assert torch.linalg.vector_norm(one.delta).item() == pytest.approx(3.0)  # √(1 + 4 + 4)
    assert torch.equal(one.delta, again.delta)
    assert not torch.equal(one.delta, other.delta)


def test_labels_are_flipped_over_the_classes_that_the_model_knows() -> None:
    outputs = torch.randn(3, 4, generator=torch_generator(0))
    flipped = FlippedLabels(F.cross_entropy)(outputs, torch.tensor([0, 1, 3]))
    assert torch.equal(flipped, F.cross_entropy(outputs, torch.tensor([3, 2, 0])))
    with pytest.raises(FeddleError, match="label-flip needs class numbers"):
        FlippedLabels(F.mse_loss)(outputs, torch.zeros(3))


def test_attackers_are_a_share_of_those_with_data_and_depend_on_the_seed_alone() -> None:
    eligible = torch.arange(0, 1000, 2)
    attackers = draw_attackers(eligible, 0.3, seed=0)
    assert len(attackers) == 150
    assert attackers <= set(eligible.tolist())
    assert attackers == draw_attackers(eligible, 0.3, seed=0) != draw_attackers(eligible, 0.3, seed=1)
    assert draw_attackers(eligible, 0.1, seed=0) < attackers, "a larger share adds attackers"
    assert not draw_attackers(eligible, 0.0, seed=0)


def work_of(config: Config) -> Work:
    trainer = simulated(config.model_copy(update={"workers": 0}), build_problem(config)).runtime.trainer
    assert isinstance(trainer, InlineTrainer)
    return trainer.work


@pytest.mark.parametrize("name", ["sign-flip", "scale", "random", "label-flip"])
def test_only_the_attackers_updates_are_poisoned(name: str) -> None:
    config = tiny(attack={"name": name, "share": 0.3})
    federation = build_problem(config)
    run = simulated(config, federation)
    poisoned, clean = work_of(config), work_of(tiny())
    assert isinstance(poisoned, Mixed)
    assert len(poisoned.attackers) == 6  # 30 % of 20, who all have data
    for client in range(20):
        job = Job(client, 0, 0)
        sent, true = (work(job, run.server.model).delta for work in (poisoned, clean))
        if client not in poisoned.attackers:
            assert torch.equal(sent, true)
            continue
        lengths = [torch.linalg.vector_norm(d).item() for d in (sent, true)]
        cosine = float(F.cosine_similarity(sent, true, dim=0))
        match name:
            case "sign-flip":
                assert torch.equal(sent, -true)
            case "scale":
                assert torch.equal(sent, true * 10)
            case "random":
                assert lengths[0] == pytest.approx(lengths[1], rel=1e-4)
                assert abs(cosine) < 0.2
            case _:
                assert 1 / 3 < lengths[0] / lengths[1] < 3
                assert cosine < 0.9


@pytest.mark.parametrize("name", ["sign-flip", "scale", "random", "label-flip"])
def test_attacks_are_bit_identical_with_any_number_of_workers_and_are_reported(tmp_path: Path, name: str) -> None:
    attack = {"name": name, "share": 0.3}
    runs = [run_config(tiny(attack=attack, workers=w), tmp_path / str(w), quiet=True) for w in (0, 2)]
    assert torch.equal(runs[0].server.model.vector, runs[1].server.model.vector)
    clean = simulated(tiny(), build_problem(tiny()))
    clean.go()
    assert not torch.equal(runs[0].server.model.vector, clean.server.model.vector)
    assert runs[0].result["attack"]["name"] == name
    assert clean.result["attack"] is None
    assert f"{name} attack" in setting([read_run(tmp_path / "0")])
    assert "by 30 % of the clients" in setting([read_run(tmp_path / "0")])


def test_wrong_labels_at_the_server_do_not_change_other_labels() -> None:
    def labels(config: Config) -> list[torch.Tensor]:
        federation = build_problem(config)
        assert federation.server is not None
        assert federation.test is not None
        parts: Sequence[Any] = [federation.server, federation.test, *federation.clients]
        return [part.take(torch.arange(len(part)))[1] for part in parts]

    data = tiny().data.model_dump()
    noisy = tiny(data={**data, "server": {"samples": 100, "label_noise": 0.2}})
    (server, *others), (clean, *same) = labels(noisy), labels(tiny())
    assert int((server != clean).sum()) == 20
    assert all(torch.equal(a, b) for a, b in zip(others, same, strict=True))


def test_a_refused_update_ends_its_job_in_a_simulation_and_is_counted(tmp_path: Path) -> None:
    # attackers send 10⁶ times their update; they are refused once 20 updates determine the bound
    config = tiny(attack={"name": "scale", "share": 0.1, "factor": 1e6}, rounds=16, method="fedbuff")
    run = run_config(config, tmp_path / "run", quiet=True)
    assert run.result["refused"]["too long"] > 0
    assert len(run.server.in_flight) == len(run.runtime.state.queue)
    shown = run_feddle("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert f"fedbuff: updates refused: too long ({run.result['refused']['too long']})\n" in shown.out
    honest = run_config(tiny(rounds=16, method="fedbuff"), tmp_path / "honest", quiet=True)
    assert not honest.result["refused"]


# --- privacy


def test_clipping() -> None:
    assert close(clip(torch.tensor([3.0, 4.0]), 1.0), 0.6, 0.8)
    assert close(clip(torch.tensor([0.3, 0.4]), 1.0), 0.3, 0.4)
    assert close(clip(torch.zeros(2), 1.0), 0.0, 0.0)
    assert close(clip(torch.tensor([1e30, 0.0]), 2.0), 2.0, 0.0)
    for bad in (float("nan"), float("inf")):
        assert close(clip(torch.tensor([bad, 1.0]), 1.0), 0.0, 0.0), "the result is never longer than the bound"


def test_noise_is_normal_with_deviation_zc_in_each_coordinate() -> None:
    delta = torch.zeros(200_000)
    delta[0] = 50.0
    noise = privatise(delta, 2.0, 1.5, torch_generator(0)) - clip(delta, 2.0)
    assert noise.std().item() == pytest.approx(3.0, rel=0.01)  # zC = 1.5 · 2
    assert noise.mean().item() == pytest.approx(0.0, abs=0.03)
    assert (noise.abs() < 3.0).float().mean().item() == pytest.approx(0.683, abs=0.005)


@pytest.mark.parametrize("generator", [None, torch_generator(0)])
def test_a_private_update_is_clipped(generator: torch.Generator | None) -> None:
    sent = privatise(torch.tensor([30.0, -40.0]), 1.0, 1e-9, generator)
    assert close(sent, 0.6, -0.8)


def test_noise_without_a_generator_is_normal_and_never_repeats() -> None:
    one, other = (secret_normal(200_001) for _ in range(2))
    assert one.shape == (200_001,)
    assert not torch.equal(one, other)
    assert one.std().item() == pytest.approx(1.0, rel=0.01)
    assert one.mean().item() == pytest.approx(0.0, abs=0.01)
    assert (one.abs() < 1.0).double().mean().item() == pytest.approx(0.683, abs=0.005)
    assert (one.abs() < 2.0).double().mean().item() == pytest.approx(0.954, abs=0.005)
    halves = torch.corrcoef(torch.stack([one[:100_000], one[100_001:]]))
    assert abs(halves[0, 1].item()) < 0.02, "the two numbers of a pair are uncorrelated"


def test_a_private_client_sends_a_noisy_update_and_nothing_else_of_its_data() -> None:
    work = PrivateWork(honest, 1.0, 0.5, seed=0)
    one, again, other = work(JOB, START), work(JOB, START), work(Job(1, 1, 0), START)
    assert torch.equal(one.delta, again.delta)
    assert not torch.equal(one.delta, other.delta)
    assert (one.num_examples, one.metrics, one.digest) == (1, {}, "layout")


@pytest.mark.parametrize(("updates", "z", "delta"), [(1, 1.0, 1e-5), (7, 1.0, 1e-5), (3, 5.0, 1e-6), (5, 0.1, 1e-5)])
def test_epsilon_is_exact_for_composed_gaussians(updates: int, z: float, delta: float) -> None:
    got = epsilon(updates, z, delta)

    # Balle and Wang 2018: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), here with μ = √k/z
    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    mu = math.sqrt(updates) / z
    tail = phi(-mu / 2 - got / mu)
    assert phi(mu / 2 - got / mu) - (math.exp(got + math.log(tail)) if tail else 0.0) == pytest.approx(delta, rel=1e-3)
    rho = updates / (2 * z**2)  # zero-concentrated: ε ≤ ρ + 2√(ρ ln 1/δ)
    assert got < rho + 2 * math.sqrt(rho * math.log(1 / delta))
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(z), updates)
    assert 0.8 * accountant.get_epsilon(delta) < got <= accountant.get_epsilon(delta)


def test_epsilon_of_known_cases() -> None:
    assert epsilon(1, 1.0, 1e-5) == pytest.approx(4.377, abs=0.001)
    assert epsilon(4, 2.0, 1e-5) == pytest.approx(epsilon(1, 1.0, 1e-5)), "k updates at z are one at z/√k"
    assert epsilon(0, 1.0, 1e-5) == 0.0
    assert math.isfinite(epsilon(10**6, 1e-4, 1e-300))
    assert epsilon(1, 1e4, 0.5) == 0.0


@pytest.mark.parametrize("method", ["feddle", "fedavg"])
def test_a_private_run_is_reproducible_and_reports_its_epsilon(tmp_path: Path, method: str) -> None:
    privacy = {"clip": 0.5, "noise_multiplier": 2.0, "delta": 1e-6}
    runs = [run_config(tiny(privacy=privacy, method=method, workers=w), tmp_path / str(w), quiet=True) for w in (0, 2)]
    assert torch.equal(runs[0].server.model.vector, runs[1].server.model.vector)
    most = max(runs[0].server.state.jobs_of.values())
    assert runs[0].result["privacy"] == {
        "unit": "client",
        "updates": most,
        "epsilon": epsilon(most, 2.0, 1e-6),
        "delta": 1e-6,
    }
    assert all(line["loss"] is None for line in runs[0].history), "the loss is the clients' data too"
    assert any(remark.startswith("privacy spent: ε = ") for remark in remarks(read_run(tmp_path / "0")))


def test_diagnostics_measure_what_clients_would_send_and_spend_no_privacy() -> None:
    def finished(**changes: Any) -> Run[Simulation]:
        run = simulated(tiny(workers=0, **changes), build_problem(tiny()))
        run.go()
        return run

    threats: dict[str, Any] = {"attack": {"name": "sign-flip", "share": 0.3}, "privacy": {"noise_multiplier": 10.0}}
    look: dict[str, Any] = {"diagnostics": {"every": 2, "clients": 20}}
    plain, looked, clean = finished(**threats), finished(**threats, **look), finished(**look)
    assert torch.equal(plain.server.model.vector, looked.server.model.vector)
    assert plain.result["privacy"] == looked.result["privacy"]
    assert looked.history[1]["update_cosine"]["max"] < 0.2 < clean.history[1]["update_cosine"]["max"], "it is all noise"


def test_running_statistics_are_not_protected_so_they_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
    with pytest.raises(FeddleError, match=r"running statistics \(1\.running_mean\); use a model without BatchNorm"):
        feddle.simulate(model, [data], per_round=1, rounds=1, method="fedbuff", privacy={}, workers=0)


def test_without_the_accountant_a_private_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    simulated(tiny(), build_problem(tiny()))
    with pytest.raises(FeddleError, match=r"pip install 'feddle\[privacy\]'"):
        simulated(tiny(privacy={}), build_problem(tiny()))
