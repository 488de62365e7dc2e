"""The comparison report: reading run folders, the terminal table and the page."""

import base64
import csv
import json
import re
import struct
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import yaml
from rich.console import Console

import needs
from command import PYTHON, run_feddle, run_process
from feddle.cli.display import terminal_table
from feddle.core.errors import FeddleError
from feddle.reading import read_run
from feddle.records import hex_of
from feddle.report.axes import round_axis, thinned, tick_text, value_axis
from feddle.report.clients import about_classes
from feddle.report.grid import Grid, grid_of_runs, read_grids
from feddle.report.markup import element
from feddle.report.numbers import duration, megabytes
from feddle.report.page import page as page_of
from feddle.report.page import write_document
from feddle.report.setting import remarks, setting
from feddle.report.tables import cost
from feddle.report.words import headline, lead
from tiny import TINY

VOID = {"meta", "img"}
PICTURES = (("src", "alt"), ("src", "alt", "width", "height"))  # attributes of a heat map and of its legend


def make_run(
    folder: Path,
    method: str = "feddle",
    accuracies: Sequence[float | None] = (0.5, 0.7, 0.6),
    coefficients: Sequence[float] = (),
    config: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
    tests: int = 1000,
) -> Path:
    """Write a run folder. `result` is added to the default result.json; `{}` omits the file.

    The last model is right on the first of the `tests` test images. With `tests=0`, the folder has no record of them.
    """
    folder.mkdir(parents=True)
    settings = {
        "seed": 0,
        "rounds": 80,
        "clients": {"count": 100, "per_round": 10},
        "data": {"name": "cifar10", "partition": {"name": "dirichlet", "alpha": 0.1}},
        "delays": {"sigma": 2.5, "per": "job"},
        "method": {"name": method},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings | (config or {})))
    lines = []
    for at, accuracy in enumerate(accuracies, 1):
        entry: dict[str, Any] = {"round": at, "bytes_up": 1_000_000 * at, "bytes_down": 2_000_000 * at}
        if accuracy is not None:
            entry["accuracy"] = accuracy
        if coefficients:
            entry["coefficients"] = list(coefficients)
        lines.append(json.dumps(entry) + "\n")
    (folder / "history.jsonl").write_text("".join(lines))
    num_correct = tests * ([0, *accuracies][-1] or 0)
    usual: dict[str, Any] = {"correct": hex_of([at + 0.5 < num_correct for at in range(tests)])} if tests else {}
    if tests:
        data = {"train": 50_000, "guidance": 500, "test": tests, "guess": 0.1, "digest": "d"}
        (folder / "data.json").write_text(json.dumps(data))
    if result is None or result:
        usual |= {"method": method, "seconds": 61.2, "finished": True, "feddle": "0.1.0", "torch": "2.13.0"}
        (folder / "result.json").write_text(json.dumps(usual | (result or {})))
    return folder


