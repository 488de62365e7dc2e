"""Metrics of classes, labels and numbers, per client and per class, and the comparison of runs by these metrics."""

import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, r2_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import feddle
from command import run_feddle
from feddle.cli.display import terminal_table
from feddle.core.errors import FeddleError
from feddle.core.metrics import ACCURACY, MAIN, main_metric, reached
from feddle.data.collection import NOBODY, Collection, Labelled, among_drawn, with_classes
from feddle.records import summary, worst_tenth
from feddle.report.grid import grid_of_runs
from feddle.report.joining import caveats, joined_methods, joining, untested
from feddle.report.numbers import binomial_interval, effective_count
from feddle.report.page import page
from feddle.report.warnings import warnings as found_warnings
from feddle.report.words import headline, lead
from feddle.run.census import census
from feddle.run.per_client import weighted
from feddle.run.problem import build_problem
from feddle.run.simulate import simulated
from feddle.training.metrics import confusion, details, label_f1, measured, task_of
from feddle.training.scorers import apply, scorers
from feddle.training.train import Score
from tiny import tiny

F1, MAE, LOSS = MAIN[1:]


def test_three_classes_by_hand() -> None:
    # True 0 0 0 1 1, predicted 0 0 1 1 0: 3 of 5; class 0 two of three, class 1 one of two, class 2 never occurs
    outputs, targets = torch.eye(3)[[0, 0, 1, 1, 0]], torch.tensor([0, 0, 0, 1, 1])
    found = measured("classes", outputs, targets)
    assert found == {"accuracy": 0.6, "balanced_accuracy": pytest.approx((2 / 3 + 1 / 2) / 2)}
    assert confusion(outputs, targets).tolist() == [[2, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert details("classes", outputs, targets)["accuracy"] == [pytest.approx(2 / 3), 0.5, None]


def test_auc_by_hand() -> None:
    # Scores of class 1: 1 and 2, of class 0: 0 and 1. Of four pairs three are in order and one is a tie: 3.5 of 4.
    outputs = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 0.0], [0.0, 1.0]])
    assert measured("classes", outputs, torch.tensor([1, 1, 0, 0]))["auc"] == 0.875
    assert "auc" not in measured("classes", outputs, torch.tensor([1, 1, 1, 1])), "one class has no ROC curve"


def test_three_numbers_by_hand() -> None:
    # Errors 1, 0, −2: mean absolute error 1. Targets 0, 3, 6 vary by 9 + 0 + 9 = 18 around their mean: R² = 1 − 5/18.
    outputs, targets = torch.tensor([[1.0], [3.0], [4.0]]), torch.tensor([0.0, 3.0, 6.0])
    assert measured("numbers", outputs, targets) == {"mae": 1.0, "r2": pytest.approx(13 / 18)}
    assert measured("numbers", outputs[:1], targets[:1]) == {"mae": 1.0}, "one number does not vary"
    assert measured("numbers", torch.zeros(3, 2), targets) == {}, "two parameters for each target"


def test_labels_by_hand() -> None:
    # Label 0: predicted 1 1 0, true 1 0 0: F1 = 2·1/(2 + 1) = 2/3. Label 1: neither. Five of six decisions are right.
    outputs, targets = torch.tensor([[1.0, -1], [1, -1], [-1, -1]]), torch.tensor([[1.0, 0], [0, 0], [0, 0]])
    assert measured("labels", outputs, targets) == {"f1": pytest.approx(2 / 3), "label_accuracy": pytest.approx(5 / 6)}
    assert details("labels", outputs, targets) == {
        "accuracy": [pytest.approx(2 / 3), 1],
        "f1": [pytest.approx(2 / 3), None],
    }


@given(st.integers(0, 10**6), st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_the_metrics_equal_those_of_scikit_learn(seed: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randint(-3, 4, (30, classes), generator=generator) / 2  # ties are likely
    targets = torch.cat([torch.arange(classes), torch.randint(classes, (30 - classes,), generator=generator)])
    found, predicted = measured("classes", outputs, targets), outputs.argmax(1)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(targets, predicted))
    assert confusion(outputs, targets).tolist() == confusion_matrix(targets, predicted, labels=range(classes)).tolist()
    if classes == 2:
        assert found["auc"] == pytest.approx(roc_auc_score(targets, outputs[:, 1] - outputs[:, 0]))
    labels = (torch.randn(30, classes, generator=generator) > 0).float()
    assert label_f1(outputs, labels).mean() == pytest.approx(f1_score(labels, outputs > 0, average="macro"))
    numbers = torch.randn(30, classes, generator=generator)
    assert measured("numbers", outputs, numbers)["r2"] == pytest.approx(r2_score(numbers, outputs))


CASES: dict[str, tuple[Tensor, Tensor, object, str]] = {
    "classes": (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), F.cross_entropy, "classes"),
    "probabilities": (torch.zeros(4, 3), torch.rand(4, 3), nn.CrossEntropyLoss(), "classes"),
    "numbers": (torch.zeros(4, 1), torch.rand(4, 1), F.mse_loss, "numbers"),
    "counts": (torch.zeros(4), torch.arange(4), F.mse_loss, "numbers"),
    "0 and 1 as numbers": (torch.zeros(4, 2), torch.eye(4)[:, :2], F.mse_loss, "numbers"),
    "labels": (torch.zeros(4, 2), torch.eye(4)[:, :2], nn.BCEWithLogitsLoss(), "labels"),
    "weighted labels": (
        *(torch.zeros(4, 2), torch.eye(4)[:, :2]),
        partial(F.binary_cross_entropy_with_logits, pos_weight=torch.ones(2)),
        "labels",
    ),
    "soft labels": (torch.zeros(4, 2), torch.full((4, 2), 0.3), F.binary_cross_entropy_with_logits, "numbers"),
}


