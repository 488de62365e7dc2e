"""The files of a run and of a grid: their names, their fields, and how they are read and written."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, cast

import yaml

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError, one_line

# Files of a run
CONFIG = "config.yaml"
HISTORY = "history.jsonl"  # one HistoryLine for each round
RESULT = "result.json"  # Result
MODEL = "model.safetensors"
CHECKPOINT = "checkpoint"
REPORT = "report.html"
# Files of a grid, which has a run folder for each cell and seed
GRID = "grid.json"  # GridRecord
CELL = "cell.json"  # CellRecord, in each run folder

LAST_EVALUATIONS = 5
_LARGEST = 1e30  # larger numbers would overflow in a chart
_LONGEST = 200  # characters of a reason, which may hold the text of a client


class HistoryLine(TypedDict, total=False):
    """One round of a run. Methods, diagnostics and federations add their own fields."""

    round: int
    version: int
    arrivals: int
    staleness: list[int]  # of each update that arrived, in rounds
    bytes_up: int  # sent by the clients since the run began
    bytes_down: int  # sent to the clients since the run began
    loss: float | None  # mean training loss of the updates that arrived
    coefficients: list[float]  # of the search, one for each anchor
    negative_share: float  # share of the coefficients below zero
    accuracy: float  # only in rounds with an evaluation
    test_loss: float
    refused: list["Refusal"]  # only in rounds with refused updates


class Refusal(TypedDict):
    """An update that the server refused."""

    client: int
    reason: str


class PrivacySpent(TypedDict):
    """The privacy loss of the client with the most updates."""

    unit: str
    updates: int
    epsilon: float
    delta: float


class Result(TypedDict, total=False):
    """The result of a run."""

    method: str
    accuracy: float | None  # see `best`
    last_accuracy: float | None
    negative_share: float | None
    seconds: float
    rounds: int
    finished: bool
    seed: int
    bytes_up: int
    bytes_down: int
    refused: dict[str, int]  # updates that the server refused, by reason
    zero_updates: int
    attack: dict[str, Any] | None
    privacy: PrivacySpent | None
    feddle: str
    torch: str


class CellRecord(TypedDict, total=False):
    """What produced one run of a grid."""

    cell: str
    config: str  # SHA-256 of the config without seed, workers and checkpoints
    data: dict[str, str | None]  # SHA-256 of each data set, and of a model folder
    feddle: str
    torch: str
    source: str  # SHA-256 of feddle's code; of a run that other code resumed, all of them
    clock: list[int]  # when each round of a server that waits for its clients ended


class CellEntry(TypedDict, total=False):
    """One cell in the record of a grid."""

    name: str
    key: dict[str, Any]  # its value on each axis
    paper: list[float] | None  # mean and standard deviation in per cent
    server: str  # data at the server: `own` (the clients' task), `outside` or `none`
    substitute: str  # what replaces data that the paper used
    changed: list[str]  # overrides of the user
    waits: float | None  # σ of the delays that a synchronous server waits for
    config: str | None  # as in CellRecord
    left_out: str  # why the cell cannot be run here


class AxisValue(TypedDict):
    """One value on an axis of a grid, and its name for readers."""

    value: Any
    words: str


class GridRecord(TypedDict, total=False):
    """A grid: its axes, the last of which gives the rows, and its cells by name."""

    grid: str
    title: str
    note: str
    figure: list[str]  # fields of the history to draw besides accuracy
    axes: dict[str, list[AxisValue]]
    feddle: str
    source: str
    quick: bool
    asked: list[str]  # the commands that filled it
    cells: dict[str, CellEntry]


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder. Numbers that are missing in the result are computed from the history."""

    folder: Path
    config: Mapping[str, Any]
    history: Sequence[HistoryLine]
    result: Result
    made: CellRecord  # empty unless the run belongs to a grid

    @property
    def method(self) -> str:
        """The name of its method."""
        section = self.config.get("method")
        named = section.get("name") if isinstance(section, dict) else section
        names = [name.strip() for name in (self.result.get("method"), named) if isinstance(name, str)]
        return next(filter(None, names), self.folder.resolve().name)

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """The evaluations as (round, accuracy). If a round was written twice, the later value counts."""
        return sorted({line["round"]: line["accuracy"] for line in self.history if "accuracy" in line}.items())

    @cached_property
    def coefficients(self) -> list[tuple[int, list[float]]]:
        """The coefficients of every round with a search, as (round, values)."""
        return sorted({line["round"]: found for line in self.history if (found := line.get("coefficients"))}.items())

    @property
    def accuracy(self) -> float | None:
        """Test accuracy by the paper's rule."""
        written = self.result.get("accuracy")
        return best([value for _, value in self.curve]) if written is None else written

    @property
    def last_accuracy(self) -> float | None:
        """The last evaluation."""
        written = self.result.get("last_accuracy")
        return self.curve[-1][1] if written is None and self.curve else written

    @property
    def negative_share(self) -> float | None:
        """Share of all coefficients below zero."""
        values = [value for _, found in self.coefficients for value in found]
        written = self.result.get("negative_share")
        return sum(value < 0 for value in values) / len(values) if written is None and values else written

    @property
    def seconds(self) -> float | None:
        """Duration of the run."""
        return self.result.get("seconds")

    @property
    def bytes_up(self) -> float | None:
        """Bytes sent by the clients so far."""
        return self.result.get("bytes_up", self.history[-1].get("bytes_up") if self.history else None)

    @property
    def bytes_down(self) -> float | None:
        """Bytes sent to the clients so far."""
        return self.result.get("bytes_down", self.history[-1].get("bytes_down") if self.history else None)

    @property
    def status(self) -> str:
        """The status of a run that is not finished; empty if it is finished."""
        if self.result and self.result.get("finished", True):
            return ""
        where = f"round {max(line['round'] for line in self.history)}" if self.history else "no round yet"
        return f"interrupted, {where}" if self.result else f"not ended, {where}"