class Document(HTMLParser):
    """Collects elements and text, and fails on tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data.replace("\N{NO-BREAK SPACE}", " ")))

    def inside(self, tag: str) -> list[str]:
        return [text for parent, text in self.texts if parent == tag]


def write_report(folders: Sequence[Path], out: Path) -> Path:
    return write_document(page_of(read_grids(folders)), out)


def written(folders: Sequence[Path], out: Path) -> str:
    return write_report(folders, out / "report.html").read_text(encoding="utf-8")


def drawings(html: str, kind: str) -> list[ElementTree.Element]:
    found = re.findall(rf'<svg class="{kind} .*?</svg>', html, re.DOTALL)
    return [ElementTree.fromstring(text) for text in found]  # noqa: S314 (our own output)


def printed(grid: Grid, width: int = 80) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(terminal_table(grid, grid.panels[0]))
    return capture.get()


# Reading


def test_a_run_is_read(tmp_path: Path) -> None:
    record = read_run(make_run(tmp_path / "a", accuracies=[None, 0.5, float("nan"), 0.75]))
    assert (record.method, len(record.history)) == ("feddle", 4)
    assert record.curve == [(2, 0.5), (4, 0.75)]


def test_a_half_written_last_line_is_ignored(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", result={})
    with (folder / "history.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "note": "\xc3')
    record = read_run(folder)
    assert [entry["round"] for entry in record.history] == [1, 2, 3]
    assert record.result == {}


def test_a_round_written_twice_counts_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", accuracies=[0.1, 0.2])
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 2, "accuracy": 0.3}\n')
    assert read_run(folder).curve == [(1, 0.1), (2, 0.3)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("history.jsonl", '{"round": 1}\n{"rou\n{"round": 3}\n', "line 2: expected JSON"),
        ("history.jsonl", "[1]\n", "line 1: expected named values, but found list"),
        ("result.json", '{"method": ', "result.json: expected JSON"),
        ("config.yaml", "a: [1\nb: }", "config.yaml: expected YAML"),
        ("config.yaml", "", "config.yaml: expected named values, but found NoneType"),
    ],
)
def test_a_broken_file_is_named_in_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = make_run(tmp_path / "a")
    (folder / name).write_text(content)
    with pytest.raises(FeddleError) as caught:
        read_run(folder)
    assert message in str(caught.value)
    assert str(caught.value).count("fix the file") == 1
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FeddleError, match="no such folder"):
        grid_of_runs([tmp_path / "missing"])
    with pytest.raises(FeddleError, match=r"holds no config\.yaml"):
        read_run(tmp_path)
    with pytest.raises(FeddleError, match=r"found no config\.yaml in it or one level below"):
        grid_of_runs([tmp_path])


def test_a_folder_of_runs_includes_all_of_them(tmp_path: Path) -> None:
    for name, method in (("b", "fedbuff"), ("a", "feddle"), ("feddle-2", "feddle")):
        make_run(tmp_path / "runs" / name, method)
    (tmp_path / "runs" / "notes").mkdir()
    cells = grid_of_runs([tmp_path / "runs", tmp_path / "runs" / "a"]).cells
    assert [[run.folder.name for run in cell.runs] for cell in cells] == [["a"], ["b"], ["feddle-2"]]
    assert [cell.name for cell in cells] == ["feddle (a)", "fedbuff", "feddle-2"]


def test_equal_folder_names_are_distinguished_by_their_parents(tmp_path: Path) -> None:
    grid = grid_of_runs([make_run(tmp_path / parent / "run") for parent in ("x", "y")])
    assert [cell.name for cell in grid.cells] == ["feddle (x/run)", "feddle (y/run)"]


# Numbers and sentences


def test_the_papers_rule_is_the_best_of_the_last_five(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a", accuracies=[0.9, 0.1, 0.2, 0.5, 0.3, 0.4], result={}))
    assert (run.score, run.last_score, run.bytes_up) == (0.5, 0.4, 6e6)
    assert run.status == "not ended, round 6"


def test_values_in_the_result_take_precedence_over_the_history(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "a",
        coefficients=[0.1, -0.2],
        result={"accuracy": 0.81, "finished": False, "negative_share": None},
    )
    run = read_run(folder)
    assert (run.score, run.last_score, run.negative_share) == (0.81, 0.6, 0.5)
    assert run.status == "interrupted, round 3"


def test_durations_and_sizes_have_readable_units() -> None:
    assert [duration(value) for value in (61.2, 725, 12000, None)] == [
        "61.2 s",
        "12 min 05 s",
        "3 h 20 min",
        "–",
    ]
    assert [megabytes(value) for value in (1.25e6, 3.2e9, None)] == ["1.2", "3,200", "–"]


@pytest.mark.parametrize(
    ("accuracies", "head", "sentence"),
    [
        ([0.81, 0.75, 0.7], "r0 leads by 6.0 points", "reaches 81.0%, 6.0 percentage points more than r1 (75.0%). Ex"),
        ([0.81, 0.80], "r0 leads by 1.0 points", "r0 reaches 81.0%, 1.0 percentage points more than r1"),
        ([0.5, 0.50001], "No difference that 1,000 test examples can show", "r1 reaches 50.0%. r0 (50.0%): no diff"),
        (
            [0.81, 0.809, 0.7],
            "r0 and r1: no difference that 1,000 test examples can show",
            "p = 1). Behind: r2 (70.0%).",
        ),
        ([0.5, None], "r0 reaches 50.0%", "No evaluation yet: r1."),
        ([None], "No evaluation yet", "No evaluation yet: r0."),
    ],
)
def test_the_headline_and_the_lead_follow_from_the_numbers(
    tmp_path: Path, accuracies: list[float | None], head: str, sentence: str
) -> None:
    folders = [make_run(tmp_path / f"r{i}", f"r{i}", [value]) for i, value in enumerate(accuracies)]
    grid = grid_of_runs(folders)
    assert headline(grid) == head
    assert sentence in " ".join(lead(grid))


def test_the_setting_names_what_is_shared_and_what_differs(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / str(seed), f"m{seed}", config={"seed": seed}) for seed in (0, 1))
    assert setting([read_run(one)]) == (
        "Setting: cifar10, 100 clients (10 per round), dirichlet partition with α = 0.1, delay σ = 2.5 per job, "
        "80 rounds, seed 0."
    )
    assert "80 rounds. The runs differ in seed." in setting([read_run(one), read_run(two)])
    assert {"seed 0", "seed 1"} <= set(Document(written([one, two], tmp_path)).inside("small"))
    bare = make_run(tmp_path / "bare")
    (bare / "config.yaml").write_text("method: feddle\ndelays: null\ndata: {partition: [1]}\n")
    assert setting([read_run(bare)]) == ""


# Scales


def test_ticks_are_round_numbers() -> None:
    assert list(round_axis(80, 0, 100, 4).ticks) == [0, 20, 40, 60, 80]
    assert list(round_axis(1, 0, 100, 8).ticks) == [0, 1]
    axis = value_axis([12.0, 81.0], 100, 0, 6, 2, (0, 100))
    assert list(axis.ticks) == [20, 40, 60, 80]
    assert axis.place(axis.low) == 100
    for value in (0.0, 100.0):  # equal values at either bound
        axis = value_axis([value], 100, 0, 6, 2, (0, 100))
        assert 0 <= axis.low < axis.high <= 100
    assert tick_text(1.5e9, 5e8) == "1.5e+09"
    assert [tick_text(value, 0.05) for value in (-0.05, -0.0, 0.1)] == ["−0.05", "0.00", "0.10"]


def test_a_thinned_sequence_keeps_its_last_value() -> None:
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert thinned([1, 2], 4) == [1, 2]


# The terminal table


def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    make_run(tmp_path / "r" / "a", "[red]" + "long-" * 12, [0.7123], result={"finished": False})
    make_run(tmp_path / "r" / "b", "feddle", [0.815], [0.1, -0.1], result={"seconds": 40000})
    text = printed(grid_of_runs([tmp_path / "r"]))
    assert max(map(len, text.splitlines())) <= 80
    for shown in ("[red]long", "71.2%", "81.5%", "11 h 07 min", "50.0%", "interrupted"):
        assert shown in text


def test_the_best_accuracy_is_bold(tmp_path: Path) -> None:
    for name, accuracy in (("low", 0.5), ("high", 0.8), ("none", None)):
        make_run(tmp_path / "r" / name, name, [accuracy])
    grid = grid_of_runs([tmp_path / "r"])
    cells = list(terminal_table(grid, grid.panels[0]).columns[1].cells)
    assert [(str(cell), getattr(cell, "style", "")) for cell in cells] == [
        ("80.0%", "bold"),
        ("50.0%", ""),
        ("–", ""),
    ]


def test_a_column_without_values_is_not_shown(tmp_path: Path) -> None:
    plain = grid_of_runs([make_run(tmp_path / "a", "fedbuff"), make_run(tmp_path / "b", "fedavg")])
    assert "Negative" not in printed(plain)
    assert "Negative" not in page_of([plain])
    make_run(tmp_path / "c", "feddle", coefficients=[0.1, -0.1])
    assert "Negative" in printed(grid_of_runs([tmp_path / "a", tmp_path / "c"]))


# The page


def test_the_page_shows_all_parts(tmp_path: Path) -> None:
    make_run(tmp_path / "r" / "a", "feddle", [0.5, 0.8], [0.3, -0.1, 0.2, 0.1])
    privacy = {"unit": "client", "updates": 7, "epsilon": 14.1912, "delta": 1e-5}
    spent = "privacy spent: ε = 14.2 at δ = 1e-05 by the client with the most updates (7)"
    odd = {"finished": False, "refused": {"NaN": 3}, "privacy": privacy}
    make_run(tmp_path / "r" / "b c", "fedbuff", [0.5, 0.7], result=odd)
    html = written([tmp_path / "r"], tmp_path / "new" / "place")
    document = Document(html)
    assert document.inside("h1") == ["No winner: not all runs are finished"]
    assert {"80.0%", "70.0%"} <= set(document.inside("td"))  # so none is bold
    assert "Examples: 50,000 for training, 500 for guidance at the server and 1,000 for testing." in document.inside(
        "p"
    )
    assert "70.0%" in document.inside("td")
    assert "25.0%" in document.inside("td")
    assert {"interrupted, round 2", "updates refused: NaN (3)", spent} <= set(document.inside("small"))
    assert f"feddle run '{tmp_path}/r/b c/config.yaml'" in document.inside("code")
    assert "Results computed with feddle 0.1.0, torch 2.13.0." in document.inside("p")
    assert (len(drawings(html, "curves")), html.count('class="heat"')) == (2, 1)
    assert list((tmp_path / "new" / "place").iterdir()) == [tmp_path / "new" / "place" / "report.html"]


def refusing_run(folder: Path, method: str, refused: dict[int, str], **more: Any) -> Path:
    """A run whose server refused one update of each of these clients in round 1, and the same ones in round 2."""
    counts = {reason: 2 * list(refused.values()).count(reason) for reason in refused.values()}
    run = make_run(folder, method, [0.5, 0.7, 0.6], result={"refused": counts}, **more)
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for line in lines[:2]:
        line["refused"] = [{"client": client, "reason": reason} for client, reason in refused.items()]
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_refused_updates_are_a_warning_with_their_clients_and_advice(tmp_path: Path) -> None:
    long = dict.fromkeys(range(3, 10), "too long")
    a = refusing_run(tmp_path / "a", "feddle", long | {1: "not a number"})
    b = refusing_run(tmp_path / "b", "fedbuff", {7: "too long", 2: "wrong layout"})
    document = Document(written([a, b], tmp_path))
    alerts = [text for text in document.inside("p") if text.startswith("The server refused")]
    assert alerts[0].startswith(
        "The server refused 16 updates of feddle and fedbuff, from 7 clients: client 7 (4), client 3 (2), client 4 (2),"
        " client 5 (2), client 6 (2) and 2 more. Reason: too long. The norm of such an update exceeds"
    )
    assert "raise checks.max_norm_ratio, or set it to null" in alerts[0]
    assert alerts[1:] == [
        "The server refused 2 updates of feddle, from 1 client: client 1 (2). Reason: not a number. "
        "Training diverges at these clients: lower training.lr.",
        "The server refused 2 updates of fedbuff, from 1 client: client 2 (2). Reason: wrong layout. "
        "Check that these clients run the same model and the same version of feddle as the server.",
    ]
    assert "updates refused: too long (14), not a number (2)" in document.inside("small")
    shown = run_feddle("report", a, b, "--out", tmp_path / "r.html", "--export", "csv").out
    assert f"Warning: {alerts[1]}\n" in shown
    assert [row["refused"] for row in csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())] == ["16", "4"]


def test_clients_of_several_seeds_are_distinguished(tmp_path: Path) -> None:
    for seed in (0, 1):
        refusing_run(tmp_path / "r" / str(seed), "feddle", {3: "infinite"}, config={"seed": seed})
    assert "of feddle, from 2 clients: client 3 of seed 0 (2) and client 3 of seed 1 (2)." in written(
        [tmp_path / "r"], tmp_path
    )


def test_refusals_without_clients_and_damaged_ones_still_render(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old", "old", result={"refused": {"too long": 3}})
    assert "The server refused 3 updates of old. Reason: too long." in written([old], tmp_path)
    stopped = refusing_run(tmp_path / "stopped", "stopped", {4: "infinite"})
    (stopped / "result.json").unlink()
    assert "refused 2 updates of stopped, from 1 client: client 4 (2). Reason: infinite." in written(
        [stopped], tmp_path
    )
    odd = make_run(tmp_path / "odd", "odd", result={"refused": [{"client": 1}]})
    lines = '{"round": 1, "refused": {"too long": 1}}\n{"round": 2, "refused": [3, {"client": "x"}, {"client": 1}]}\n'
    (odd / "history.jsonl").write_text(lines)
    assert "refused" not in written([odd], tmp_path)
    hostile = refusing_run(tmp_path / "hostile", "hostile", {1: "<b>\x1b[2J\n" + "x" * 9999})
    output = run_feddle("report", hostile, "--out", tmp_path / "h.html").out
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) < 600


def test_a_real_run_reports_refused_updates(tmp_path: Path) -> None:
    tree = {**TINY, "attack": {"name": "scale", "share": 0.2, "factor": 1e6}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    result = run_feddle("run", tmp_path / "c.yaml", "--out", tmp_path / "run", "-q")
    assert result.code == 0, result.err
    assert re.search(
        r"^Warning: The server refused \d+ updates? of feddle.*too long\..*max_norm_ratio", result.out, re.M
    )


def test_curves_have_a_legend_and_values_best_first(tmp_path: Path) -> None:
    for method, curve in (("fedavg", [0.6, 0.4]), ("feddle", [0.5, 0.8])):
        make_run(tmp_path / "r" / method, method, curve)
    html = written([tmp_path / "r"], tmp_path)
    assert Document(html).inside("li")[2:4] == ["feddle", "fedavg"]
    rows = [["1", "50.0%", "60.0%"], ["2", "80.0%", "40.0%"]]
    texts = [f'<tr><th scope="row">{at}</th><td>{first}</td><td>{second}</td></tr>' for at, first, second in rows]
    assert "".join(texts) in html


def test_local_is_a_dashed_line_and_not_a_curve(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, name, [0.5]) for name in ("fedavg", "local")]
    label = "local: mean of the clients’ own models, the dashed line"
    assert label in written(runs, tmp_path / "both")
    assert written(runs, tmp_path / "both").count('<g class="d0 s1 level">') == 2  # wide and narrow
    assert label not in written(runs[:1], tmp_path / "one")


def test_only_the_best_of_many_curves_are_drawn(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{at:02}", f"r{at:02}", [0.1, at / 100]) for at in range(30)]
    html = written(runs, tmp_path / "page")
    assert "The best 10 of 30 curves, by their last value; the table below has all values." in html
    legend = re.findall(r"</svg>(r\d\d)</li>", html)
    assert legend == [f"r{at}" for at in range(29, 19, -1)]
    heads = html.split("Values as a table")[1].split("</thead>")[0]
    assert re.findall(r">(r\d\d)<", heads) == [f"r{at:02}" for at in range(29, -1, -1)]


def test_anchors_have_the_names_of_their_clients(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", coefficients=[0.5, -0.25])
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"anchor_clients": [3, 4], "anchor_versions": [0, 1]}
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "data.json").write_text(json.dumps({"shown": [3], "names": ["north"], "counts": [[1]]}))
    html = written([folder], tmp_path / "page")
    assert "from −0.25 (client 4, version 1) to 0.5 (north, version 0)" in html


def test_a_multi_label_run_reports_labels_and_not_classes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", "a", [0.5])
    (folder / "history.jsonl").write_text(json.dumps({"round": 1, "f1": 0.4}) + "\n")
    classes = {"names": ["cat", "dog"], "accuracy": [0.5, 0.5], "f1": [0.4, 0.4]}
    (folder / "result.json").write_text(json.dumps({"metric": "f1", "f1": 0.4, "finished": True, "classes": classes}))
    html = written([folder], tmp_path / "page")
    assert "<h1>a reaches an F1 of 40.0%</h1>" in html
    assert '<h2>Labels</h2><p class="quiet">F1 of each label.' in html
    assert '<th scope="col">Label</th>' in html


def test_local_has_no_row_in_the_table_of_costs(tmp_path: Path) -> None:
    panel = grid_of_runs([make_run(tmp_path / name, name, [0.5]) for name in ("fedavg", "local")]).panels[0]
    found = cost(panel, 0.5)
    assert [(row.label, row.entries[0].text) for row in found.rows] == [("fedavg", "1 round")]


def test_fedavg_says_that_it_discards_late_updates(tmp_path: Path) -> None:
    for late, about, share in (("discard", "discards late ones", True), ("add_deltas", "averages the updates.", False)):
        folder = make_run(
            tmp_path / late, config={"method": {"name": "fedavg", "late": late}}, result={"method": "fedavg"}
        )
        (folder / "history.jsonl").write_text('{"round": 1, "accuracy": 0.5, "staleness": [0, 0, 0, 1]}\n')
        html = written([folder], tmp_path / f"{late}-page").replace("\N{NO-BREAK SPACE}", " ")
        assert about in html
        assert ("25.0 % of the updates that arrived were late and discarded" in html) == share
        assert "1 round late: 25.0%" in html


def test_late_updates_that_were_not_trained_count_as_discarded(tmp_path: Path) -> None:
    # 3 + 1 updates arrived in their own round, 4 + 0 did not: half are late
    config = {"method": {"name": "fedavg", "late": "discard"}}
    folder = make_run(tmp_path / "run", config=config, result={"method": "fedavg"})
    lines = [{"round": 1, "staleness": [0, 0, 0], "discarded": 4}, {"round": 2, "staleness": [0], "accuracy": 0.5}]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert remarks(read_run(folder)) == ["50.0 % of the updates that arrived were late and discarded"]


def test_a_shortened_history_is_a_warning(tmp_path: Path) -> None:
    warning = "history.jsonl has 3 of 80 rounds that result.json says"
    assert warning in written([make_run(tmp_path / "a", result={"rounds": 80})], tmp_path / "short")
    assert "history.jsonl has" not in written([make_run(tmp_path / "b", result={"rounds": 3})], tmp_path / "whole")
    stopped = make_run(tmp_path / "c", result={"rounds": 80, "finished": False})
    assert "history.jsonl has" not in written([stopped], tmp_path / "stopped")


def test_a_table_without_numbers_of_examples_says_why(tmp_path: Path) -> None:
    shown = run_feddle("report", make_run(tmp_path / "a", tests=0), "--out", tmp_path / "report.html")
    assert "no data.json, which earlier versions of feddle did not write, so the numbers of examples are" in shown.out
    (tmp_path / "a" / "data.json").write_text("{")
    shown = run_feddle("report", tmp_path / "a", "--out", tmp_path / "report.html")
    assert "data.json is damaged, so the numbers of examples are unknown." in shown.out


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>&\"'\x07"
    folders = [make_run(tmp_path / name, evil, [0.5], [-0.1], {"data": {"name": evil}}) for name in "ab"]
    html = written(folders, tmp_path)
    document = Document(html)
    assert {tuple(attributes) for tag, attributes in document.elements if tag == "img"} == {*PICTURES}
    assert html.count("<script") == html.count("</script>") == 1
    assert any(label.startswith(evil[:-1]) for label in document.inside("th"))
    assert all(drawings(html, "curves"))
    assert element("p", "a<b", title='"', class_="x") == '<p title="&quot;" class="x">a&lt;b</p>'


def test_the_page_loads_nothing_from_the_network(tmp_path: Path) -> None:
    html = written([make_run(tmp_path / "a", coefficients=[0.1])], tmp_path)
    assert not re.search(r"https?://|@import|url\(|<link", html)
    sources = [value for _, attributes in Document(html).elements for value in map(attributes.get, ("src", "href"))]
    assert all(value.startswith("data:image/png;base64,") for value in sources if value is not None)


NAN = float("nan")


@pytest.mark.parametrize(
    "runs",
    [
        [[]],
        [[None, None]],
        [[0.5]],
        [[NAN, NAN]],
        [[NAN, 0.3], [0.2, NAN], []],
        [[0.1] * 5, [0.1] * 5],
        [[0.0], [1.0]],
        [[index / 20, 0.5 + index / 50] for index in range(12)],
        [[0.5]] * 40,
        [[0.001 * at for at in range(900)]],
    ],
    ids=["empty", "unevaluated", "one", "diverged", "gaps", "equal", "extremes", "twelve", "forty", "long"],
)
def test_odd_runs_render(tmp_path: Path, runs: list[list[float | None]]) -> None:
    for index, accuracies in enumerate(runs):
        odd = [NAN, -0.1, 1e9] if index % 2 else []
        make_run(
            tmp_path / "r" / f"run{index}",
            "feddle",
            accuracies,
            odd,
            result={"accuracy": NAN, "seconds": NAN},
        )
    html = written([tmp_path / "r"], tmp_path)
    Document(html)
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)
    for chart in drawings(html, "curves"):
        _, _, width, height = map(float, chart.attrib["viewBox"].split())
        for text in chart.iter("text"):
            assert 0 <= float(text.attrib["x"]) <= width
            assert 0 <= float(text.attrib["y"]) <= height
    printed(grid_of_runs([tmp_path / "r"]))


# Coefficients


def searching_run(folder: Path, *lines: dict[str, Any], **more: Any) -> Path:
    """A run with these searches, one in each round."""
    run = make_run(folder, accuracies=[0.5], **more)
    text = "".join(json.dumps({"round": at, **line}) + "\n" for at, line in enumerate(lines, 1))
    (run / "history.jsonl").write_text(text)
    return run


def pictures(html: str) -> list[tuple[str, list[list[int]]]]:
    """Return each heat map's alternative text and its pixels as palette indices: 25 for zero, 0 for no value."""
    found = []
    for text, alt in re.findall(r'<img src="data:image/png;base64,([^"]*)" alt="([^"]+)">', html):
        data = base64.b64decode(text)
        width, height = struct.unpack(">II", data[16:24])
        (length,) = struct.unpack(">I", data[(at := data.index(b"IDAT")) - 4 : at])
        pixels = zlib.decompress(data[at + 4 : at + 4 + length])
        assert len(pixels) == height * (width + 1)
        found.append((alt, [list(pixels[row * (width + 1) + 1 :][:width]) for row in range(height)]))
    return found