@pytest.mark.parametrize("kind", CASES)
def test_targets_and_loss_determine_the_task(kind: str) -> None:
    outputs, targets, loss, task = CASES[kind]
    assert task_of(outputs, targets, loss) == task


def test_a_lower_error_is_better() -> None:
    history: Any = [{"round": at, "mae": value} for at, value in enumerate((0.1, 3.0, 2.0, 4.0, 5.0, 6.0), 1)]
    assert summary(history)["mae"] == 2.0, "the lowest of the last five, not of all"
    assert "accuracy" not in summary(history)
    assert (summary([])["accuracy"], summary([])["metric"]) == (None, "accuracy")
    assert MAE.worst_tenth([1.0, 9.0, *[2.0] * 9]) == 5.5, "the two highest of eleven"
    assert ACCURACY.worst_tenth([0.1, 0.9, 0.5]) == 0.1
    assert [metric.shown(0.1234) for metric in (ACCURACY, F1, MAE, LOSS)] == ["12.3%", "12.3%", "0.123", "0.123"]
    assert main_metric([{"test_loss": 1.0}]) == LOSS
    assert (reached({"round": 1}), reached({"mae": 0.5, "test_loss": 1})) == ("", "mean absolute error 0.5")


def test_the_accuracy_of_classes_is_weighted_by_the_classes_of_a_client() -> None:
    # Three images of class 0 and one of class 1: (3·0.8 + 1·0.4) / 4 = 0.7. Class 2 has no test image.
    accuracies = torch.tensor([0.8, 0.4, math.nan], dtype=torch.float64)
    assert weighted(accuracies, torch.tensor([3, 1, 0])) == pytest.approx(0.7)
    assert weighted(accuracies, torch.tensor([3, 1, 6])) == pytest.approx(0.7)
    assert weighted(accuracies, torch.tensor([0, 0, 2])) is None


POINTS = torch.randn(600, 3, generator=torch.Generator().manual_seed(0))
SUM = POINTS @ torch.tensor([1.0, 2.0, -1.0])
HOSPITALS = ["north", "south", "east"] * 200


def simulated_run(targets: Tensor, outputs: int = 2, *, by_name: bool = False, **more: Any) -> Any:
    torch.manual_seed(0)
    parts = [TensorDataset(POINTS[a:b], targets[a:b]) for a, b in ((0, 300), (300, 400), (400, 600))]
    clients = feddle.by_client(parts[0], HOSPITALS[:300])
    test: Any = feddle.by_client(parts[2], HOSPITALS[400:]) if by_name else parts[2]
    plan: dict[str, Any] = {"rounds": 4, "per_round": 3, "workers": 0, "delays": {"sigma": 0}, "training": {"lr": 0.05}}
    return feddle.simulate(nn.Linear(3, outputs), clients, server=parts[1], test=test, **(plan | more))


def test_regression_has_an_error_and_no_accuracy() -> None:
    run = simulated_run(SUM[:, None], 1, loss=F.mse_loss)
    result, line = run.result, run.history[-1]
    assert "accuracy" not in json.dumps([result, run.history])
    with torch.no_grad():
        error = (run.problem.model.eval()(POINTS[400:]) - SUM[400:, None]).abs().mean().item()
    assert result["metric"] == "mae"
    assert result["mae"] == result["last_mae"] == line["mae"] == pytest.approx(error)
    assert result["clients"]["measured_on"] == "train"


def test_multi_label_targets() -> None:
    targets = torch.stack([SUM > 0, SUM > 1], 1).float()
    run = simulated_run(targets, loss=F.binary_cross_entropy_with_logits)
    assert run.result["metric"] == "f1"
    assert run.result["f1"] == run.history[-1]["f1"] > 0.5
    assert len(run.result["classes"]["f1"]) == 2


def test_each_client_is_measured_on_its_own_test_examples() -> None:
    labels = (SUM > 0).long()
    run = simulated_run(labels, by_name=True)
    clients = run.result["clients"]
    assert (clients["names"], clients["measured_on"]) == (["east", "north", "south"], "test")
    with torch.no_grad():
        right = run.problem.model.eval()(POINTS[400:]).argmax(1) == labels[400:]
    for name, score, count in zip(clients["names"], clients["scores"], clients["tested"], strict=True):
        own = [hit for hit, owner in zip(right.tolist(), HOSPITALS[400:], strict=True) if owner == name]
        assert (score, count) == (pytest.approx(sum(own) / len(own), abs=1e-6), len(own))
    assert simulated_run(labels).result["clients"]["measured_on"] == "classes"


