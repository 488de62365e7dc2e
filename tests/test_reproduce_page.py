"""How the page of a grid and its exports mark numbers that differ from the table's setting."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feddle.core.errors import FeddleError
from feddle.report.files import to_csv, to_latex, to_markdown
from feddle.report.grid import Grid, read_grid
from feddle.report.page import page
from feddle.report.tables import legend, results
from feddle.report.words import headline, lead
from test_report import Document, drawings, make_run
from test_reproduce import CURVES, make_grid


def altered(grid: Grid, change: Callable[[str, dict[str, Any]], dict[str, Any]], **facts: Any) -> Grid:
    """Return the grid after updating the record of each cell with `change(name, cell)`."""
    path = grid.folder / "grid.json"
    record = json.loads(path.read_text()) | facts
    record["cells"] = {name: cell | change(name, cell) for name, cell in record["cells"].items()}
    path.write_text(json.dumps(record))
    return read_grid(grid.folder)


def rounds_changed(name: str, cell: dict[str, Any]) -> dict[str, Any]:
    return {"changed": ["rounds=6"]} if "fedbuff" in name and not cell["left_out"] else {}


# Exports


def test_exports_carry_marks_footnotes_and_warnings(tmp_path: Path) -> None:
    grid = altered(make_grid(tmp_path / "g", CURVES, quick=True), rounds_changed)
    run = tmp_path / "g" / "cnn/cifar10/20/feddle-id" / "seed0"
    (run / "cell.json").write_text(json.dumps({"config": "other", "feddle": "0.1.0", "source": "a" * 64}))
    grid = read_grid(grid.folder)
    markdown, latex = to_markdown(grid), to_latex(grid)
    assert "45.0 ± 7.1§" in markdown
    assert r"45.0 $\pm$ 7.1\S{}" in latex
    for text in (markdown, latex):
        for expected in (
            "Quick runs",
            "CIFAR-10 guides instead of ImageNet",
            "Run with rounds=6.",
            "cnn/cifar10/20/feddle-id",
            "no <data> of Mars",
        ):
            assert expected in text
    rows = list(csv.DictReader(io.StringIO(to_csv(grid))))
    lines = {row["method"]: row for row in rows if row["delay_sigma"] == "20" and row["dataset"] == "cifar10"}
    assert lines["fedbuff"]["changed"] == "rounds=6"
    assert lines["feddle-ood"]["substitute"] == "CIFAR-10 guides instead of ImageNet"
    assert (lines["feddle-id"]["other_config"], lines["fedbuff"]["other_config"]) == ("1", "0")
    assert (lines["feddle-id"]["source"], lines["fedbuff"]["source"]) == ("aaaaaaaaaaaa unknown", "unknown")


def test_special_characters_in_the_notes_of_latex_are_escaped(tmp_path: Path) -> None:
    def hostile(_: str, cell: dict[str, Any]) -> dict[str, Any]:
        return {"changed": [r"data.path=~/a_b^c\d"]} if not cell["left_out"] else {}

    latex = to_latex(altered(make_grid(tmp_path / "g", CURVES), hostile))
    assert r"\textasciitilde{}/a\_b\textasciicircum{}c\textbackslash{}d" in latex


# Comparison with the paper


def test_only_cells_in_the_papers_setting_are_compared_with_it(tmp_path: Path) -> None:
    grid = altered(make_grid(tmp_path / "g", CURVES), rounds_changed)
    text = " ".join(lead(grid))  # Center and Feddle-ID twice: 60, 75 and 75 against 80
    assert "0 of 3 cells are within two points of its number, and on average 10.0 points below it. " in text
    assert "Not compared with the paper, because they have substitute data or a changed setting: 4 cells." in text
    grid = altered(grid, lambda *_: {"substitute": "A guides instead of B"})
    text = " ".join(lead(grid))
    assert "Compared with the paper" not in text
    assert "Not compared with the paper, because they have substitute data or a changed setting: 7 cells." in text


def test_averages_are_over_the_settings_that_all_rows_have(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", CURVES)
    shutil.rmtree(tmp_path / "g" / "cnn/cifar10/5/fedbuff")
    text = " ".join(lead(read_grid(grid.folder)))
    assert "Feddle-Id reaches 75.0% and Feddle-Ood reaches 65.0% in the one setting that all have" in text


def test_all_methods_of_a_setting_are_in_one_chart(tmp_path: Path) -> None:
    def servers(name: str, _: dict[str, Any]) -> dict[str, Any]:
        return {"server": "none" if "fedbuff" in name else "outside" if "ood" in name else "own"}

    html = page([altered(make_grid(tmp_path / "g", CURVES), servers)])
    assert [len(chart.findall("g")) for chart in drawings(html, "curves")] == [
        len(CURVES)
    ] * 4  # two settings and sizes


# Bold numbers


def test_bold_is_the_best_with_and_the_best_without_data_at_the_server(tmp_path: Path) -> None:
    def servers(name: str, _: dict[str, Any]) -> dict[str, Any]:
        return {"server": "none" if "fedbuff" in name else "outside" if "ood" in name else "own"}

    grid = make_grid(tmp_path / "g", CURVES)
    assert "as in the paper" not in legend(grid)
    grid = altered(grid, servers)
    shown = results(grid, grid.panels[0]).rows
    assert [row.label for row in shown if row.entries[0].best] == ["Feddle-Id", "Feddle-Ood"]
    assert headline(grid) == "Feddle-Id leads in 2 of 2 settings"
    assert "the best of the methods with and of those without in-domain data" in legend(grid)


def test_center_is_bold_only_where_it_is_best(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", {"center": [[0.6]], "hfcl": [[0.5]]})
    assert '<td data-heading="all settings" colspan="2"><strong>60.0</strong>' in page([grid])
    result = grid.folder / "cnn/cifar10/5/hfcl/seed0/result.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"accuracy": 0.7}))
    html = page([read_grid(grid.folder)])
    assert re.findall(r'<td data-heading="(σ = \d+)[^"]*"><strong>60\.0', html) == ["σ = 20"]
    assert re.findall(r'<td data-heading="(σ = \d+)[^"]*">60\.0', html) == ["σ = 5"]


def test_only_the_curve_of_center_is_highlighted(tmp_path: Path) -> None:
    with_center, without = ({"fedbuff": [[0.3, 0.5]], **rows} for rows in ({"center": [[0.5, 0.6]]}, {}))
    assert ' first"' not in page([make_grid(tmp_path / "a", without)])
    assert 's1 first"' in page([make_grid(tmp_path / "b", with_center)])


# Damaged records


@pytest.mark.parametrize("damaged", ['{"data": 5, "resumed_by": 3, "clock": 1}', "[" * 200_000], ids=["types", "depth"])
def test_a_damaged_record_of_a_cell_counts_as_missing(tmp_path: Path, damaged: str) -> None:
    grid = make_grid(tmp_path / "g", CURVES)
    (grid.folder / "cnn/cifar10/5/fedbuff/seed0/cell.json").write_text(damaged)
    assert "Without a record of config and data" in page([read_grid(grid.folder)])
    (grid.folder / "cnn/cifar10/5/fedbuff/seed0/cell.json").write_text('{"feddle": ["0.1"]}')
    assert "['0.1']" not in to_csv(read_grid(grid.folder))


@pytest.mark.parametrize(
    ("name", "value"),
    [("title", 3), ("note", []), ("figure", 5), ("asked", "x"), ("axes", {"method": [{"value": 1}]}), ("grid", None)],
)
def test_a_damaged_record_of_a_grid_is_refused_in_one_line(tmp_path: Path, name: str, value: object) -> None:
    folder = make_grid(tmp_path / "g", CURVES).folder
    (folder / "grid.json").write_text(json.dumps(json.loads((folder / "grid.json").read_text()) | {name: value}))
    with pytest.raises(FeddleError, match=rf"grid.json: expected a grid of `feddle reproduce`, but ValueError {name}"):
        read_grid(folder)


# Settings that were run


def test_headings_show_the_settings_that_were_run(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", {"fedbuff": [[0.3]], "fedavg-waiting": [[0.4]]}, quick=True)  # σ of the runs: 2.5
    assert grid.panels[0].heads == ["σ = 20 (run with 2.5)", "σ = 5 (run with 2.5)"]
    assert grid.panels[0].title == "CNN · CIFAR-10 (quick)"
    waiting = altered(grid, lambda name, _: {"waits": 2.5} if "fedavg" in name else {})
    assert waiting.panels[0].heads[0] == "σ = 20 (run with 2.5)"
    run = tmp_path / "g" / "cnn/cifar10/20/fedbuff" / "seed1"
    small = {"name": "cnn", "channels": [8, 16, 16]}
    training = {"optimizer": "adam", "lr": 0.003, "epochs": 2}
    make_run(run, "fedbuff", config={"model": small, "training": training, "rounds": 24, "delays": {"sigma": 20}})
    grid = read_grid(grid.folder)
    assert grid.panels[0].heads[0] == "σ = 20 (run with 2.5 and 20)"
    expected = (
        "Run: cnn with 8–16–16 channels, 80 rounds and 24 rounds, clients train with adam, lr = 0.003, epochs = 2."
    )
    assert expected in Document(page([grid])).inside("p")


# Random labels


def test_a_table_shows_the_accuracy_lost_to_random_labels(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", {"fedbuff": [[0.5]], "feddle-id": [[0.6]]})

    def noisy(name: str, cell: dict[str, Any]) -> dict[str, Any]:
        key = {k: v for k, v in cell["key"].items() if k != "delay_sigma"}
        return {"key": key | {"label_noise": 0.2 if "/20/" in name else 0}}

    run = tmp_path / "g" / "cnn/cifar10/20/fedbuff" / "seed0" / "history.jsonl"
    run.write_text('{"round": 1, "accuracy": 0.48}\n')
    axes: dict[str, Any] = dict(grid.record["axes"])
    del axes["delay_sigma"]
    noise = [{"value": 0, "words": "clean labels"}, {"value": 0.2, "words": "20 % of the labels random"}]
    axes = {"label_noise": noise, **axes}
    grid = altered(grid, noisy, axes=axes)
    document = Document(page([grid]))
    small = document.inside("small")
    assert "\N{REPLACEMENT CHARACTER}" not in page([grid])
    assert "Clean labels" in document.inside("figcaption")
    assert "Underlined" not in legend(grid)  # there is no Center
    assert "−2.0 from clean labels" in small
    assert "±0.0 from clean labels" in small
    assert "48.0 (−2.0 from clean labels)" in to_markdown(grid)
    assert r"{\scriptsize $-$2.0 from clean labels}" in to_latex(grid)
    rows = list(csv.DictReader(io.StringIO(to_csv(grid))))
    assert [row["from_clean"] for row in rows if row["method"] == "fedbuff" and row["dataset"] == "cifar10"] == [
        "-2",
        "",
    ]