def captions(html: str) -> list[str]:
    return [re.sub("<.*?>", "", text) for text in re.findall("<figure class=.heat.><figcaption>(.*?)</fig", html)]


def row_names(html: str) -> list[list[str]]:
    """The names of the rows of each heat map."""
    return [re.findall("<span.*?>(.*?)</span>", text) for text in re.findall('<div class="names".*?</div>', html)]


def notes(html: str) -> list[str]:
    return [attributes["title"] or "" for tag, attributes in Document(html).elements if tag == "i"]


def test_coefficients_are_a_heat_map_of_rounds_and_anchors(tmp_path: Path) -> None:
    first = {"coefficients": [0.4, -0.2], "anchor_clients": [7, 3], "anchor_versions": [0, 1]}
    html = written([searching_run(tmp_path / "a", first, {}, {"coefficients": [0, 0.1, -0.4, -1e-5]})], tmp_path)
    alt, pixels = pictures(html)[0]
    assert pixels == [[49, 0, 25], [13, 0, 31], [0, 0, 1], [0, 0, 24]]
    assert alt == "Coefficients of feddle by round and row of the atlas, from −0.4 to 0.4; 50.0% negative."
    assert captions(html) == ["feddle: 50.0% of the coefficients are negative."]
    assert notes(html) == [
        "round 1: 2 coefficients, 1 negative, from −0.2 (client 3, version 1) to 0.4 (client 7, version 0)",
        "round 2: no search",
        "round 3: 4 coefficients, 2 negative, from −0.4 to 0.1",
    ]
    assert {*notes(html)} <= {*Document(html).inside("li")}
    assert re.findall("<span>(.*?)</span>", html)[:3] == ["−0.4", "0", "0.4"]