@pytest.mark.parametrize("seed", range(4))
def test_the_owners_of_test_images_follow_the_clients_that_are_drawn(seed: int) -> None:
    # The label of each image is its owner. Client 3 has no training image; the last test image has no owner.
    train, test = torch.tensor([0, 1, 2, 2, 4]), torch.tensor([4, 2, 1, 0, 3, NOBODY])
    rows = [Labelled(torch.zeros(len(t), 1, 2, 2, dtype=torch.uint8), t, owners=t) for t in (train, test)]
    drawn = among_drawn(Collection("some", rows[0], rows[1], 5, client_names="abcde"), 3, seed)
    assert drawn.test is not None
    assert drawn.test.owners is not None
    assert drawn.train.owners is not None
    assert [drawn.client_names[i] for i in drawn.train.owners] == ["abcde"[i] for i in drawn.train.labels]
    owners = zip(drawn.test.owners.tolist(), drawn.test.labels.tolist(), strict=True)
    assert all(
        owner == NOBODY if label in (3, NOBODY) else drawn.client_names[owner] == "abcde"[label]
        for owner, label in owners
    )
    assert len(drawn.test) == 5, "three of drawn clients, and the two that belong to no client"


@pytest.mark.parametrize("by_name", [True, False])
def test_the_history_has_each_class_and_the_worst_tenth_of_the_clients(by_name: bool) -> None:
    run = simulated_run((SUM > 0).long(), by_name=by_name, evaluation={"every": 2})
    evaluated = [line for line in run.history if "accuracy" in line]
    assert evaluated[-1]["class_accuracy"] == run.result["classes"]["accuracy"]
    assert evaluated[-1]["worst_tenth"] == pytest.approx(run.result["clients"]["worst_tenth"])
    assert all(0 <= line["worst_tenth"] <= line["accuracy"] <= 1 for line in evaluated)


def test_updates_that_a_method_discards_are_counted() -> None:
    run = simulated(tiny(workers=0, method="fedavg", delays={"sigma": 3.0}), build_problem(tiny()))
    run.go()
    counts = [line.get("discarded", 0) for line in run.history]
    size = run.server.model.num_bytes
    assert sum(counts) > 0
    returned = sum(counts) + sum(line["arrivals"] for line in run.history)
    assert run.history[-1]["bytes_up"] == size * returned


def test_local_trains_each_client_alone() -> None:
    labels = (SUM > 0).long()
    run = simulated_run(labels, by_name=True, method={"name": "local", "epochs": 6})
    clients = run.result["clients"]
    assert clients["names"] == ["east", "north", "south"]
    assert len(set(clients["scores"])) > 1
    assert not any(line["arrivals"] for line in run.history)
    mean = sum(s * n for s, n in zip(clients["scores"], clients["tested"], strict=True)) / 200
    assert run.result["accuracy"] == pytest.approx(mean, abs=1e-6), "comparable with one model on all 200 test examples"
    right = [int(bits, 16).bit_count() for bits in clients["correct"]]
    assert right == [round(s * n) for s, n in zip(clients["scores"], clients["tested"], strict=True)]
    other = simulated_run(labels, by_name=True, method={"name": "local", "epochs": 6}, rounds=2)
    assert other.result["clients"]["scores"] == clients["scores"], "the number of rounds only divides the work"


def test_local_and_other_methods_measure_the_same_clients(tmp_path: Path) -> None:
    from feddle.run.folder import run_config

    few = {"evaluation": {"every": 2, "clients": 6}}
    runs = [
        run_config(tiny(method=m, **few), tmp_path / str(i), quiet=True).result
        for i, m in enumerate(("fedavg", {"name": "local", "clients": 4, "epochs": 1}))
    ]
    joined, alone = (run["clients"]["clients"] for run in runs)
    assert (len(joined), len(alone)) == (6, 4)
    assert set(alone) < set(joined)


def bias(outputs: Tensor, targets: Tensor) -> float:
    return (outputs.argmax(1) - targets).double().mean().item()


def test_additional_metrics_are_in_the_history_and_in_the_result() -> None:
    run = simulated_run((SUM > 0).long(), metrics=["matthews_corrcoef", bias])
    found = run.history[-1]["metrics"]
    assert list(found) == ["matthews_corrcoef", "bias"]
    with torch.no_grad():
        outputs = run.problem.model.eval()(POINTS[400:])
    assert found["bias"] == bias(outputs, (SUM[400:] > 0).long())
    assert run.result["last"]["matthews_corrcoef"] == found["matthews_corrcoef"]


def test_the_example_in_the_docs_runs() -> None:
    code = Path("docs/metrics.md").read_text().split("```python\n")[1].split("```")[0]
    data = TensorDataset(POINTS, SUM[:, None])
    short = SimpleNamespace(simulate=partial(feddle.simulate, rounds=5))
    names = {"feddle": short, "F": F, "model": nn.Linear(3, 1), "clients": [data] * 10, "server": data, "test": data}
    exec(compile(code, "docs/metrics.md", "exec"), names)  # noqa: S102  # our own page
    assert len(Path("docs/metrics.md").read_text().split("```python\n")) == 2, "run the other blocks too"
    run: Any = names["run"]
    assert set(run.history[-1]["metrics"]) == {"neg_median_absolute_error", "bias"}


