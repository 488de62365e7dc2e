"""A skipped test says what it needs and how to enable it; `make test` prints the reasons at its end (pytest -ra)."""

import re
from pathlib import Path


def test_every_reason_of_a_skip_says_what_to_do() -> None:
    texts = {path.name: path.read_text() for path in Path(__file__).parent.glob("*.py")}
    reasons = [
        (name, reason)
        for name, text in texts.items()
        for reason in re.findall(r'(?:\bskip\(|reason=)f?"([^"]*)"', text)
    ]
    assert len(reasons) >= 5
    assert [pair for pair in reasons if not re.match(r"needs .*; to enable: ", pair[1])] == []