def test_outliers_are_clipped_and_the_caption_says_so(tmp_path: Path) -> None:
    lines = [{"coefficients": [0.1, -0.1, 0.4]}] * 40 + [{"coefficients": [0.1, -1e9, 0.4]}]
    html = written([searching_run(tmp_path / "a", *lines)], tmp_path)
    assert captions(html) == ["feddle: 33.3% of the coefficients are negative. Values beyond ±0.4 are clipped."]
    assert [row[-1] for row in pictures(html)[0][1]] == [31, 1, 49]
    assert ">≤ −0.4<" in html


def test_long_runs_give_small_heat_maps(tmp_path: Path) -> None:
    drawn = torch.randn(3001, 100, generator=torch.Generator().manual_seed(0)).tolist()
    lines: list[dict[str, Any]] = [{"coefficients": values} for values in drawn]
    lines[-1] |= {"blocks": [f"head {row}" for row in range(100)], "block_coefficients": drawn[:100]}
    html = written([searching_run(tmp_path / "a", *lines)], tmp_path)
    sizes = [(len(pixels), len(pixels[0])) for _, pixels in pictures(html)]
    assert sizes == [(100, 116), (100, 116)]
    assert all("Each column is the last search of 26 rounds." in caption for caption in captions(html))
    assert [note.partition(":")[0] for note in notes(html)[114:116]] == ["round 2990", "round 3001"]
    assert [name for name in row_names(html)[1] if name][-2:] == ["head 96", "head 99"]  # as many as have room
    assert len(html) < 100_000


