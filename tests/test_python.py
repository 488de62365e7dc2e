"""The Python interface: progress, folders, callbacks, early stopping, and how a run is displayed."""

import html
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import feddle
from command import run_feddle
from feddle.core.errors import FeddleError
from feddle.run.shown import is_stalled
from test_experiment import Net, cloud

PLAN: dict[str, Any] = {"rounds": 6, "per_round": 2, "workers": 0, "evaluation": {"every": 1}, "delays": {"sigma": 1.0}}


def simulate(model: Any = None, **more: Any) -> Any:
    """A short run, from the same weights if no model is given."""
    torch.manual_seed(0)
    clients = [cloud(20, seed) for seed in range(5)]
    return feddle.simulate(model or Net(), clients, **{"server": cloud(40, 8), "test": cloud(40, 9), **PLAN, **more})


def stop_at(number: int) -> Any:
    def callback(line: dict[str, Any]) -> None:
        if line["round"] == number:
            raise KeyboardInterrupt

    return callback


# Progress, callbacks and early stopping


def test_progress_is_shown_on_request_and_not_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    simulate()
    assert capsys.readouterr() == ("", "")
    simulate(progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "feddle     round    6/6  accuracy" in shown.err


def test_every_callback_is_called_each_round_and_may_end_the_run() -> None:
    seen: list[int] = []
    run = simulate(callbacks=[lambda line: line["round"] == 3, lambda line: seen.append(line["round"])])
    assert seen == [1, 2, 3]
    assert (run.result["rounds"], run.result["finished"]) == (3, True)
    assert len(simulate(callbacks=seen.append).history) == 6, "one function is enough, and only True ends the run"


def test_patience_by_hand() -> None:
    lines = [{"test_loss": 1.0, "accuracy": value} for value in (0.5, 0.7, 0.7, 0.6)]
    assert not is_stalled(lines[:3], 2)  # only one evaluation since 0.7
    assert is_stalled(lines, 2)  # 0.7 and 0.6 are no better than the first 0.7
    assert not is_stalled(lines, 3)  # the three last ones include 0.7, which is better than 0.5
    assert not is_stalled([*lines, {"test_loss": 1.0, "accuracy": 0.71}], 2)
    assert not is_stalled([{"loss": 1.0}] * 9, 1), "rounds without an evaluation do not count"
    assert is_stalled([{"test_loss": 0.5}, {"test_loss": 0.6}], 1), "without accuracy, the loss decides"
    assert is_stalled([{"mae": 0.5, "test_loss": 2.0}, {"mae": 0.6, "test_loss": 1.0}], 1), "lower is better"
    assert not is_stalled([{"mae": 0.5, "test_loss": 1.0}, {"mae": 0.4, "test_loss": 2.0}], 1)


def test_patience_ends_a_run_that_does_not_improve() -> None:
    run = simulate(patience=2, training={"lr": 1e-12}, method="fedbuff")
    assert (run.result["rounds"], run.result["finished"]) == (3, True)
    for more in ({"patience": 0}, {"patience": 1, "test": None}):
        with pytest.raises(FeddleError, match="patience must be a whole number from 1 up, with test data"):
            simulate(**more)


# Folders


@pytest.mark.parametrize("method", ["feddle", "fedbuff", "ca2fl"])
def test_a_stopped_run_continues_and_a_finished_one_is_loaded(tmp_path: Path, method: str) -> None:
    whole, out, model = simulate(method=method), tmp_path / "run", Net()
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        simulate(out=out, method=method, callbacks=stop_at(4))
    continued = simulate(model, out=out, method=method)  # other initial weights: those of the run are used
    assert torch.equal(continued.server.model.vector, whole.server.model.vector)
    assert continued.history == whole.history
    loaded = simulate(Net(), out=out, method=method, callbacks=stop_at(1))
    assert loaded.history == whole.history
    assert loaded.result == continued.result == json.loads((out / "result.json").read_text())
    assert torch.equal(loaded.server.model.vector, whole.server.model.vector)
    state = loaded.problem.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in whole.problem.model.state_dict().items())
    assert not (out / "start.safetensors").exists()


def test_a_run_ended_by_patience_has_the_same_result_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled: dict[str, Any] = {"patience": 2, "training": {"lr": 1e-12}, "method": "fedbuff"}
    whole = simulate(**stalled).result
    monkeypatch.setattr("feddle.run.checkpoint.Pace.due", lambda *_: True)
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path, callbacks=stop_at(3), **stalled)
    continued = simulate(out=tmp_path, **stalled).result
    assert {**continued, "seconds": 0} == {**whole, "seconds": 0}


def test_other_settings_or_data_are_refused(tmp_path: Path) -> None:
    simulate(out=tmp_path)
    changes: list[dict[str, Any]] = [{"rounds": 7}, {"test": cloud(41, 9)}, {"per_round": 3}, {"method": "fedbuff"}]
    changes += [{"metrics": ["f1_macro"]}, {"metrics": [len]}, {"task": "numbers"}]
    for change in changes:
        with pytest.raises(
            FeddleError, match=r"simulate: .* holds a run with .*; use the same, or name another folder"
        ):
            simulate(out=tmp_path, **change)
    assert simulate(out=tmp_path, workers=1).result["finished"]


