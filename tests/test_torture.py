"""`make torture` runs, and detects faults."""

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import needs
import torture
from command import Completed, run_process
from malformed import CANARY, Payload, fault, yaml_payload
from waiting import patient

pytestmark = [needs.linux, patient]


@pytest.mark.slow
def test_a_short_torture_finds_nothing() -> None:
    done = run_process(sys.executable, Path(torture.__file__), "--minutes", "0", "--seed", "3")
    assert done.code == 0, done.text
    last = done.out.splitlines()[-1]
    expected = r"seed 3, .*: 1 runs killed \d+ times, all bit-identical; 8 malformed inputs, 400 hostile .*; no fault"
    assert re.fullmatch(expected, last), last


def test_a_fault_is_reported_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def accepts_all(*_: Any) -> Any:
        raise AssertionError("the state has changed")

    monkeypatch.setattr(torture, "attack_a_live_server", accepts_all)  # the processes of trials are forks of this one
    monkeypatch.setattr(torture, "make_kit", lambda _: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    number = torture.TRIALS.index(torture.hostile_updates)
    assert torture.main(["--seed", "5", "--trial", str(number)]) == 1
    output = capsys.readouterr().out
    assert f"FAULT in trial {number}: hostile_updates: the state has changed" in output
    assert f"--seed 5 --trial {number}\n" in output
    assert output.endswith("; 1 faults\n")
    folder = Path(next(re.finditer(r"  see (.*)", output))[1])
    assert "the state has changed" in (folder / "error").read_text()


BAD = {
    "a traceback": Completed(1, "", "Traceback (most recent call last):\n"),
    "exit code 1": Completed(1, "", ""),
    "exit code 2 with 2 lines": Completed(2, "", "feddle: one\ntwo\n"),
    "exit code 2 with 0 lines": Completed(2, "", ""),
    "exit code -11": Completed(-11, "", ""),
}


@pytest.mark.parametrize("reason", BAD)
def test_results_that_are_faults(reason: str, tmp_path: Path) -> None:
    assert (fault(BAD[reason], tmp_path) or "").startswith(reason)


def test_results_that_are_no_faults(tmp_path: Path) -> None:
    assert fault(Completed(0, "done\n", ""), tmp_path) is None
    assert fault(Completed(2, "", "feddle: expected this\n"), tmp_path) is None


def test_a_pickle_that_is_loaded_is_detected(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / CANARY)))  # noqa: S301
    assert fault(Completed(0, "", ""), tmp_path) == "what an input contains was run"


def test_a_yaml_tag_that_is_executed_is_detected(tmp_path: Path) -> None:
    yaml.unsafe_load(yaml_payload(tmp_path))
    assert fault(Completed(0, "", ""), tmp_path) == "what an input contains was run"