def test_one_metric_needs_no_list() -> None:
    run = simulated_run((SUM > 0).long(), method="fedavg", metrics=bias, rounds=1)
    assert "bias" in run.history[-1]["metrics"]


def test_a_metric_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metrics.py").write_text("ONE = 1\ndef share(outputs, targets): return len(targets) / 1000\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = simulated(tiny(metrics=["own_metrics:share"]), problem := build_problem(tiny()))
    run.go()
    assert problem.test is not None
    assert run.result["last"]["own_metrics:share"] == len(problem.test) / 1000
    for name, reason in (("ONE", "expected a function at 'own_metrics:ONE', found int"), ("share_", "has no 'share_'")):
        with pytest.raises(FeddleError, match=f"metrics: .*{reason}"):
            scorers([f"own_metrics:{name}"])


def test_without_the_new_keys_a_config_keeps_its_hash() -> None:
    kept = tiny().model_dump()
    assert ("metrics" in kept, "clients" in kept["evaluation"], "proximal" in kept["training"]) == (False,) * 3
    assert (tiny().evaluation.most_clients, tiny(evaluation={"clients": 0}).evaluation.most_clients) == (200, 0)


@pytest.mark.parametrize("averaging", [0.0, 0.9])
def test_a_run_that_ends_between_evaluations_measures_its_last_model(averaging: float) -> None:
    labels = (SUM > 0).long()
    more: dict[str, Any] = {"evaluation": {"every": 3}, "averaging": averaging, "metrics": [bias]}
    run = simulated_run(labels, by_name=True, callbacks=lambda line: line["round"] == 2, **more)
    assert ["test_loss" in line for line in run.history] == [False, False]
    with torch.no_grad():
        outputs = run.problem.model.eval()(POINTS[400:])
    right = outputs.argmax(1) == labels[400:]
    clients, last = run.result["clients"], run.result["last"]
    assert (last["accuracy"], last["bias"]) == (right.double().mean().item(), bias(outputs, labels[400:]))
    own = right[torch.tensor([owner == "east" for owner in HOSPITALS[400:]])]
    assert clients["scores"][0] == pytest.approx(own.double().mean().item(), abs=1e-6)
    assert sum(row[i] for i, row in enumerate(run.result["classes"]["confusion"])) == right.sum()


def test_the_text_and_plot_of_a_run_show_its_main_metric() -> None:
    run = simulated_run(SUM[:, None], 1, loss=F.mse_loss)
    error = f"{run.result['mae']:.3g}"
    assert f"rounds 4, mean absolute error {error}, last mean absolute error " in repr(run)
    assert run.plot().get_ylabel() == "mean absolute error"


def test_chosen_classes_keep_the_names_of_the_clients() -> None:
    rows = Labelled(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 0, 1]))
    chosen = with_classes(Collection("some", rows, None, 3, client_names=("a", "b")), [0, 2], "data.classes")
    assert (chosen.names, chosen.client_names, chosen.classes) == (("0", "2"), ("a", "b"), 2)


def not_finite(outputs: Tensor, targets: Tensor) -> float:  # noqa: ARG001
    return math.nan


def test_a_wrong_metric_is_reported() -> None:
    score = Score(1.0, "classes", torch.eye(3), torch.arange(3))
    with pytest.raises(FeddleError, match=r"unknown metric 'f1_makro'; did you mean 'f1_macro'\?"):
        scorers(["f1_makro"])
    with pytest.raises(FeddleError, match="functions made with def, got the metric '<lambda>'"):
        scorers([lambda outputs, targets: 1.0])  # noqa: ARG005
    with pytest.raises(FeddleError, match="twice the metric 'bias'"):
        scorers([bias, bias])
    with pytest.raises(FeddleError, match=r"metrics: f1 failed on the test data .*multiclass"):
        apply(scorers(["f1"]), score)
    with pytest.raises(FeddleError, match="task must be one of classes, labels, numbers, got 'sums'"):
        simulated_run(SUM, task="sums")
    assert apply(scorers([not_finite]), score) == {"not_finite": None}


def test_local_without_test_data_is_reported() -> None:
    with pytest.raises(FeddleError, match="local needs simulated clients and test data"):
        feddle.simulate(nn.Linear(3, 2), [TensorDataset(POINTS, (SUM > 0).long())], per_round=1, method="local")


def write_run(folder: Path, method: str, lines: list[dict[str, Any]], **result: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "method": {"name": method}}))
    (folder / "history.jsonl").write_text("".join(json.dumps({"round": n, **e}) + "\n" for n, e in enumerate(lines, 1)))
    (folder / "result.json").write_text(json.dumps({"method": method, "finished": True, **result}))
    return folder


