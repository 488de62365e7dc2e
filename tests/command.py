"""The console command, run in this process."""

import sys
from dataclasses import dataclass

import pytest

from feddle.cli.main import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


def feddle(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *args: str) -> Said:
    """What `feddle ARGS` says, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["feddle", *args])
    capfd.readouterr()
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    return Said(code, *capfd.readouterr())
