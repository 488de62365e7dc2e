"""The files of a run and of a grid: their names and their fields. `feddle.reading` reads them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, cast

from pydantic import AfterValidator, Field, OnErrorOmit
from typing_extensions import TypedDict  # pydantic accepts that of `typing` from Python 3.12 on

from feddle.core.durable import write_whole
from feddle.core.errors import one_line
from feddle.core.metrics import Metric, main_metric, metric_named

# Files of a run
CONFIG = "config.yaml"
HISTORY = "history.jsonl"  # one HistoryLine for each round
RESULT = "result.json"  # Result
DATA = "data.json"  # DataRecord
MODEL = "model.safetensors"
START = "start.safetensors"  # the model before the first round, until a run that `simulate` started is finished
CHECKPOINT = "checkpoint"
REPORT = "report.html"
STATUS = "status.json"  # Status, of a federation
# Files of a comparison, which has a run folder for each method
COMPARISON = "compare.yaml"  # the config of each method
# Files of a grid, which has a run folder for each cell and seed
GRID = "grid.json"  # GridRecord
GRID_LOCK = ".grid.lock"
CELL = "cell.json"  # CellRecord, in each run folder

HOW = ("seed", "workers", "executor", "checkpoint")  # keys that do not change what a config computes

_LARGEST = 10**30  # larger numbers would overflow in a chart
_FEWEST_CLIENTS, _FEWEST_TESTS = 10, 20  # required clients, and required test examples of their worst tenth
_LONGEST = 200  # characters of a reason, which may hold the text of a client

Number = Annotated[float, Field(gt=-_LARGEST, lt=_LARGEST)]
Amount = Annotated[int, Field(ge=0, lt=_LARGEST)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]+$")]  # a bit for each test example
Text = Annotated[str, AfterValidator(lambda text: one_line(text, _LONGEST))]


class HistoryLine(TypedDict, total=False):
    """One round of a run. Methods, diagnostics and federations add their own fields."""

    round: Annotated[int, Field(ge=0, lt=_LARGEST)]
    version: int
    arrivals: int
    nodes: int  # connected, in a federation
    staleness: list[int]  # of each update that arrived, in rounds
    discarded: int  # updates that a simulation did not train, because the method discards late ones
    bytes_up: Number  # sent by the clients since the run began
    bytes_down: Number  # sent to the clients since the run began
    loss: Number | None  # mean training loss of the updates that arrived
    coefficients: list[Number]  # of the search, one for each anchor
    anchor_clients: list[int]
    anchor_versions: list[int]
    blocks: list[Text]  # their names, if an anchor has a coefficient for each block
    block_coefficients: list[list[Number]]  # a row for each anchor, then one for each of `server_rows`
    server_rows: list[Text]  # the anchors that the server makes itself: `server`, its own update, and `head`
    server_coefficient: Number  # of the server's own update, without blocks
    head_coefficient: Number  # of the head that the server fits again, without blocks
    negative_share: Number  # share of the coefficients below zero
    accuracy: Number  # this and the others only in rounds with an evaluation
    balanced_accuracy: Number  # mean over the classes
    auc: Number  # of two classes
    f1: Number  # mean over the labels, if several may apply
    label_accuracy: Number
    mae: Number  # mean absolute error, of numbers
    r2: Number  # share of their variance that is explained
    test_loss: Number
    class_accuracy: list[Number | None]  # of each class or label, up to 100; null for one without test examples
    worst_tenth: Number  # mean accuracy of the tenth of the clients for which the model works worst
    metrics: dict[str, Number | None]  # those that the config or `simulate` selects
    refused: list[OnErrorOmit["Refusal"]]  # only in rounds with refused updates


class Refusal(TypedDict):
    """An update that the server refused."""

    client: int
    reason: Text


class PrivacyLoss(TypedDict):
    """The privacy loss of the client with the most updates."""

    unit: NotRequired[str]
    updates: Number
    epsilon: Number
    delta: Number


MeasuredOn = Literal["test", "classes", "train"]


class ClientScores(TypedDict):
    """How well the last model works for clients. The lists have one value for each client."""

    metric: str
    measured_on: MeasuredOn  # its test examples, the accuracy of each class weighted by its classes, its training data
    of: int  # number of clients with data; if there are many, some of them are drawn
    clients: list[int]
    names: list[Text]  # empty if the data has no names
    examples: list[int]  # for training
    tested: list[int]  # examples that its score is measured on
    scores: list[Number]
    correct: NotRequired[list[Hex]]  # which of its own test examples are predicted correctly
    mean: Number
    worst_tenth: Number
    whole: NotRequired[Number]  # of `local`: the mean over the clients of their models' scores on all test data
    untested: NotRequired[dict[Text, int]]  # clients without a test example, and their training examples


class ClassScores(TypedDict, total=False):
    """How well the last model recognises each class, or each label; None for one without test examples."""

    names: list[Text]
    accuracy: list[Number | None]
    f1: list[Number | None]  # of labels
    confusion: list[list[int]]  # how often each class (row) was taken for each class; only of 100 classes or fewer


class Details(TypedDict, total=False):
    """What is measured after the last round."""

    last: dict[str, Number | None]  # every metric of the last evaluation
    clients: ClientScores
    classes: ClassScores
    correct: Hex  # which test examples a classifier predicts correctly


class Result(Details, total=False):
    """The result of a run."""

    method: str
    metric: str  # by which the run is compared: accuracy, f1 of labels, mae of numbers, or test_loss
    accuracy: Number | None  # the paper's rule: the best of the last five evaluations; f1, mae, test_loss likewise
    last_accuracy: Number | None
    f1: Number | None
    last_f1: Number | None
    mae: Number | None
    last_mae: Number | None
    test_loss: Number | None
    last_test_loss: Number | None
    negative_share: Number | None
    seconds: Number
    rounds: int
    finished: bool
    seed: int
    bytes_up: Number
    bytes_down: Number
    refused: dict[Text, int]  # updates that the server refused, by reason
    zero_updates: int
    attack: dict[str, Any] | None
    privacy: PrivacyLoss | None
    feddle: str
    torch: str


class DataRecord(TypedDict, total=False):
    """How many examples a run uses for training, guidance and testing, and which client has which classes."""

    train: Amount  # of all clients; missing in a federation, which does not know them
    guidance: Amount  # at the server
    guidance_from_test: bool  # whether they were taken from the held-out data
    test: Amount
    guess: Annotated[float, Field(ge=0, le=1)]  # accuracy of always guessing the most frequent class
    digest: str  # of the labels and of the partition
    clients: Amount  # that have examples
    shown: list[int]  # some of these clients, in order
    names: list[Text]  # of the clients that are shown; empty if they have none
    classes: list[Text]  # their names; empty if they have none
    counts: list[list[Amount]]  # number of examples of each class, for each client that is shown
    unused: list[Text]  # columns of the data without a role, if the data names no clients


def about_unused(columns: Sequence[str]) -> str:
    """A note about unused columns, and what to do if one of them names the clients; empty if there are none."""
    if not columns:
        return ""
    if len(columns) == 1:
        said = f"the column {columns[0]} is not used; if it names the clients, set"
        return f"{said} -o data.columns.client={columns[0]}"
    names = f"{', '.join(columns[:-1])} and {columns[-1]}"
    return f"the columns {names} are not used; if one of them names the clients, set -o data.columns.client=NAME"


class CellRecord(TypedDict, total=False):
    """How one run of a grid was produced."""

    config: str  # SHA-256 of the config without seed, workers and checkpoints
    data: dict[str, str | None]  # SHA-256 of each data set, and of a model folder
    feddle: str
    torch: str
    source: str  # SHA-256 of feddle's code; of a run that other code resumed, all of them
    clock: list[int]  # when each round of a server that waits for its clients ended


class CellEntry(TypedDict, total=False):
    """One cell in the record of a grid."""

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

    grid: Required[str]
    title: str
    note: str
    figure: list[str]  # fields of the history to draw besides accuracy
    axes: dict[str, list[AxisValue]]
    quick: bool
    asked: list[str]  # the commands that filled it
    cells: dict[str, CellEntry]


class NodeStatus(TypedDict):
    """One node of a federation."""

    node: str
    client: int
    state: str
    version: int | None  # that its job started from
    staleness: int | None  # of its last update
    done: int
    failed: int
    why: str  # the reason of its last failure


class Status(TypedDict):
    """The current state of a federation."""

    method: str
    version: int
    rounds: int
    reached: str  # its main metric, such as `accuracy 83.1%`; empty before the first evaluation
    arrived: int  # updates for the next merge
    wanted: int
    under_way: int
    nodes: list[NodeStatus]
    turned_away: int
    dropped: dict[str, int]  # jobs without an update, by reason
    refused: dict[str, int]  # updates, by reason
    pid: int
    at: float  # when it was written, in seconds since 1970


@dataclass(frozen=True)
class RunRecord:
    """The content of a run folder. Numbers that are missing in the result are computed from the history."""

    folder: Path
    config: Mapping[str, Any]
    history: Sequence[HistoryLine]
    result: Result
    data: DataRecord  # empty in folders of earlier versions
    made: CellRecord  # empty unless the run belongs to a grid
    metric: Metric
    score: float | None  # its main metric by the paper's rule
    last_score: float | None
    negative_share: float | None
    seconds: float | None
    bytes_up: float | None
    bytes_down: float | None

    @property
    def method(self) -> str:
        """The name of its method."""
        section = self.config.get("method")
        named = section.get("name") if isinstance(section, dict) else section
        names = [name.strip() for name in (self.result.get("method"), named) if isinstance(name, str)]
        return next(filter(None, names), self.folder.resolve().name)

    @property
    def seed(self) -> str:
        """Its seed, as in its config."""
        return str(self.config.get("seed"))

    @property
    def correct(self) -> int | None:
        """One bit per test example: whether the last model predicts it correctly; None if that is unknown."""
        bits = self.result.get("correct")
        return None if bits is None else int(bits, 16)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The evaluations as (round, main metric)."""
        lines = cast(Sequence[Mapping[str, Any]], self.history)
        return [(line["round"], line[self.metric.name]) for line in lines if self.metric.name in line]

    @property
    def worst_tenth(self) -> float | None:
        """The mean of the main metric over the tenth of the clients for which the model works worst."""
        clients = self.result.get("clients")
        return worst_tenth(clients) if clients and clients["metric"] == self.metric.name else None

    @property
    def status(self) -> str:
        """The status of a run that is not finished; empty if it is finished."""
        if self.result and self.result.get("finished", True):
            return ""
        where = f"round {self.history[-1]['round']}" if self.history else "no round yet"
        return f"interrupted, {where}" if self.result else f"not ended, {where}"