def test_the_command_line_says_how_to_continue(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulate(out=tmp_path / "run", callbacks=stop_at(2))
    result = run_feddle("resume", tmp_path / "run")
    assert result.code == 2
    assert "holds a simulation; to continue it: in Python, call feddle.simulate as before" in result.err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(FeddleError, match=r"is not empty \(it holds notes.txt\); .* folder with out=$"):
        simulate(out=tmp_path / "other")


# How a run is displayed


def test_a_run_as_text_as_a_table_and_as_a_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate()
    accuracy = f"{run.result['accuracy']:.1%}"
    assert repr(run).startswith(f"Run(method feddle, rounds 6, accuracy {accuracy}, ")
    assert f"<tr><th>accuracy</th><td>{accuracy}</td></tr>" in run._repr_html_()
    frame = run.frame()
    assert list(frame.index) == [1, 2, 3, 4, 5, 6]
    assert frame["accuracy"].tolist() == [line["accuracy"] for line in run.history]
    axes = run.plot()
    assert axes.lines[0].get_ydata().tolist() == frame["accuracy"].tolist()
    assert run.plot(axes) is axes
    for module, call in (("pandas", run.frame), ("matplotlib", run.plot)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(FeddleError, match=f"needs {module}; pip install"):
            call()


def test_a_run_is_saved_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = simulate()
    assert run.report() == Path("report.html")
    assert "feddle" in Path("report.html").read_text()
    assert run.save("kept") == Path("kept")
    assert yaml.safe_load(Path("kept/config.yaml").read_text())["model"]["name"] == "Net"
    loaded = simulate(out="kept")
    assert (loaded.history, loaded.report()) == (run.history, Path("kept/report.html"))
    with pytest.raises(FeddleError, match=r"already holds a simulation; name another folder with save\(folder\), "):
        run.save("kept")
    Path("kept/result.json").write_text("{")
    with pytest.raises(FeddleError, match=r"kept.result\.json is damaged; restore it, or remove it"):
        simulate(out="kept")
    Path("kept/result.json").write_text(json.dumps(run.result))
    assert feddle.write_report(["kept"], "page.html").read_text() == Path("kept/report.html").read_text()


def test_the_page_shows_the_call_that_repeats_a_run(tmp_path: Path) -> None:
    run = simulate(out=tmp_path / "run", checkpoint={"every": 2}, method={"name": "feddle", "atlas_size": 7}, seed=3)
    page = html.unescape(run.report().read_text()).split("Run again")[1]
    call = (
        "feddle.simulate(model, clients, server=server, test=test, method={'name': 'feddle', 'atlas_size': 7}, "
        f"per_round=2, seed=3, rounds=6, evaluation={{'every': 1}}, delays={{'sigma': 1.0}}, out='{tmp_path}/run')"
    )
    assert call in page
    assert "the same call with the same out= continues a stopped run and loads a finished one" in page
    assert "feddle run" not in page
    assert 'feddle.simulate(…, method="local")' in html.unescape((tmp_path / "run" / "report.html").read_text())
    again = html.unescape(simulate().report(tmp_path / "page.html").read_text())
    assert "feddle run" not in again
    assert "delays={'sigma': 1.0})</code>" in again, "no out=, since the run is in no folder"
    assert feddle.write_report(str(tmp_path / "run"), tmp_path / "one.html").is_file()
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().split("simulation:")[0] + "simulation: started by feddle.simulate\n")
    assert simulate(out=tmp_path / "run", method={"name": "feddle", "atlas_size": 7}, seed=3).result == run.result
    older = html.unescape(feddle.write_report([tmp_path / "run"], tmp_path / "two.html").read_text())
    assert f"feddle.simulate(model, clients, …, out='{tmp_path}/run')" in older


@pytest.mark.parametrize("name", ["Config", "Job", "Layout", "Update"])
def test_help_names_every_field(name: str) -> None:
    thing = getattr(feddle, name)
    documented = inspect.getdoc(thing) or ""
    assert [field for field in inspect.signature(thing).parameters if field not in documented] == []


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_the_examples_in_the_python_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image = pytest.importorskip("PIL.Image")  # noqa: N806
    page = Path("docs/python.md").read_text()
    monkeypatch.chdir(tmp_path)
    for i in range(60):
        Image.new("L", (32, 32), 60 + 130 * (i % 2)).save(f"{i}.png")
    rows = [f"{i}.png,{'ab'[i % 2]},{i // 2 % 4}" for i in range(60)]
    Path("mine.csv").write_text("\n".join(["path,label,client", *rows]))
    names: dict[str, Any] = {}
    for block in page.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "docs/python.md", "exec"), names)  # noqa: S102  # our own page
    assert names["model"].class_names == ("a", "b")
    assert feddle.simulate(names["make_model"](), names["clients"], strategy=names["FedBuffM"](), rounds=2).history
    assert Path("both.html").is_file()


def test_public_names_are_listed_and_documented() -> None:
    assert dir(feddle) == sorted(feddle.__all__)
    for name in set(feddle.__all__) - {"__version__"}:
        thing = getattr(feddle, name)
        documented = inspect.getdoc(thing) or ""
        assert documented, name
        if inspect.isfunction(thing):
            missing = [each for each in inspect.signature(thing).parameters if each not in documented]
            assert not missing, f"{name} does not document {missing}"