def test_a_report_on_regression_does_not_mention_accuracy(tmp_path: Path) -> None:
    for name, errors in (("worse", [4.0, 3.5]), ("better", [3.0, 2.25])):
        write_run(tmp_path / name, name, [{"mae": error, "test_loss": error**2} for error in errors])
    grid = grid_of_runs([tmp_path / "worse", tmp_path / "better"])
    assert list(grid.panels[0].rows) == ["better", "worse"]
    text = page([grid])
    assert "accuracy" not in text.split("main>")[1].replace('class="accuracy"', "").lower()
    because = "no lead is named, because one seed cannot show a difference of mean absolute error"
    assert f"better reaches a mean absolute error of 2.25. worse (3.5): {because}." in text
    assert "<strong>" not in text
    with (console := Console(width=100)).capture() as shown:
        console.print(terminal_table(grid, grid.panels[0]))
    assert "Mean absolute error: best of the last five" in shown.get()
    assert "%" not in shown.get()


def test_a_reason_is_given_once_for_all_methods(tmp_path: Path) -> None:
    for name, score in (("a", 0.9), ("b", 0.8), ("c", 0.7)):
        write_run(tmp_path / name, name, [{"f1": score}])
    because = "no lead is named, because one seed cannot show a difference of F1"
    grid = grid_of_runs([tmp_path / name for name in "abc"])
    assert lead(grid) == [f"a reaches an F1 of 90.0%. b (80.0%) and c (70.0%): {because}."]


def clients(measured_on: str, **scores: float) -> dict[str, Any]:
    values = list(scores.values())
    return {
        **{"metric": "accuracy", "measured_on": measured_on, "of": len(values), "clients": list(range(len(values)))},
        **{"names": list(scores), "examples": [50] * len(values), "tested": [100] * len(values), "scores": values},
        **{"mean": sum(values) / len(values), "worst_tenth": min(values)},
    }


def test_the_effective_number_of_examples_by_hand() -> None:
    # Halves of two classes with 10 examples each: 1 / (0.25/10 + 0.25/10) = 20. One class only: its 10 examples.
    # A third of three, one without examples: halves of the others. Shares 0.9 and 0.1: 1 / (0.081 + 0.001) = 12.2.
    assert effective_count([0.5, 0.5], [10, 10]) == pytest.approx(20)
    assert effective_count([1, 0], [10, 10]) == pytest.approx(10)
    assert effective_count([7, 7, 7], [10, 10, 0]) == pytest.approx(20)
    assert effective_count([0.9, 0.1], [10, 10]) == pytest.approx(1 / 0.082)
    assert effective_count([0, 1], [10, 0]) == 0


def test_more_comparisons_widen_the_interval() -> None:
    # z = 1.96 for one comparison, 2.39 for three, since each tail has 0.025 / 3
    one, three = (binomial_interval(50, 10**6, count) for count in (1, 3))
    assert (three[1] - 50) / (one[1] - 50) == pytest.approx(2.394 / 1.96, abs=1e-3)


def test_the_page_shows_which_clients_benefit_from_joining(tmp_path: Path) -> None:
    # Every client has half of each class, with 50 test examples each: 100 effective ones. Three comparisons widen the
    # intervals to about ±11 at 0.7 and ±6 at 0.95: north's 0.95 and 0.7 do not overlap.
    joined, alone = {"north": 0.95, "south": 0.6, "east": 0.82}, {"north": 0.7, "south": 0.88, "east": 0.8}
    line = [{"accuracy": 0.8, "test_loss": 1.0}]
    data, classes = {"shown": [0, 1, 2], "counts": [[25, 25]] * 3}, {"confusion": [[40, 10], [10, 40]]}
    write_run(tmp_path / "feddle", "feddle", line, clients=clients("classes", **joined), classes=classes)
    write_run(tmp_path / "local", "local", line, clients=clients("classes", **alone))
    folders = [tmp_path / "feddle", tmp_path / "local"]
    assert "unknown number of test examples for north, south and east" in joining(grid_of_runs(folders))[0]
    for folder in folders:
        (folder / "data.json").write_text(json.dumps(data))
    grid = grid_of_runs(folders)
    (sentence,) = joining(grid)
    assert sentence == (
        "feddle compared with training alone: clearly better for north; clearly worse for south; no clear difference "
        "for 1 of 3 clients. Accuracy, mean over clients: 79.0% in the federation, 79.3% alone."
    )
    assert sentence in page([grid])
    assert "if the 95 % intervals of the two models do not overlap" in page([grid])


def test_the_exact_test_shows_which_clients_benefit_from_joining(tmp_path: Path) -> None:
    # Of three comparisons, each must have p < 0.05 / 3 = 0.0167. Of its own examples, north gains seven and loses none
    # (p = 2 · 0.5⁷ = 0.0156), south gains six (0.031), and east gains six and loses two (2 · (1 + 8 + 28) / 2⁸ = 0.29).
    bits = {"north": (0b1111111, 0), "south": (0b111111, 0), "east": (0b11111100, 0b11)}
    for method, side in (("feddle", 0), ("local", 1)):
        found = clients("test", **{name: each[side].bit_count() / 100 for name, each in bits.items()})
        found["correct"] = [f"{each[side]:x}" for each in bits.values()]
        write_run(tmp_path / method, method, [{"accuracy": 0.8, "test_loss": 1.0}], clients=found)
    grid = grid_of_runs([tmp_path / "feddle", tmp_path / "local"])
    (sentence,) = joining(grid)
    assert "alone: clearly better for north; no clear difference for 2 of 3 clients." in sentence
    assert headline(grid) == (
        "feddle compared with training alone: better for 1 of 3 clients, no clear difference for 2"
    )
    text = page([grid]).replace("\N{NO-BREAK SPACE}", " ")
    assert "7.0%<small>better, p = 0.016</small>" in text
    assert "6.0%<small>not clear, p = 0.29</small>" in text
    assert "an exact paired test on the client’s test examples has p &lt; 0.05, divided by" in page([grid])