def test_blocks_have_a_heat_map_with_the_server_as_the_last_row(tmp_path: Path) -> None:
    # The means over the two anchors are 0.3 and 0.1, so they differ from the mean of both by ±0.1.
    table = [[0.5, 0.4], [0.1, -0.2], [1.0, 0.8]]
    line = {"coefficients": [0.45, -0.05], "blocks": ["conv1", "<head> 0"], "block_coefficients": table}
    html = written([searching_run(tmp_path / "a", line)], tmp_path)
    (_, anchors), (alt, pixels) = pictures(html)
    assert (len(anchors), pixels) == (2, [[49], [1], [1]])
    assert captions(html)[1].startswith(
        "feddle: mean coefficient of each block over the anchors, minus the mean of all"
    )
    assert "the coefficient of the server’s own update, minus 1" in captions(html)[1]
    assert captions(html)[0].endswith(
        "of all 6 coefficients, one per anchor (and those of the server) and block, 16.7% are negative; the map"
        " shows the mean over the blocks."
    )
    assert "lowest −0.1 (&lt;head&gt; 0), highest 0.1 (conv1), server − 1: −0.1." in alt
    assert row_names(html) == [["1", "2"], ["conv1", "&lt;head&gt; 0", "server − 1"]]
    assert notes(html)[1:] == ["round 1: lowest −0.1 (<head> 0), highest 0.1 (conv1), server − 1: −0.1"]


