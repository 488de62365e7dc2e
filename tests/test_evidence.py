"""When a report may say that a method leads."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from command import run_feddle
from feddle.data.examples import FromDataset, Selection, classes_of
from feddle.reading import read_run
from feddle.records import hex_of
from feddle.report.evidence import difference, exact_p, p_words, standing
from feddle.report.grid import grid_of_runs
from feddle.report.numbers import binomial_interval
from feddle.report.page import page
from feddle.report.words import headline, lead, verdicts
from feddle.run.census import census
from feddle.run.problem import build_problem
from test_report import Document, drawings, make_run
from test_reproduce import CURVES, make_grid
from tiny import TINY, tiny


def test_the_exact_test_by_hand() -> None:
    # 3 against 0: both tails of three coins have 2/8. 5 against 1: 2·(1 + 6)/64. 6 against 0: 2/64 is below 5 %.
    found = [exact_p(*votes) for votes in ((0, 0), (3, 0), (5, 1), (6, 0))]
    assert found == pytest.approx([1, 2 / 8, 14 / 64, 2 / 64])


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_exact_test_is_symmetric_and_p_falls_with_more_votes(more: int, less: int) -> None:
    assert 0 <= exact_p(more, less) == exact_p(less, more) <= 1
    if more > less:
        assert exact_p(more + 1, less) <= exact_p(more, less) * (1 + 1e-9)


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_exact_test_counts_all_cases(more: int, less: int) -> None:
    tail = sum(math.comb(more + less, k) for k in range(min(more, less) + 1))
    assert exact_p(more, less) == pytest.approx(min(1, 2 * tail / 2 ** (more + less)))


def test_many_images_do_not_overflow() -> None:
    assert exact_p(10**9, 2 * 10**9) == 0
    assert exact_p(5000, 4000) == pytest.approx(math.erfc(10.53 / math.sqrt(2)), rel=0.1)


def test_wilsons_interval_by_hand() -> None:
    # p = 0.5, n = 96, z = 1.96: z² / n = 0.0400, and the half-width is 1.96 · √(0.25/96 + 0.000104) / 1.04 = 9.8 points
    assert binomial_interval(50, 96) == pytest.approx((50 - 9.81, 50 + 9.81), abs=0.01)
    low, high = binomial_interval(100, 60)
    assert low == pytest.approx(94, abs=0.1)
    assert high == pytest.approx(100)


def test_one_image_of_sixty_is_no_lead(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, name, [right / 60], tests=60) for name, right in (("a", 55), ("b", 54))]
    grid = grid_of_runs(folders)
    assert headline(grid) == "No difference that 60 test examples can show"
    assert lead(grid) == [
        "a reaches 91.7%. b (90.0%): no difference that 60 test examples can show (exact paired test: p = 1)."
    ]
    assert not Document(page([grid])).inside("strong")


def test_the_last_models_must_agree_with_the_table(tmp_path: Path) -> None:
    # by its best evaluation `a` is first, but its last model is the worse one
    grid = grid_of_runs([make_run(tmp_path / "a", "a", [0.9, 0.5]), make_run(tmp_path / "b", "b", [0.5, 0.8])])
    assert headline(grid).startswith("No difference that")


def seeds_of(folder: Path, method: str, accuracies: list[float], tests: int = 1000) -> list[Path]:
    return [
        make_run(folder / f"{method}{seed}", method, [accuracy], config={"seed": seed}, tests=tests)
        for seed, accuracy in enumerate(accuracies)
    ]


def test_with_several_seeds_a_lead_must_be_larger_than_their_spread(tmp_path: Path) -> None:
    # differences 10, 9 and 11: 10 ± 4.303 · 1 / √3 is above 0; 10, −5 and 16: 7 ± 4.303 · 10.8 / √3 is not
    other = seeds_of(tmp_path / "o", "fedbuff", [0.5, 0.5, 0.5])
    clear = grid_of_runs([*seeds_of(tmp_path / "c", "feddle", [0.6, 0.59, 0.61]), *other])
    assert headline(clear) == "feddle leads by 10.0 points"
    assert "95 % interval of the difference over 3 seeds: 7.5 to 12.5 points" in lead(clear)[0]
    wide = grid_of_runs([*seeds_of(tmp_path / "w", "feddle", [0.6, 0.45, 0.66]), *other])
    assert headline(wide) == "No difference that 3 seeds can show"


def test_for_an_error_metric_lower_is_better_and_several_seeds_are_needed(tmp_path: Path) -> None:
    # the errors are lower by 1, 0.9 and 1.1: 1 ± 4.303 · 0.1 / √3 is above 0
    runs: dict[str, list[Path]] = {"low": [], "high": []}
    for seed, lower in enumerate((1.0, 0.9, 1.1)):
        for method, error in (("low", 3 - lower), ("high", 3.0)):
            folder = make_run(tmp_path / f"{method}{seed}", method, [], config={"seed": seed}, tests=0)
            (folder / "history.jsonl").write_text(json.dumps({"round": 1, "mae": error}) + "\n")
            (folder / "result.json").write_text(json.dumps({"method": method, "metric": "mae", "mae": error}))
            runs[method].append(folder)
    several = grid_of_runs([*runs["high"], *runs["low"]])
    assert headline(several) == "low leads with a mean absolute error of 2"
    assert "ahead of high (3). 95 % interval of the difference over 3 seeds: 0.752 to 1.25." in lead(several)[0]
    one = grid_of_runs([runs["high"][0], runs["low"][0]])
    assert headline(one) == "No lead is named, because one seed cannot show a difference of mean absolute error"


def test_runs_with_different_metrics_have_no_winner(tmp_path: Path) -> None:
    other = make_run(tmp_path / "b", "b", [0.5])
    (other / "history.jsonl").write_text(json.dumps({"round": 1, "f1": 0.5}) + "\n")
    (other / "result.json").write_text(json.dumps({"metric": "f1", "f1": 0.5, "finished": True}))
    grid = grid_of_runs([make_run(tmp_path / "a", "a", [0.9]), other])
    assert headline(grid) == "No winner: the runs are measured by accuracy and F1"


def test_models_of_single_clients_are_compared_on_their_own_examples(tmp_path: Path) -> None:
    # client 0: 9 gains, no loss; client 1: 1 loss. 9 against 1: p = 2 · (1 + 10) / 2¹⁰ = 0.021
    bits = {"feddle": ["1ff", "0"], "local": ["0", "1"]}
    for method, correct in bits.items():
        scores = {"scores": [0.5, 0.5], "mean": 0.5, "worst_tenth": 0.5, "correct": correct}
        clients = {"metric": "accuracy", "measured_on": "test", "of": 2, "clients": [0, 1], "names": []}
        clients |= {"examples": [20, 20], "tested": [20, 20], **scores}
        result = {"clients": clients, **({"correct": None} if method == "local" else {})}
        make_run(tmp_path / method, method, [0.6 if method == "feddle" else 0.4], result=result)
    grid = grid_of_runs([tmp_path / "feddle", tmp_path / "local"])
    cells = {cell.name: cell for cell in grid.cells}
    assert difference(cells["feddle"], cells["local"]).tests.endswith("on 40 test examples: p = 0.021")


def test_one_seed_is_no_lead_over_local_if_no_client_has_its_own_test_examples(tmp_path: Path) -> None:
    make_run(tmp_path / "local", "local", [0.4], result={"correct": None})
    grid = grid_of_runs([make_run(tmp_path / "feddle", "feddle", [0.6]), tmp_path / "local"])
    assert headline(grid) == "feddle reaches 60.0%"
    assert lead(grid) == []


def test_seeds_do_not_replace_test_images(tmp_path: Path) -> None:
    # for each seed, the runs differ in the same image of sixty: the spread over seeds is zero, but one image is too few
    runs = [*seeds_of(tmp_path, "a", [55 / 60] * 3, tests=60), *seeds_of(tmp_path, "b", [54 / 60] * 3, tests=60)]
    assert headline(grid_of_runs(runs)) == "No difference that 60 test examples can show"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rounds": 8}, "a run of 8 rounds is too short"),
        ({"data": {"name": "mnist"}, "rounds": 90}, "the runs differ in data and rounds"),
        ({"seed": 1}, ""),
    ],
)
def test_no_winner_for_different_settings_or_short_runs(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    first = make_run(
        tmp_path / "a", "a", [0.9], config={"rounds": change.get("rounds", 80)} if len(change) == 1 else {}
    )
    grid = grid_of_runs([first, make_run(tmp_path / "b", "b", [0.5], config=change)])
    expected = f"No winner: {reason}" if reason else "No lead is named, because the runs have no seed in common"
    assert headline(grid) == expected
    assert standing(grid, grid.panels[0], 0).winner is None
    assert not Document(page([grid])).inside("strong")


def test_no_winner_if_the_content_of_the_data_differs(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, name, [value]) for name, value in (("a", 0.9), ("b", 0.5))]
    data = folders[0] / "data.json"
    data.write_text(json.dumps(json.loads(data.read_text()) | {"digest": "other"}))
    assert headline(grid_of_runs(folders)) == "No winner: the runs differ in the content of the data"


def test_quick_grids_have_no_verdict(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", CURVES, quick=True)
    assert (headline(grid), verdicts(grid)) == ("A & B", [])


def test_runs_of_earlier_versions_have_no_lead(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, name, [value], tests=0) for name, value in (("a", 0.9), ("b", 0.5))]
    grid = grid_of_runs(folders)
    assert headline(grid) == "No lead is named, because it is not recorded which test examples are predicted correctly"
    assert "chance" not in "".join(Document(page([grid])).inside("text"))


@pytest.mark.parametrize("damage", ['{"test": -1}', '{"test": "9", "guess": NaN}', "[", '{"counts": [["a"]]}'])
def test_a_damaged_record_of_the_data_is_ignored(tmp_path: Path, damage: str) -> None:
    folder = make_run(tmp_path / "a", result={"correct": "xyz"})
    (folder / "data.json").write_text(damage)
    assert (read_run(folder).data, read_run(folder).correct) == ({}, None)
    Document(page([grid_of_runs([folder])]))


def test_charts_start_at_zero_and_show_chance_and_the_interval(tmp_path: Path) -> None:
    html = page([grid_of_runs([make_run(tmp_path / "a", accuracies=[0.8, 0.82])])])
    chart = drawings(html, "curves")[0]
    texts = [text.text for text in chart.iter("text")]
    assert {"0%", "chance 10.0%"} <= set(texts)
    assert len(chart.findall("path[@class='band d0 s0']")) == 1


def test_a_run_records_its_examples_and_the_correct_predictions(tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps(TINY))
    made = run_feddle("run", config, "--out", tmp_path / "run")
    assert "Examples: 1,438 for training, 100 for guidance at the server and 259 for testing." in made.out
    run = read_run(tmp_path / "run")
    assert run.correct is not None
    assert run.correct.bit_count() / run.data["test"] == run.last_score
    assert sum(map(sum, run.data["counts"])) == run.data["train"] == 1438


def test_bits_are_written_as_hexadecimal_digits() -> None:
    assert [hex_of(bits) for bits in ([True, False, True, False, True], [False], [])] == ["15", "0", "0"]


def test_a_model_that_may_be_no_better_than_guessing_causes_a_warning(tmp_path: Path) -> None:
    # the interval for 16 of 100 correct images is 10.1 % to 24.4 %, for 14 it is 8.5 % to 22.1 %; a guess has 10 %
    runs = [make_run(tmp_path / name, name, [share], tests=100) for name, share in (("good", 0.16), ("bad", 0.14))]
    assert "Not shown to be better than always guessing the most frequent class: bad." in page([grid_of_runs(runs)])


# Which client has which classes


def with_clients(folder: Path, counts: list[list[int]], clients: int | None = None) -> Path:
    run = make_run(folder)
    data = json.loads((run / "data.json").read_text())
    record = {"clients": clients or len(counts), "shown": list(range(len(counts))), "counts": counts}
    (run / "data.json").write_text(json.dumps(data | record))
    return run


def test_the_classes_of_the_clients_are_the_first_section(tmp_path: Path) -> None:
    run = with_clients(tmp_path / "a", [[5, 0], [0, 7], [1, 2]])
    document = Document(page([grid_of_runs([run])]))
    assert document.inside("h2")[:2] == ["Clients and classes", "Results"]
    assert "client 2: 2 of class 1, 1 of class 0" in document.inside("li")
    assert {"class 0", "class 1", "0", "2"} <= set(document.inside("span"))
    assert " Number of training examples of each client and class." in document.inside("figcaption")


def test_clients_and_classes_have_names(tmp_path: Path) -> None:
    run = with_clients(tmp_path / "a", [[5, 0], [0, 7]])
    data = json.loads((run / "data.json").read_text()) | {"names": ["north", "south"], "classes": ["ill", "well"]}
    (run / "data.json").write_text(json.dumps(data))
    html = page([grid_of_runs([run])])
    assert {"ill", "well", "north", "south"} <= set(Document(html).inside("span"))
    assert "south: 7 of well" in Document(html).inside("li")
    assert "2 clients (10 per round)" in html, "the config only has a limit of natural clients"


def test_some_of_many_clients_are_shown_and_outliers_are_clipped(tmp_path: Path) -> None:
    run = with_clients(tmp_path / "a", [[1, 2]] * 59 + [[1, 900]], clients=5000)
    text = " ".join(Document(page([grid_of_runs([run])])).inside("figcaption"))
    assert "60 of the 5,000 clients, evenly spaced. Values beyond 2 are clipped." in text


@pytest.mark.parametrize("counts", [[], [[]], [[1], [1, 2]], [[0]]])
def test_damaged_counts_are_left_out(tmp_path: Path, counts: list[list[int]]) -> None:
    sections = Document(page([grid_of_runs([with_clients(tmp_path / "a", counts)])])).inside("h2")
    assert ("Clients and classes" in sections) == (counts == [[0]])


def test_a_run_counts_the_classes_of_some_of_many_clients() -> None:
    found = census(build_problem(tiny(clients={"count": 200, "per_round": 5}), quiet=True))
    assert len(found["shown"]) == len(found["counts"]) == 60
    assert found["shown"] == sorted(set(found["shown"]))
    assert found["clients"] > 100


def test_only_valid_class_labels_are_read_as_classes() -> None:
    labels = torch.tensor([2, 0, 1])
    data = FromDataset(TensorDataset(torch.zeros(3, 2), labels))
    known = classes_of(Selection(data, torch.tensor([1, 2])))
    assert known is not None
    assert known.tolist() == [0, 1]
    for targets in (labels.float(), labels[:, None], labels - 1):
        assert classes_of(FromDataset(TensorDataset(torch.zeros(3, 2), targets))) is None


def test_a_tiny_p_is_not_shown_as_zero() -> None:
    assert [p_words(p) for p in (0.0, 1e-9, 0.0213, 1.0)] == ["p < 0.001", "p < 0.001", "p = 0.021", "p = 1"]