def with_tests(folder: Path, method: str, right: dict[str, tuple[int, int]], seed: int = 0, **more: Any) -> Path:
    """A run whose clients are right on the first of their test examples: `right` gives (correct, all) by name."""
    found = clients("test", **{name: count / tests for name, (count, tests) in right.items()})
    found |= {"tested": [tests for _, tests in right.values()], **more}
    found["correct"] = [f"{(1 << count) - 1:x}" for count, _ in right.values()]
    write_run(folder, method, [{"accuracy": 0.8, "test_loss": 1.0}], clients=found)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, "method": {"name": method}}))
    return folder


def test_too_few_examples_give_no_verdict(tmp_path: Path) -> None:
    # Two comparisons need p < 0.025. Of five examples, the smallest p is 2 · 0.5⁵ = 0.0625, of seven 2 · 0.5⁷ = 0.016.
    runs = {"feddle": {"north": (5, 5), "south": (4, 7)}, "local": {"north": (0, 5), "south": (4, 7)}}
    grid = grid_of_runs([with_tests(tmp_path / method, method, right) for method, right in runs.items()])
    assert headline(grid).endswith("no clear difference for 1 of 2 clients, too few test examples to tell for 1")
    assert "too few test examples to tell for north" in joining(grid)[0]
    assert "100.0%<small>too few examples</small>" in page([grid])


@pytest.mark.parametrize(("right", "word"), [([20, 20, 20], "better"), ([40, 20, 0], "no clear difference")])
def test_the_verdict_of_a_client_uses_all_seeds(tmp_path: Path, right: list[int], word: str) -> None:
    # On average 20 gains and no loss, p < 0.001. In the second case the seeds differ: −30 to 80 points, around 25.
    folders = []
    for seed, count in enumerate(right):
        folders += [
            with_tests(tmp_path / f"feddle{seed}", "feddle", {"north": (count, 80)}, seed),
            with_tests(tmp_path / f"local{seed}", "local", {"north": (0, 80)}, seed),
        ]
    (joined,) = joined_methods(grid_of_runs(folders).panels[0])
    assert joined.verdicts["north"].word == word
    assert joined.sentence.startswith("Over 3 seeds: feddle compared with")
    assert joined.means[0] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("changes", "short"),
    [
        # t(2) = 4.303, so −16, −16 and −34 points have the mean −22 and the interval ±4.303 · 10.39 / √3 = ±25.8. Each
        # seed alone has p ≤ 2 · 0.5¹⁶, far below 0.05.
        ([-16, -16, -34], "worse, p < 0.001"),
        # Five losses have p = 2 · 0.5⁵ = 0.06, so one seed alone does not show it: −22 ± 4.303 · 15.13 / √3 = ±37.6.
        ([-5, -27, -34], "not clear, −22.0 points on average, but 3 seeds are too few (95 % interval −59.6 to 15.6)"),
        ([6, -36, -36], "not clear, the seeds differ"),
    ],
)
def test_seeds_that_each_show_the_harm_give_a_verdict(tmp_path: Path, changes: list[int], short: str) -> None:
    folders = []
    for seed, change in enumerate(changes):
        for method, count in (("feddle", 50 + change), ("local", 50)):
            folders.append(with_tests(tmp_path / f"{method}{seed}", method, {"north": (count, 100)}, seed))
    (joined,) = joined_methods(grid_of_runs(folders).panels[0])
    assert joined.verdicts["north"].short == short


def test_a_run_that_is_too_short_has_no_verdict_for_any_client(tmp_path: Path) -> None:
    for method, right in (("feddle", 10), ("local", 80)):  # 70 losses: the verdict would be worse after 20 rounds
        folder = with_tests(tmp_path / method, method, {"north": (right, 80)})
        (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "rounds": 19, "method": {"name": method}}))
    grid = grid_of_runs([tmp_path / "feddle", tmp_path / "local"])
    assert headline(grid) == "No verdict: a run of 19 rounds is too short"
    means = "Accuracy, mean over clients: 12.5% in the federation, 100.0% alone."
    assert joining(grid) == [f"feddle compared with training alone: {means}"]
    text = page([grid])
    assert "<small>worse" not in text
    assert "clearly worse" not in text
    assert "No client has a verdict, because a run of 19 rounds is too short." in text