def test_the_anchors_of_the_server_are_the_last_rows(tmp_path: Path) -> None:
    table = [[0.5, 0.4], [0.1, -0.2], [1.0, 0.8], [1.1, 1.3]]
    line = {"coefficients": [0.45, -0.05], "blocks": ["conv1", "head"], "block_coefficients": table}
    html = written([searching_run(tmp_path / "a", line | {"server_rows": ["server", "head"]})], tmp_path)
    assert row_names(html)[1] == ["conv1", "head", "server − 1", "head − 1"]
    assert notes(html)[1].endswith("highest 0.1 (conv1), server − 1: −0.1, head − 1: 0.2")
    ends = "The last rows are the coefficients of the server’s own update and of the head that the server fits again"
    assert ends in captions(html)[1]
    plain = {"coefficients": [0.2, 0.1], "head_coefficient": 0.8}
    html = written([searching_run(tmp_path / "b", plain)], tmp_path)
    assert notes(html) == ["round 1: 2 coefficients, 0 negative, from 0.1 to 0.2, head − 1: −0.2"]
    for odd in (["head"], ["server", "other"], ["server"] * 3):  # these do not fit the table
        html = written([searching_run(tmp_path / f"c{odd}", line | {"server_rows": odd})], tmp_path)
        assert len(pictures(html)) == 1


