"""The paper's tables as grids: their cells, running them, and their reports."""

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import needs
from command import Completed, run_feddle, run_process
from feddle.core.errors import FeddleError
from feddle.core.messages import Job
from feddle.data.datasets import named
from feddle.grids.cells import Ended, Planned, Task, config_hash, plan, run_task
from feddle.grids.estimate import core_seconds
from feddle.grids.grid import chosen, load_grid, names, paper, words
from feddle.grids.runner import conflict, keep, open_folder, run_tasks
from feddle.reading import read_cell, read_run
from feddle.report.files import export, to_csv, to_latex, to_markdown
from feddle.report.grid import Grid, read_grid
from feddle.report.page import page
from feddle.report.tables import price
from feddle.report.warnings import warnings
from feddle.report.words import headline, lead
from feddle.run.folder import RunFolder
from feddle.run.load import parse_config
from feddle.run.plan import Config
from feddle.run.trackers import numbers, tracking
from feddle.runtimes.simulation import Delays
from feddle.version import source_digest
from test_report import Document, drawings, make_run, pointed_at
from tiny import TINY, tiny

TABLES = [name for name in names() if name.startswith("results-")]
CNN = "results-out-domain-cnn"
SMALL = {
    "data.name": "digits",
    "data.server.samples": 100,
    "clients": "{count: 20, per_round: 5}",
    "rounds": 4,
    "evaluation.every": 2,
}