def test_the_table_of_clients_shows_means_over_the_seeds(tmp_path: Path) -> None:
    # 30 of 100 and 60 of 120 right: the mean of 30 % and 50 % is 40 %. Only the first seed measured south, with 20 %.
    runs = [{"north": (30, 100), "south": (20, 100)}, {"north": (60, 120)}]
    folders = [with_tests(tmp_path / f"fedavg{seed}", "fedavg", right, seed) for seed, right in enumerate(runs)]
    text = page([grid_of_runs(folders)])
    assert '<th scope="row">north</th><td>50</td><td>100–120</td><td>40.0%</td>' in text
    assert '<th scope="row">south</th><td>50</td><td>100</td><td>20.0%</td>' in text
    assert "The number of a client is the mean over the seeds that measured it" in text


def test_clients_without_names_are_compared_for_one_seed(tmp_path: Path) -> None:
    folders = []
    for seed in (3, 4):
        for method, count in (("feddle", 20), ("local", 0)):
            folders.append(with_tests(tmp_path / f"{method}{seed}", method, {"": (count, 80)}, seed, names=[]))
    assert joining(grid_of_runs(folders))[0].startswith("Seed 3: feddle compared with training alone: clearly better")


def test_local_never_leads_and_its_number_has_a_caveat(tmp_path: Path) -> None:
    # The clients' own models have every example of their client right, but a third of all test data.
    runs = {"fedavg": (60, 80), "feddle": (70, 80), "local": (80, 80)}
    for method, right in runs.items():
        whole = {"whole": 1 / 3} if method == "local" else {}
        with_tests(tmp_path / method, method, {"north": right, "south": right}, 0, **whole)
    grid = grid_of_runs([tmp_path / method for method in runs])
    assert list(grid.panels[0].rows)[-1] == "local"
    title = headline(grid)
    assert "leads" not in title
    assert "compared with training alone: worse for 2 of 2 clients" in title
    (caveat,) = caveats(grid)
    assert "rarely or never has to distinguish the client’s classes from those of other clients." in caveat
    assert "on all test data: the clients’ own models 33.3% on average, fedavg 80.0% and feddle 80.0%." in caveat
    text = page([grid])
    assert text.index(caveat) < text.index("Results</h2>"), "near the headline"
    assert '<th scope="row"><strong>' not in text
    assert "the clients’ own models; on all test data 33.3%" in text
    shown = run_feddle("report", *(tmp_path / method for method in runs), "--out", tmp_path / "page.html")
    assert caveat in shown.out


def test_the_comparison_with_local_mentions_labels_at_the_server(tmp_path: Path) -> None:
    for method in ("fedavg", "feddle", "hfcl", "local"):
        folder = with_tests(tmp_path / method, method, {"north": (60, 80)})
        (folder / "data.json").write_text(json.dumps({"guidance": 1200, "guidance_from_test": True}))
    grid = grid_of_runs([tmp_path / name for name in ("fedavg", "feddle", "local")])
    sentence = "feddle also uses 1,200 labelled examples at the server, which were taken from the held-out data;"
    assert caveats(grid)[-1] == f"{sentence} local does not."
    assert f"{sentence} local does not." in page([grid])
    (tmp_path / "hfcl" / "data.json").write_text(json.dumps({"guidance": 1000}))  # the server's own rows
    both = caveats(grid_of_runs([tmp_path / name for name in ("feddle", "hfcl", "local")]))[-1]
    assert both == "feddle and hfcl also use 1,000–1,200 labelled examples at the server; local does not."
    assert "labelled" not in " ".join(caveats(grid_of_runs([tmp_path / "fedavg", tmp_path / "local"])))
    config = {"seed": 0, "method": {"name": "feddle", "objective": {"name": "distil"}}}
    (tmp_path / "feddle" / "config.yaml").write_text(yaml.safe_dump(config))
    assert "labelled" not in " ".join(caveats(grid_of_runs([tmp_path / "feddle", tmp_path / "local"])))


def test_the_server_takes_its_examples_from_the_held_out_data() -> None:
    assert census(build_problem(tiny()))["guidance_from_test"]