def test_a_server_without_blocks_is_the_last_row_of_the_anchors(tmp_path: Path) -> None:
    lines = {"coefficients": [0.2, 0.1], "server_coefficient": 0.8}, {"coefficients": [0.2]}
    html = written([searching_run(tmp_path / "a", *lines)], tmp_path)
    assert [pixels for _, pixels in pictures(html)] == [[[49, 49], [37, 0], [1, 0]]]
    assert notes(html) == [
        "round 1: 2 coefficients, 0 negative, from 0.1 to 0.2, server − 1: −0.2",
        "round 2: 1 coefficient, 0 negative, from 0.2 to 0.2",
    ]


@pytest.mark.parametrize(
    "damage",
    [
        {"blocks": 3},
        {"blocks": ["a"]},
        {"blocks": ["a", None]},
        {"block_coefficients": "x"},
        {"block_coefficients": [[0.1, 0.2], 5]},
        {"block_coefficients": [[0.1, 0.2], [0.1]]},
        {"block_coefficients": [[0.1, 0.2], [NAN, 0.1]]},
        {"block_coefficients": [[0.1, 0.2]] * 5},
        {"block_coefficients": []},
        {"anchor_clients": {"a": 1}, "anchor_versions": [0], "blocks": None},
        {"anchor_clients": [1, "x"], "server_coefficient": [1], "blocks": None},
        {"server_coefficient": NAN, "blocks": []},
    ],
    ids=json.dumps,
)
def test_damaged_blocks_are_ignored(tmp_path: Path, damage: dict[str, Any]) -> None:
    good = {"coefficients": [0.1, 0.2], "anchor_clients": [1, 2], "anchor_versions": [0, 0], "blocks": ["a", "b"]}
    html = written([searching_run(tmp_path / "a", good | {"block_coefficients": [[0, 0.2]] * 2} | damage)], tmp_path)
    assert [pixels for _, pixels in pictures(html)] == [[[37], [49]]]


