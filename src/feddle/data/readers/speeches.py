"""The State of the Union addresses; each president is a client."""

import json
import re
from pathlib import Path

import torch
from torch import Tensor

from feddle.data.source import Unusable

ERAS = ("1790-1849", "1850-1899", "1900-1949", "1950-")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_FEWEST, _MOST = 8, 60  # words of a sentence that is used; others are mostly headings and tables
_EACH = 400  # sentences of a president, spread over the speeches
_TEST = 5  # every fifth sentence is for the test


def decode_speeches(folder: Path) -> dict[str, Tensor]:
    """At most 400 sentences of each president; the label is the half century in which a sentence was spoken."""
    rows: dict[str, list[tuple[str, int, int]]] = {"train": [], "test": []}
    for owner, sentences in enumerate(_sentences(folder).values()):
        count = min(_EACH, len(sentences))
        for i in range(count):
            text, year = sentences[i * len(sentences) // count]
            era = min(max((year - 1800) // 50, 0), len(ERAS) - 1)
            rows["train" if i % _TEST else "test"].append((text, era, owner))
    if not all(rows.values()):
        raise Unusable("it holds no speeches (YEAR_NAME_PARTY.json)")
    tensors = {}
    for part, held in rows.items():
        texts, labels, owners = zip(*held, strict=True)
        tensors[f"{part}_texts"] = torch.frombuffer(bytearray("\n".join(texts).encode()), dtype=torch.uint8)
        tensors |= {f"{part}_labels": torch.tensor(labels), f"{part}_owners": torch.tensor(owners)}
    return tensors


def _sentences(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """The sentences of each president with their years, in the order of time."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in sorted(folder.glob("[0-9]*.json")):
        try:
            speech = json.loads(path.read_bytes())
            name, year, text = str(speech["name"]), int(speech["year"]), str(speech["text"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unusable(f"{path.name} should hold the name, year and text of a speech") from error
        for sentence in _SENTENCE_END.split(" ".join(text.split())):
            if _FEWEST <= len(sentence.split()) <= _MOST:
                found.setdefault(name, []).append((sentence, year))
    return found