def test_local_measures_its_models_on_all_test_data() -> None:
    # Each client has one class. Its own model learns to predict it always: right for the client, and for half of all.
    data = TensorDataset(torch.ones(40, 3), torch.arange(40) // 20)
    shares: Any = feddle.by_client(data, ["a"] * 20 + ["b"] * 20)
    method, training = {"name": "local", "epochs": 60}, {"lr": 0.5}
    plan: Any = {"method": method, "training": training, "rounds": 1, "per_round": 1, "workers": 0}
    run = feddle.simulate(nn.Linear(3, 2), shares, test=shares, **plan)
    assert run.result["clients"]["scores"] == [1.0, 1.0]
    assert run.result["clients"]["whole"] == 0.5


def test_clients_without_test_examples_are_named(tmp_path: Path) -> None:
    points, labels = torch.randn(40, 3), torch.arange(40) % 2
    owners = ["north"] * 15 + ["south"] * 15 + ["west"] * 10
    test = feddle.by_client(TensorDataset(points[:30], labels[:30]), owners[:30])
    run = feddle.simulate(
        nn.Linear(3, 2),
        feddle.by_client(TensorDataset(points, labels), owners),
        test=test,
        out=tmp_path / "run",
        method="fedavg",
        rounds=1,
        per_round=1,
        workers=0,
    )
    assert run.result["clients"]["untested"] == {"west": 10}
    grid = grid_of_runs([tmp_path / "run"])
    sentence = "Without a test example, so nothing can be said about it: west."
    assert untested(grid) == [sentence]
    text = page([grid])
    assert sentence in text
    assert '<th scope="row">west</th><td>10</td><td>0</td><td>–</td>' in text
    assert sentence in run_feddle("report", tmp_path / "run", "--out", tmp_path / "page.html").out


@pytest.mark.parametrize(
    ("values", "entry"),
    [
        ([0.1, 0.5, 0.55, 0.6, 0.65, 0.7], "a (+20.0 points in the last five evaluations)"),
        ([0.5, 0.6, 0.55, 0.65, 0.7], "a (+20.0 points in the last five evaluations)"),  # one of ten pairs falls
        ([0.5, 0.55, 0.6, 0.65], ""),  # four evaluations are too few
        ([0.5, 0.6, 0.7, 0.7, 0.7], ""),  # it has stopped
        ([0.70, 0.702, 0.704, 0.706, 0.708], ""),  # less than a point
        ([0.3, 0.7, 0.5, 0.6, 0.71], ""),  # up and down
    ],
)
def test_a_run_that_still_improves_gives_a_warning(tmp_path: Path, values: list[float], entry: str) -> None:
    grid = grid_of_runs([write_run(tmp_path / "a", "a", [{"accuracy": value} for value in values])])
    expected = [f"Still improving at the last evaluation; use more rounds: {entry}."] if entry else []
    assert [text for text in found_warnings(grid) if "improving" in text] == expected
    assert all(text in page([grid]) for text in expected)


def test_an_error_that_still_falls_gives_a_warning(tmp_path: Path) -> None:
    grid = grid_of_runs([write_run(tmp_path / "a", "a", [{"mae": 9 - number} for number in range(5)])])
    assert "a (−4 in the last five evaluations)" in " ".join(found_warnings(grid))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (200, "10 of 11 clients have no test example, so nothing can be said about them."),
        (1, "1 of 11 clients, drawn at random."),
    ],
)
def test_the_page_explains_why_clients_are_not_measured(tmp_path: Path, limit: int, expected: str) -> None:
    folder = write_run(tmp_path / "run", "feddle", [{"accuracy": 0.8}], clients=clients("test", north=0.9) | {"of": 11})
    config = {"seed": 0, "method": {"name": "feddle"}, "evaluation": {"clients": limit}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert expected in page([grid_of_runs([folder])])


def test_training_data_gives_no_verdict(tmp_path: Path) -> None:
    for name in ("feddle", "local"):
        write_run(tmp_path / name, name, [{"accuracy": 0.8}], clients=clients("train", north=0.9))
    grid = grid_of_runs([tmp_path / "feddle", tmp_path / "local"])
    assert joining(grid) == []
    assert "This is too optimistic" in page([grid])


def test_local_on_training_data_is_marked_and_never_leads(tmp_path: Path) -> None:
    for name, error in (("feddle", 2.0), ("local", 1.0)):
        found = clients("train", north=error) | {"metric": "mae"}
        write_run(tmp_path / name, name, [{"mae": error}], clients=found)
    grid = grid_of_runs([tmp_path / "feddle", tmp_path / "local"])
    text = page([grid]).replace("\N{NO-BREAK SPACE}", " ")
    assert '<th scope="col">Measured on (training)</th>' in text
    assert "<small>measured on training examples</small>" in text
    assert "<h1>feddle reaches a mean absolute error of 2</h1>" in text
    assert "local: each client’s own model is measured on the examples of that client only." in text


def test_the_worst_tenth_needs_ten_clients_and_twenty_examples() -> None:
    found: Any = clients("test", **{f"c{number}": 0.5 + number / 100 for number in range(10)})
    assert worst_tenth(found) == 0.5
    assert worst_tenth(found | {"tested": [19, *[100] * 9]}) is None
    assert worst_tenth(found | {"tested": [20, *[1] * 9]}) == 0.5, "only the worst client counts"
    assert worst_tenth(found | {"scores": found["scores"][:9], "tested": found["tested"][:9]}) is None


def test_without_an_exact_test_only_the_means_are_reported(tmp_path: Path) -> None:
    for name in ("feddle", "local"):
        found = clients("test", north=1.0 if name == "local" else 2.5) | {"metric": "mae"}
        write_run(tmp_path / name, name, [{"mae": 2.0}], clients=found)
    expected = (
        "feddle compared with training alone: Mean absolute error, mean over clients: 2.5 in the federation, 1 alone."
    )
    assert joining(grid_of_runs([tmp_path / "feddle", tmp_path / "local"])) == [expected]


def test_a_damaged_result_does_not_break_the_page(tmp_path: Path) -> None:
    damaged = {"metric": "accuracy", "names": 7, "scores": ["x"]}
    write_run(tmp_path / "run", "feddle", [{"accuracy": 0.8}], clients=damaged, classes={"accuracy": "all"}, last=[1])
    assert "Who benefits" not in page([grid_of_runs([tmp_path / "run"])])