class Silent:
    """A display that prints nothing and remembers which tasks began."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, task: Task) -> None:
        self.begun.append(task.label)

    def round(self, task: Task, line: dict[str, Any]) -> None: ...

    def end(self, task: Task, ended: Ended) -> None: ...


def reproduce(out: Path, *arguments: str, **overrides: Any) -> Completed:
    """Two methods of one setting, on digits."""
    small = [f"-o{key}={value}" for key, value in {**SMALL, **overrides}.items()]
    only = ["--cells", "fashion-mnist/dir0.1/sigma20", "--methods", "feddle-id,fedbuff"]
    return run_feddle("reproduce", CNN, "--quick", "--out", out, *only, *small, *arguments)


def task_in(folder: Path, **changes: Any) -> Task:
    return Task("a/cell", folder, tiny(workers=0, **changes))


# Cells


def test_every_number_of_the_paper_has_one_cell() -> None:
    cells = [cell for name in TABLES for cell in load_grid(name).cells]
    beyond = {"fed+ft-fedbuff", "feddle+", "feddle+-ood"}  # our own rows
    assert all((cell.paper is None) == (cell.key["method"] in beyond) for cell in cells)
    components = [cell.paper for cell in load_grid("components").cells]
    printed = [cell for cell in cells if cell.paper is not None]
    assert (len(printed), len(printed) + len(components)) == (330, len(paper()["accuracy"]))
    assert None not in components
    assert components[0] == (81.9, 0.7)
    assert components[-1] == (82.2, 1.4)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("quick", [False, True])
def test_every_cell_has_a_unique_name_and_config(name: str, quick: bool) -> None:
    cells = load_grid(name, quick=quick).cells
    assert len({cell.name for cell in cells}) == len(cells)
    trees = [json.dumps({**cell.tree, "guide": cell.outside, "waits": cell.waits}, sort_keys=True) for cell in cells]
    if not quick:  # a quick grid uses one small network instead of the paper's
        assert len(set(trees)) == len(cells)
    for cell in cells:
        here = plan(cell)
        assert (here.config is None) == bool(here.reason)


def test_a_cell_is_the_papers_setting() -> None:
    cell = next(c for c in load_grid(CNN).cells if c.name == "cnn/cifar10/dir0.3/sigma5/feddle-ood")
    config = plan(cell).config
    assert config is not None
    assert (config.rounds, config.clients.count, config.clients.per_round) == (200, 500, 10)
    assert config.data.partition.model_dump() == {"name": "dirichlet", "alpha": 0.3}
    assert (config.delays.sigma, config.evaluation.every, config.method.name) == (5, 10, "feddle")
    assert cell.paper == next(
        (row["mean"], row["std"])
        for row in paper()["accuracy"]
        if (row["table"], row["dataset"], row["method"]) == (CNN, "cifar10", "feddle-ood")
        and (row["dirichlet"], row["delay_sigma"]) == (0.3, 5)
    )


def test_a_network_sets_its_image_size_and_is_left_out_if_it_is_missing() -> None:
    cells = {cell.name: cell for cell in load_grid("results-cifar10").cells}
    resnet = plan(cells["resnet18/cifar10/dir0.1/sigma20/fedbuff"]).config
    assert resnet is not None
    assert (resnet.model.name, resnet.data.name, resnet.data.image_size) == ("resnet18", "cifar-10", 224)
    vit = plan(cells["vit-b16-lora/cifar10/center"])
    assert vit.config is None
    assert "the model vit-b16 cannot be fetched" in vit.reason


def test_unavailable_clients_have_a_reason_and_a_missing_guide_a_substitute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path))
    cells = {cell.name: cell for cell in load_grid(CNN, quick=True).cells}
    unavailable = plan(cells["cnn/cifar100/center"])
    assert unavailable.config is None
    assert "cifar-100" in unavailable.reason
    guided = cells["cnn/fashion-mnist/dir0.1/sigma20/feddle-ood"]
    substitute = plan(guided)
    assert substitute.config is not None
    assert substitute.config.data.server.name == "cifar-10"
    assert substitute.substitute == "CIFAR-10 guides instead of ImageNet"
    cifar_clients = plan(cells["cnn/cifar10/dir0.1/sigma20/feddle-ood"])
    assert cifar_clients.substitute == "Fashion-MNIST guides instead of ImageNet"
    for added in ("imagenet", "cifar-100"):  # the files are used as soon as they exist
        (tmp_path / added).mkdir()
    now = plan(guided)
    assert now.config is not None
    assert (now.config.data.server.name, now.config.data.server.samples, now.substitute) == ("imagenet", 250_000, "")
    assert plan(cells["cnn/cifar100/center"]).config is not None


def test_cells_are_selected_by_parts_of_their_names() -> None:
    grid = load_grid(CNN)
    assert len(chosen(grid, ["fashion-mnist"], [])) == 53
    assert [c.name for c in chosen(grid, ["cifar10/dir0.1/sigma20"], ["fedavg"])] == [
        "cnn/cifar10/dir0.1/sigma20/fedavg"
    ]
    assert len(chosen(grid, ["cifar10"], [])) == 53  # not cifar100's too
    assert len(chosen(grid, ["cnn/cifar10/dir0.1/sigma20"], [])) == 13
    guided = {"feddle-id", "feddle-ood", "feddle+", "feddle+-ood"}
    assert {c.key["method"] for c in chosen(grid, ["feddle"], [])} == guided
    assert {c.key["label_noise"] for c in chosen(load_grid("noisy-labels"), ["noise0"], [])} == {0}
    with pytest.raises(FeddleError, match="no cell of results-out-domain-cnn matches mars"):
        chosen(grid, ["mars"], [])
    with pytest.raises(FeddleError, match="has no row 'fedavgg'"):
        chosen(grid, [], ["fedavgg"])
    with pytest.raises(FeddleError, match="did you mean 'results-noisy'"):
        load_grid("results-nosy")


def test_options_of_cells_have_readable_names() -> None:
    assert [words("label_noise", value) for value in (0, 0.1, 0.2)] == [
        "clean labels",
        "10 % of the labels random",
        "20 % of the labels random",
    ]
    assert [words("delay_sigma", 20), words("dirichlet", 0.1)] == ["σ = 20", "Dir(0.1)"]
    assert words("regularisation", 0.0) == "λ = 0"


def test_the_hash_of_a_config_ignores_the_seed_the_workers_and_checkpoints() -> None:
    assert config_hash(tiny()) == config_hash(tiny(seed=3, workers=2, checkpoint={"every": 1}))
    assert config_hash(tiny()) != config_hash(tiny(rounds=5))


def test_the_estimate_grows_with_the_work() -> None:
    def seconds(*overrides: str) -> float:
        cell = next(c for c in load_grid("async-sync", quick=True).cells if c.name.endswith("fedbuff"))
        config = plan(cell, overrides).config
        assert config is not None
        return core_seconds(config) - 3

    in_time = "delays.sigma=0"  # with delays, fewer updates of a short run arrive before it ends
    assert seconds("rounds=48", in_time) == pytest.approx(2 * seconds(in_time), rel=0.01)
    assert seconds("rounds=48") > 2 * seconds()


# Running


def test_a_grid_writes_its_page_and_runs_nothing_twice(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    first = reproduce(out)
    assert first.code == 0, first.err
    assert "Dir(0.1), σ = 20" in first.text
    assert "Not the setting of the table, even where its headings say so: run with data.name=digits" in first.text
    runs = sorted(out.glob("**/result.json"))
    assert len(runs) == 2
    before = {path: path.read_bytes() for path in runs}
    again = reproduce(out)
    assert again.code == 0
    assert {path: path.read_bytes() for path in runs} == before
    record = read_cell(runs[0].parent)
    digits = named("digits")
    assert record["data"] == {"digits": digits.digest()}
    held = json.loads((out / "grid.json").read_text())["cells"]
    assert record["source"] == source_digest()
    assert record["config"] == held["cnn/fashion-mnist/dir0.1/sigma20/fedbuff"]["config"]
    html = (out / "report.html").read_text()
    assert drawings(html, "curves")
    assert "The band of one seed is the 95 % interval" in html
    # a run that is removed and run again gives the same number
    accuracy = json.loads(before[runs[0]])["accuracy"]
    shutil.rmtree(runs[0].parent)
    assert reproduce(out).code == 0
    assert json.loads(runs[0].read_bytes())["accuracy"] == accuracy
    other = reproduce(out, rounds=6)
    assert "left out, 1 cell: its folder has runs with another config; remove " in other.text
    assert "rounds=4" in other.text  # the page still describes the runs that are there
    assert "rounds=6" not in other.text
    one_more = reproduce(out, "--seeds", "1", rounds=6)
    assert "left out, 1 cell: its folder has runs with another config; remove " in one_more.text
    assert sorted(out.glob("**/result.json")) == runs
    broken = reproduce(out, **{"data.name": "celeba"})  # the data of these cells is no longer available
    assert "left out, 2 cells" in broken.text
    assert "left out because" not in broken.text
    same = reproduce(out)
    assert "another config" not in same.text
    assert {path: json.loads(path.read_bytes())["accuracy"] for path in runs}[runs[0]] == accuracy
    full = run_feddle("reproduce", CNN, "--out", out, "--cells", "center")
    assert full.code == 2
    assert "never mixed" in full.err


def test_a_stopped_cell_continues(tmp_path: Path) -> None:
    def stop(line: Any) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    whole, half = (task_in(tmp_path / name, checkpoint={"every": 1}) for name in ("whole", "half"))
    run_task(whole, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        run_task(half, stop)
    display = Silent()
    assert run_tasks([whole, half], 2, display) == []
    assert display.begun == [half.label]
    lines = [(task.folder / "history.jsonl").read_text() for task in (whole, half)]
    assert lines[0] == lines[1]
    assert read_cell(half.folder)["source"] == source_digest()


def test_the_result_of_a_stopped_cell_is_not_shown_once_it_continues(tmp_path: Path) -> None:
    task = task_in(tmp_path / "a", checkpoint={"every": 100}, evaluation={"every": 1})
    shown: list[tuple[float | None, str]] = []

    def stop(line: Any) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    def look(line: Any) -> None:
        if line["round"] == 1:
            run = read_run(task.folder)
            shown.append((run.score, run.status))
            assert run.score == line["accuracy"]

    with pytest.raises(KeyboardInterrupt):
        run_task(task, stop)
    assert read_run(task.folder).status == "interrupted, round 3"
    run_task(task, look)
    assert [status for _, status in shown] == ["not ended, round 1"]


def test_the_record_of_a_resumed_cell_names_every_source(tmp_path: Path) -> None:
    task = task_in(tmp_path / "a", checkpoint={"every": 1})

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_task(task, stop)
    record = {**read_cell(task.folder), "source": "0" * 64}
    (task.folder / "cell.json").write_text(json.dumps(record))
    assert run_task(task, lambda _: None).reason == ""
    assert read_cell(task.folder) == {**record, "source": f"{'0' * 64} {source_digest()}"}
    (task.folder / "cell.json").write_text(json.dumps(record))
    run_task(task, lambda _: None)  # finished: this process computes nothing
    assert read_cell(task.folder)["source"] == "0" * 64


def test_a_cell_with_another_config_is_never_continued(tmp_path: Path) -> None:
    stopped = task_in(tmp_path / "cell" / "seed0")
    stopped.folder.mkdir(parents=True)
    RunFolder(stopped.folder).begin(stopped.config.model_dump(mode="json"))  # stopped before its record was written
    cell = replace(load_grid(CNN).cells[0], name="cell")
    assert conflict(Planned(cell, stopped.config), tmp_path) == ""
    assert conflict(Planned(cell, tiny(workers=0, seed=1)), tmp_path) == ""
    assert f"remove {tmp_path / 'cell'} to run it again" in conflict(Planned(cell, tiny(workers=0, rounds=9)), tmp_path)


def test_an_unavailable_cell_is_distinguished_from_a_failed_one(tmp_path: Path) -> None:
    unavailable = Task("a", tmp_path / "a", parse_config({**TINY, "data": {**TINY["data"], "name": "mars"}}))
    broken = task_in(tmp_path / "b", training={"lr": 1e30, "epochs": 1})
    failed = {task.label: ended for task, ended in run_tasks([unavailable, broken], 1, Silent())}
    assert not failed[unavailable.label].begun
    assert "unknown data set 'mars'" in failed[unavailable.label].reason
    assert failed[broken.label].begun


def test_the_clock_of_a_waiting_server_includes_its_slowest_client(tmp_path: Path) -> None:
    task = Task("a", tmp_path / "a", tiny(workers=0, delays={"sigma": 0}, method="fedavg"), waits=8.0)
    staleness: list[list[int]] = []
    run_task(task, lambda line: staleness.append(line["staleness"]))
    clock = read_cell(task.folder)["clock"]
    delays = Delays(sigma=8.0)
    slowest = max(delays.draw(Job(client, 0, 0), 0) for client in range(20))
    lengths = [b - a for a, b in zip([0, *clock], clock, strict=False)]
    assert all(set(stale) == {0} and len(stale) == 5 for stale in staleness)  # nothing was late
    assert all(1 <= length <= 1 + slowest for length in lengths)
    assert sum(lengths) > len(lengths)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", CNN, "--seeds", "a"], "--seeds: expected whole numbers"),
        (["reproduce", CNN, "--seeds", "-1"], "from 0 up"),
        (["reproduce", CNN, "--list", "-o", "rund=3"], "-o rund=3: unknown key 'rund'; did you mean 'rounds'?"),
        (["reproduce", CNN, "--list", "-o", "rounds=many"], "-o rounds=many: rounds: expected a whole number"),
        (["reproduce", CNN, "--out", __file__], "is a file; name another folder with --out"),
        (["report", "nowhere", "--watch"], "expected a run folder, but there is no such folder"),
    ],
)
def test_mistakes_on_the_command_line_are_reported(arguments: Sequence[str], message: str) -> None:
    result = run_feddle(*arguments)
    assert result.code == 2
    assert message in result.err


def test_lists_show_what_is_available_and_how_long_it_takes() -> None:
    tables = run_feddle("reproduce")
    assert all(name in tables.text for name in names())
    cells = run_feddle("reproduce", CNN, "--quick", "--list", "--methods", "feddle-ood")
    assert "instead of" in cells.text
    assert "left out" in cells.text
    assert re.search(r"8 runs, about .* with \d at a time", cells.text)
    noisy = run_feddle(
        "reproduce", "noisy-labels", "--quick", "--list", "--cells", "noise0.2", "--methods", "fedbuff"
    ).out
    assert noisy.startswith("How much accuracy random labels cost. Not a table of the paper")
    assert "noise0 is clean labels, noise0.2 is 20 % of the labels random" in noisy


def test_cells_that_do_not_accept_an_override_are_left_out() -> None:
    only = ["--cells", "fashion-mnist/dir0.1/sigma20", "--methods", "feddle-id,fedbuff"]
    listed = run_feddle("reproduce", CNN, "--quick", "--list", *only, "-o", "method.atlas_size=20").out
    assert "is an option of feddle, feddle+, not of fedbuff" in listed
    assert "1 runs" in listed


def test_a_waiting_server_refuses_other_delays() -> None:
    waiting = next(cell for cell in load_grid("async-sync").cells if cell.waits)
    assert "leave out -o delays.sigma" in plan(waiting, ["delays.sigma=3"]).reason
    assert plan(waiting, ["delays.sigma=0"]).config is not None


def test_checkpoints_and_workers_do_not_count_as_changes_of_a_cell() -> None:
    planned = plan(load_grid(CNN).cells[0], ["checkpoint.every=2", "workers=1", "training.epochs=3"])
    assert planned.changed == ("training.epochs=3",)


def test_two_commands_may_fill_one_folder(tmp_path: Path) -> None:
    grid = load_grid(CNN)
    first, second = ([plan(cell)] for cell in grid.cells[:2])
    for planned in (first, second, first):  # the first ends after the second has begun
        keep(tmp_path, grid, planned, command=planned[0].cell.name)
    held = open_folder(tmp_path, grid)
    assert list(held["cells"]) == held["asked"] == [cell.name for cell in grid.cells[:2]]


@pytest.mark.parametrize("cells", ["", ', "cells": [1]'])
def test_a_damaged_record_of_a_grid_is_reported_in_one_line(tmp_path: Path, cells: str) -> None:
    (tmp_path / "grid.json").write_text(f'{{"grid": "{CNN}", "quick": true{cells}}}')
    with pytest.raises(FeddleError, match="remove that file and give the command again"):
        open_folder(tmp_path, load_grid(CNN, quick=True))


def test_a_grid_record_of_another_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text("[]")
    with pytest.raises(FeddleError, match="is damaged"):
        open_folder(tmp_path, load_grid(CNN, quick=True))
    with pytest.raises(FeddleError, match="run the command again, which keeps the runs"):
        read_grid(tmp_path)


# Reports


def make_grid(folder: Path, accuracies: dict[str, list[list[float]]], *, quick: bool = False) -> Grid:
    """A grid of two delays; for each method the curves of its seeds, the same for both delays."""
    sigmas = [{"value": s, "words": f"σ = {s}"} for s in (20, 5)]
    axes: dict[str, Any] = {
        "model": [{"value": "cnn", "words": "CNN"}],
        "dataset": [{"value": "cifar10", "words": "CIFAR-10"}, {"value": "mars", "words": "Mars"}],
        "delay_sigma": sigmas,
        "method": [{"value": m, "words": m.title()} for m in accuracies],
    }
    cells: dict[str, Any] = {}
    for method, seeds in accuracies.items():
        for sigma in [None] if method == "center" else [20, 5]:
            key: dict[str, Any] = {"model": "cnn", "dataset": "cifar10", "method": method}
            key |= {} if sigma is None else {"delay_sigma": sigma}
            name = f"cnn/cifar10/{sigma}/{method}"
            cells[name] = {"key": key, "paper": [80.0, 1.0], "server": "own", "config": "c", "left_out": ""}
            cells[name]["substitute"] = "CIFAR-10 guides instead of ImageNet" if method == "feddle-ood" else ""
            for seed, curve in enumerate(seeds):
                run = make_run(
                    folder / name / f"seed{seed}",
                    method,
                    curve,
                    [0.2, -0.1] if "feddle" in method else [],
                    {"seed": seed},
                )
                lines = [
                    json.loads(line) | {"staleness": [0, 3]}
                    for line in (run / "history.jsonl").read_text().splitlines()
                ]
                (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
                made = {"config": "c", "feddle": "0.1.0", "data": {"cifar-10": "d"}}
                (run / "cell.json").write_text(json.dumps(made))
    key = {"model": "cnn", "dataset": "mars", "delay_sigma": 20, "method": "fedbuff"}
    cells["cnn/mars"] = {"key": key, "left_out": "no <data> of Mars", "server": "none", "paper": None, "config": None}
    facts = {"grid": "results-x", "title": "A & B", "quick": quick, "axes": axes, "cells": cells, "asked": ["feddle x"]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "grid.json").write_text(json.dumps(facts))
    return read_grid(folder)


CURVES = {
    "center": [[0.5, 0.6]],
    "fedbuff": [[0.3, 0.5], [0.3, 0.4]],
    "feddle-id": [[0.6, 0.8], [0.5, 0.7]],
    "feddle-ood": [[0.6, 0.7], [0.5, 0.6]],
}


def test_the_page_of_a_grid_has_all_parts(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", CURVES)
    html = page([grid])
    document = Document(html)
    assert document.inside("h1") == ["Feddle-Id leads in 2 of 2 settings"]
    assert "75.0 ± 7.1" in document.inside("u")  # above Center
    assert "75.0 ± 7.1" not in document.inside("td")
    assert "45.0 ± 7.1" in document.inside("td")
    assert any("paper 80.0 ± 1.0" in text for text in document.inside("small"))
    assert [len(drawings(html, kind)) for kind in ("curves", "bars")] == [4, 4]
    assert html.count('class="heat"') == 4
    assert "1 cell: no <data> of Mars" in " ".join(document.inside("li"))
    assert any("CIFAR-10 guides instead of ImageNet" in text for text in document.inside("p"))
    assert "feddle x" in document.inside("code")
    assert any(text.startswith("σ: delay of the updates in rounds") for text in document.inside("p"))
    assert not re.search(r"https?://|@import|url\(|<link", html)
    assert html.count('class="band') == 2 * 2 * 4  # wide and narrow, two settings, four methods


def test_the_lead_of_a_grid_follows_from_its_numbers(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", CURVES)
    text = " ".join(lead(grid))
    assert "Feddle-Id reaches 75.0% and Feddle-Ood reaches 65.0% on average over the settings; " in text
    assert "Leads that the test examples and seeds support: Feddle-Id in 2 of 2 settings." in text
    assert "2 of the other 3 are above Center (60.0%)" in text
    assert "7 of 8 cells are finished, 1 left out" in text
    assert "within two points of its number, and on average" in text
    assert "paper" not in " ".join(lead(make_grid(tmp_path / "q", CURVES, quick=True)))
    nothing = make_grid(tmp_path / "n", {"fedbuff": []})
    assert headline(nothing) == "A & B"
    Document(page([nothing]))


def test_a_report_warns_about_results_that_do_not_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    assert warnings(make_grid(folder, {"fedbuff": [[0.5]], "feddle-id": [[0.6]]})) == []
    runs = sorted(folder.glob("cnn/**/seed0"))
    result = json.loads((runs[0] / "result.json").read_text())
    (runs[0] / "result.json").write_text(json.dumps({**result, "feddle": "0.2.0"}))
    (runs[1] / "cell.json").write_text(json.dumps({"config": "e", "data": {"cifar-10": "f"}}))
    (runs[2] / "cell.json").unlink()
    shutil.copytree(runs[3], runs[3].with_name("seed1"))
    text = " ".join(warnings(read_grid(folder)))
    for expected in ("versions of feddle: 0.2.0 and 0.1.0", "another config", "contents of cifar-10"):
        assert expected in text
    assert "Without a record" in text
    assert "same seeds" in text
    assert "source" not in text  # older records do not have it
    made = {"config": "c", "source": f"{'a' * 64} {'b' * 64}", "data": {"model": "m"}}
    (runs[0] / "cell.json").write_text(json.dumps(made))
    (runs[1] / "cell.json").write_text(json.dumps({"config": "c", "data": {"model": "n"}}))
    text = " ".join(warnings(read_grid(folder)))
    assert "different states of feddle’s source: aaaaaaaaaaaa, bbbbbbbbbbbb and unknown" in text
    assert "different contents of model" in text


def test_tables_for_a_paper(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", CURVES)
    markdown = to_markdown(grid)
    assert "| Feddle-Id | **<u>75.0 ± 7.1</u>** | 80.0 ± 1.0 |" in markdown
    assert "| Feddle-Ood | <u>65.0 ± 7.1</u>† | 80.0 ± 1.0 |" in markdown
    latex = to_latex(grid)
    assert r"\textbf{\underline{75.0 $\pm$ 7.1}} {\scriptsize (80.0 $\pm$ 1.0)}" in latex
    assert r"A \& B" in latex
    rows = list(csv.DictReader(io.StringIO(to_csv(grid))))
    feddle_id = next(row for row in rows if row["method"] == "feddle-id" and row["delay_sigma"] == "20")
    assert (feddle_id["mean"], feddle_id["seeds"], feddle_id["paper_mean"]) == ("75.000", "2", "80.0")
    assert next(row for row in rows if row["dataset"] == "mars")["left_out"] == "no <data> of Mars"


def test_figures_for_a_paper(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", CURVES)
    png, *_ = export([grid], ["png"], tmp_path / "f")
    pdf, *_ = export([grid], ["pdf"], tmp_path / "f")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_two_grids_of_a_table_are_exported_to_different_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_grid(tmp_path / name, {"fedbuff": CURVES["fedbuff"]}, quick=name == "a")
    exports = ["--export", "csv", "--export", "png"]
    assert run_feddle("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "p.html", *exports).code == 0
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["results-x-a.csv", "results-x-b.csv"]
    assert len(list(tmp_path.glob("results-x-[ab]-*.png"))) == 4
    run_feddle("report", tmp_path / "a", "--export", "csv")
    assert (tmp_path / "a" / "results-x.csv").is_file()


def test_time_and_bytes_to_a_target(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", {"fedbuff": [[0.3, 0.5, 0.6], [0.5, 0.6, 0.7], [0.1, 0.2, 0.3]]})
    assert [price(each, 0.5) for each in grid.cells[0].runs] == [(2, 6e6), (1, 3e6), None]  # 3 MB per round
    assert "4.5 MB, 2 of 3 seeds" in page([grid], 0.5)
    run = tmp_path / "g" / grid.cells[0].name / "seed0"
    (run / "cell.json").write_text(json.dumps({"config": "c", "clock": [10, 25, 26]}))
    waiting = read_grid(tmp_path / "g")
    assert price(waiting.cells[0].runs[0], 0.5) == (25, 6e6)
    assert "13 rounds<small>4.5 MB, 2 of 3 seeds" in page([waiting], 0.5)


def test_the_band_of_one_seed_is_of_its_clients(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", {"fedbuff": [[0.3, 0.5]]})
    path = tmp_path / "g" / grid.cells[0].name / "seed0" / "history.jsonl"
    path.write_text('{"round": 4, "update_cosine": {"mean": 0.2, "min": -0.1, "max": 0.6}}\n')
    cell = read_grid(tmp_path / "g").cells[0]
    assert cell.curve("update_cosine") == ([(4, 0.2)], [(4, -0.1, 0.6)])
    assert cell.curve() == ([], [])


def test_single_runs_over_seeds_are_one_row(tmp_path: Path) -> None:
    for method, accuracies in (("feddle", [0.6, 0.8]), ("fedbuff", [0.5, 0.7])):
        for seed, accuracy in enumerate(accuracies):
            make_run(tmp_path / "r" / f"{method}{seed}", method, [accuracy], config={"seed": seed})
    shown = run_feddle("report", tmp_path / "r", "--out", tmp_path / "report.html")
    assert shown.code == 0, shown.err
    assert "70.0 ± 14.1" in shown.out
    document = Document((tmp_path / "report.html").read_text())
    assert document.inside("h1") == ["feddle leads by 10.0 points"]
    assert f"feddle run {tmp_path}/r/fedbuff1/config.yaml" in document.inside("code")
    one = run_feddle("report", tmp_path / "r" / "feddle0", tmp_path / "r" / "fedbuff1", "--out", tmp_path / "one.html")
    assert "±" not in one.text


def test_single_runs_accept_the_report_options_of_grids(tmp_path: Path) -> None:
    for method, curve in (("feddle", [0.6, 0.8]), ("fedbuff", [0.5, 0.7])):
        make_run(tmp_path / "r" / method, method, curve)
    options = ["--watch", "--target", "70", "--export", "csv", "--export", "latex"]
    shown = run_feddle("report", tmp_path / "r", "--out", tmp_path / "p" / "page.html", *options)
    assert shown.code == 0, shown.err
    assert "2 of 2 cells finished" in shown.text
    document = Document((tmp_path / "p" / "page.html").read_text())
    assert {"To 70.0%", "MB up"} <= set(document.inside("th"))
    assert "2 rounds" in document.inside("td")  # both reach it in their second evaluation
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p" / "runs.csv").read_text())))
    assert [(row["method"], row["mean"]) for row in rows] == [("feddle", "80.000"), ("fedbuff", "70.000")]
    assert r"feddle & \textbf{80.0\%}" in (tmp_path / "p" / "runs.tex").read_text()


def test_runs_and_grids_may_be_on_one_page(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", {"fedbuff": CURVES["fedbuff"]})
    run = make_run(tmp_path / "r", "feddle")
    assert run_feddle("report", grid.folder, run, "--out", tmp_path / "page.html").code == 0
    assert "feddle reaches 70.0%" in Document((tmp_path / "page.html").read_text()).inside("h1")


def test_watching_ends_with_the_grid(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "g", CURVES)
    watched = run_feddle("report", grid.folder, "--watch", "--target", "70", "--export", "csv")
    assert watched.code == 0, watched.err
    assert "7 of 7 cells finished" in watched.err
    html = (grid.folder / "report.html").read_text()
    assert "to 70.0%" in html
    assert 'http-equiv="refresh"' not in html  # the last page stays as it is
    assert (grid.folder / "results-x.csv").exists()


@pytest.mark.slow
@needs.chromium
def test_a_browser_shows_a_grid_without_an_error_and_without_the_network(tmp_path: Path) -> None:
    html = page([make_grid(tmp_path / "g", CURVES)])
    shown = in_browser(pointed_at(html), tmp_path / "page")
    assert "Feddle-Id leads in 2 of 2 settings" in shown.out
    assert "<div>Round 1</div>" in shown.out  # the script has run
    assert "CONSOLE" not in shown.err
    fetching = html.replace("<main>", '<main><img src="http://example.com/x.png" alt="">')
    assert "CONSOLE" in in_browser(fetching, tmp_path / "other").err  # a request is reported there


def in_browser(html: str, folder: Path) -> Completed:
    """Open a page in a browser that cannot resolve host names; its console messages are in stderr."""
    folder.mkdir()
    page = folder / "report.html"
    page.write_text(html, encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"]
    command += ["--dump-dom", page.as_uri()]
    shown = run_process(*command)
    assert shown.code == 0, shown.err
    return shown


# Other tools


def test_a_run_is_logged_to_tensorboard(tmp_path: Path) -> None:
    run_task(Task("a", tmp_path / "a", tiny(workers=0), track=("tensorboard",)), lambda _: None)
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    for name in ("accuracy", "arrivals"):
        lines = [line for line in read_run(tmp_path / "a").history if name in line and line["round"]]
        assert lines, name
        logged = {event.step: float(make_ndarray(event.tensor_proto)) for event in events.Tensors(name)}
        assert logged == pytest.approx({line["round"]: line[name] for line in lines})
    assert numbers({"round": 1, "a": {"mean": 2.0}, "b": [1], "c": None, "d": True}) == {"a.mean": 2.0}


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_reported(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, f"{name}.summary"):
        monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(FeddleError, match=rf"pip install 'feddle\[{name}\]'"),
        tracking([name], tmp_path, Config(), print),
    ):
        pass