@pytest.mark.parametrize("at", [-3, 0, True, 10**400, 10**29, 1.5], ids=str)
def test_odd_rounds_and_tiny_coefficients_render(tmp_path: Path, at: Any) -> None:
    odd = {"round": at, "coefficients": [0, 5e-324, 1e-17], "server_coefficient": 1}
    html = written([searching_run(tmp_path / "a", odd, {"coefficients": [0]})], tmp_path)
    ((_, pixels),) = pictures(html)
    assert {pixel for row in pixels for pixel in row} == {0, 25}, "blank cells, and tiny coefficients as zero"
    Document(html)


def test_a_real_run_of_feddle_plus_shows_its_blocks_and_its_server(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**TINY, "method": {"name": "feddle+", "search": {"epochs": 1}}}))
    result = run_feddle("run", tmp_path / "c.yaml", "--out", tmp_path / "run", "-q")
    assert result.code == 0, result.err
    html = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    _, (_, anchors), (_, blocks) = pictures(html)  # the first shows the classes of the clients
    lines = read_run(tmp_path / "run").history
    assert len(anchors) == max(len(line["coefficients"]) for line in lines)
    assert len(blocks) == len(lines[-1]["blocks"]) + 1
    assert row_names(html)[2] == [*lines[-1]["blocks"], "server − 1"]
    highest = max(range(len(lines[-1]["coefficients"])), key=lines[-1]["coefficients"].__getitem__)
    client, version = lines[-1]["anchor_clients"][highest], lines[-1]["anchor_versions"][highest]
    assert f"(client {client}, version {version}), server " in notes(html)[-5]  # four of the blocks follow


def test_two_processes_may_write_a_page_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, replace = tmp_path / "report.html", Path.replace
    other = f"from pathlib import Path; from feddle.report.page import write_document as w; w('b', Path({str(page)!r}))"

    def late(self: Path, target: Path) -> Path:
        assert run_process(*PYTHON, other).code == 0
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", late)
    assert write_document("a", page).read_text() == "a"
    assert list(tmp_path.iterdir()) == [page]


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a")]
    with pytest.raises(FeddleError, match="Is a directory"):
        write_report(runs, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FeddleError, match="choose a file in a writable folder"):
        write_report(runs, tmp_path / "file" / "report.html")


@pytest.mark.slow
@needs.chromium
def test_a_browser_opens_the_page_and_shows_the_values_under_the_pointer(tmp_path: Path) -> None:
    page = write_report([make_run(tmp_path / "a", coefficients=[0.1, -0.2])], tmp_path / "report.html")
    page.write_text(pointed_at(page.read_text(encoding="utf-8")), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    dumped = run_process(*command)
    assert dumped.code == 0, dumped.err
    assert "feddle reaches 70.0%" in dumped.out
    assert '<div>Round 1</div><div><i class="d0 s0"></i>feddle<b>50.0%</b></div>' in dumped.out


def pointed_at(html: str) -> str:
    """The page with the pointer at the left end of its first chart."""
    event = 'document.querySelector("svg.curves").dispatchEvent(new PointerEvent("pointermove", { clientX: 0 }))'
    return html.replace("</body>", f"<script>{event}</script></body>")


def test_odd_types_in_records_and_configs_still_render(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    result = json.loads((first / "result.json").read_text())
    (first / "result.json").write_text(json.dumps({**result, "torch": {"name": "2"}, "feddle": ["0.1"]}))
    (first / "cell.json").write_text(json.dumps({"data": {"digits": ["x"]}, "source": ["y"]}))
    (second / "cell.json").write_text(json.dumps({"data": {"digits": {"x": 1}}, "source": 3}))
    with (first / "config.yaml").open("a") as config:
        config.write("\n3: three\n2026-01-01: date\n")
    assert "different contents" not in written([first, second], tmp_path), "values of a wrong type are left out"


def test_one_remaining_class_is_singular() -> None:
    names = list("abcdefg")
    assert about_classes("north", names, [1] * 6 + [0]).endswith("1 of e, 1 more class")
    assert about_classes("north", names, [1] * 7).endswith("1 of e, 2 more classes")