def best(accuracies: Sequence[float]) -> float | None:
    """The paper's rule: the best of the last five evaluations."""
    return max(accuracies[-LAST_EVALUATIONS:], default=None)


def finite(value: object) -> float | None:
    """The value as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _LARGEST else None


def read_run(folder: Path) -> RunRecord:
    """Read a run folder. Its history and result may be missing, as in a run that has just started."""
    if not folder.is_dir():
        raise FeddleError(f"{folder}: expected a run folder, but there is no such folder; check the path")
    if not (folder / CONFIG).is_file():
        raise FeddleError(f"{folder}: expected a run folder, but it holds no {CONFIG}; name a folder of `feddle run`")
    config = _parsed(folder / CONFIG, _read(folder / CONFIG), "YAML", yaml.safe_load)
    result = _parsed(folder / RESULT, _read(folder / RESULT), "JSON") if (folder / RESULT).exists() else {}
    return RunRecord(folder, config, read_history(folder), cast(Result, _checked(result)), read_cell(folder))


def read_history(folder: Path) -> list[HistoryLine]:
    """The rounds of a run so far. Fields with invalid values, such as NaN, are left out."""
    lines = _lines(folder / HISTORY) if (folder / HISTORY).exists() else []
    checked = (_checked(line, _LINE_FIELDS) for line in lines)
    return [cast(HistoryLine, line) for line in checked if "round" in line]


def read_result(folder: Path) -> Result:
    """The result of a run; empty if it is missing or damaged."""
    return cast(Result, read_mapping(folder / RESULT))


def read_cell(folder: Path) -> CellRecord:
    """What produced the run in a folder; empty if that is missing or damaged."""
    found, kinds = read_mapping(folder / CELL), {"data": dict, "clock": list}
    whole = all(isinstance(found[name], kind) for name, kind in kinds.items() if name in found)
    return cast(CellRecord, found if whole else {})


def read_grid_record(folder: Path) -> GridRecord:
    """The record of a grid; ValueError, KeyError or TypeError if it is damaged."""
    found = json.loads((folder / GRID).read_bytes())
    if not isinstance(found["cells"], dict):
        raise TypeError("cells is not a mapping")
    return cast(GridRecord, found)


def write_record(path: Path, record: Mapping[str, Any], indent: int = 2) -> None:
    """Write a record as JSON, whole or not at all."""
    write_whole(path, (json.dumps(record, indent=indent, ensure_ascii=path.name != GRID) + "\n").encode())


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty if it is missing or damaged."""
    try:
        return parse_mapping(path.read_bytes())
    except OSError:
        return {}


def _privacy(value: object) -> dict[str, Any] | None:
    numbers = [finite(value.get(key)) for key in ("epsilon", "delta", "updates")] if isinstance(value, dict) else [None]
    return None if None in numbers else _mapping(value)


def _counts(value: object) -> dict[str, int]:
    found = value.items() if isinstance(value, dict) else ()
    return {one_line(reason, _LONGEST): count for reason, count in found if isinstance(count, int)}


def _refusals(value: object) -> list[Refusal]:
    found = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    pairs = [(each.get("client"), each.get("reason")) for each in found]
    return [
        {"client": client, "reason": one_line(reason, _LONGEST)}
        for client, reason in pairs
        if isinstance(client, int) and isinstance(reason, str)
    ]


def parse_mapping(text: str | bytes) -> dict[str, Any]:
    """The mapping in a JSON text; empty if it is damaged."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _mapping(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


_NUMBERS = ("accuracy", "last_accuracy", "negative_share", "seconds", "bytes_up", "bytes_down")
_FIELDS: Mapping[str, Callable[[object], object]] = {
    **dict.fromkeys(_NUMBERS, finite),
    "round": lambda value: value if isinstance(value, int) else None,
    "staleness": lambda value: [v for v in value if isinstance(v, int)] if isinstance(value, list) else None,
    "coefficients": lambda value: [v for v in map(finite, value) if v is not None] if isinstance(value, list) else None,
    "refused": _counts,
    "privacy": _privacy,
}
_LINE_FIELDS = {**_FIELDS, "refused": _refusals}


def _checked(found: Mapping[str, Any], fields: Mapping[str, Callable[[object], object]] = _FIELDS) -> dict[str, Any]:
    """The fields that have a value of the right type, so that readers need not check."""
    values = {name: fields[name](value) if name in fields else value for name, value in found.items()}
    return {name: value for name, value in values.items() if value is not None}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    lines = [(number, line) for number, line in enumerate(_read(path).split(b"\n"), 1) if line.strip()]
    for number, line in lines:
        try:
            yield _parsed(path, line, "JSON", where=f", line {number}")
        except FeddleError as error:
            # The run is writing its last line, or was killed while writing it.
            if number == lines[-1][0] and isinstance(error.__cause__, json.JSONDecodeError | UnicodeDecodeError):
                return
            raise


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FeddleError(f"{path}: expected a readable file, but {error.strerror}; check the run folder") from error


def _parsed(
    path: Path, text: bytes, kind: str, load: Callable[[bytes], object] = json.loads, where: str = ""
) -> dict[str, Any]:
    """The mapping in a text. An error names the file and the place."""
    try:
        found = load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())  # YAML's messages have several lines
        raise FeddleError(
            f"{path}{where}: expected {kind}, but {reason}; leave this run out or fix the file"
        ) from error
    if not isinstance(found, dict):
        found = type(found).__name__
        raise FeddleError(
            f"{path}{where}: expected named values, but found {found}; leave this run out or fix the file"
        )
    return found