def worst_tenth(clients: ClientScores) -> float | None:
    """The mean over the worst tenth of the clients; None if there are too few clients or examples."""
    count, higher = len(clients["scores"]), metric_named(clients["metric"]).higher
    tested = [
        number for _, number in sorted(zip(clients["scores"], clients["tested"], strict=False), reverse=not higher)
    ]
    enough = count >= _FEWEST_CLIENTS and sum(tested[: -(-count // 10)]) >= _FEWEST_TESTS
    return clients["worst_tenth"] if enough else None


def summary(history: Sequence[HistoryLine]) -> Result:
    """The numbers of a result that follow from the history."""
    metric = main_metric(history)
    values = [cast(Mapping[str, float], line)[metric.name] for line in history if metric.name in line]
    searches = [
        (len(found), line.get("negative_share", sum(value < 0 for value in found) / len(found)))
        for line in history
        if (found := line.get("coefficients"))
    ]
    anchors = sum(count for count, _ in searches)
    numbers = {
        "metric": metric.name,
        metric.name: metric.best(values[-5:]),
        f"last_{metric.name}": values[-1] if values else None,
        "negative_share": sum(count * share for count, share in searches) / anchors if searches else None,
        "bytes_up": history[-1].get("bytes_up", 0) if history else 0,
        "bytes_down": history[-1].get("bytes_down", 0) if history else 0,
    }
    return cast(Result, numbers)


def hex_of(bits: Sequence[bool]) -> str:
    """Bits as hexadecimal digits; the first bit is the highest."""
    return f"{int(''.join('01'[bit] for bit in bits) or '0', 2):x}"


def finite(value: object) -> float | None:
    """The value as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _LARGEST else None


def write_record(path: Path, record: Mapping[str, Any], indent: int = 2) -> None:
    """Write a record as JSON, atomically."""
    write_whole(path, (json.dumps(record, indent=indent, ensure_ascii=path.name != GRID) + "\n").encode())


def json_digest(tree: Mapping[str, Any]) -> str:
    """The SHA-256 of nested dicts. It does not depend on the order of their keys."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
