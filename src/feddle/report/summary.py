"""The numbers that a run is compared by."""

from collections.abc import Sequence
from dataclasses import dataclass

from feddle.report.records import Record, accuracy_curve, coefficient_rounds, finite

LAST_EVALUATIONS = 5  # The paper reports the best of the last five.
NONE = "–"


@dataclass(frozen=True)
class Summary:
    """What one run came to; None where the run does not say.

    Shares and accuracies are fractions, `status` is empty for a run that reached its end.
    """

    record: Record
    accuracy: float | None
    last: float | None
    seconds: float | None
    negative_share: float | None
    bytes_up: float | None
    bytes_down: float | None
    status: str


def ranked(records: Sequence[Record]) -> list[Summary]:
    """The summaries of all runs, best accuracy first, runs without an evaluation last."""
    summaries = [summarise(record) for record in records]
    return sorted(summaries, key=lambda each: -1.0 if each.accuracy is None else each.accuracy, reverse=True)


def summarise(record: Record) -> Summary:
    """The result of a run as written, or worked out from its history where it has not ended."""
    values = [accuracy for _, accuracy in accuracy_curve(record)]
    best = max(values[-LAST_EVALUATIONS:], default=None)
    return Summary(
        record=record,
        accuracy=_either(record, "accuracy", best),
        last=_either(record, "last_accuracy", values[-1] if values else None),
        seconds=finite(record.result.get("seconds")),
        negative_share=_either(record, "negative_share", _negative_share(record)),
        bytes_up=_either(record, "bytes_up", _so_far(record, "bytes_up")),
        bytes_down=_either(record, "bytes_down", _so_far(record, "bytes_down")),
        status=_status(record),
    )


def is_best(value: float | None, column: Sequence[float | None]) -> bool:
    """Whether the value shows as the highest of its column; equal to one decimal is equal."""
    known = [_tenths(other) for other in column if other is not None]
    return value is not None and _tenths(value) == max(known)


def points_between(high: float, low: float) -> float:
    """The gap in percentage points, from the values as they are shown, so that the page adds up."""
    return round(_tenths(high) - _tenths(low), 1)


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return NONE if value is None else f"{_tenths(value):.1f}%"


def duration(seconds: float | None) -> str:
    """A time as people say it: 61.2 s, 12 min 05 s, 3 h 20 min."""
    if seconds is None:
        return NONE
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def megabytes(count: float | None) -> str:
    """Bytes in MB (10^6), with a decimal where it says something."""
    if count is None:
        return NONE
    size = count / 1e6
    return f"{size:,.1f}" if size < 99.95 else f"{size:,.0f}"


def _tenths(fraction: float) -> float:
    return round(100 * fraction, 1)


def _either(record: Record, key: str, from_history: float | None) -> float | None:
    written = finite(record.result.get(key))
    return from_history if written is None else written


def _negative_share(record: Record) -> float | None:
    values = [value for _, found in coefficient_rounds(record) for value in found]
    return sum(value < 0 for value in values) / len(values) if values else None


def _so_far(record: Record, key: str) -> float | None:
    """The last count of a running total."""
    return finite(record.history[-1].get(key)) if record.history else None


def _status(record: Record) -> str:
    if record.result and record.result.get("finished", True):
        return ""
    rounds = [at for entry in record.history if isinstance(at := entry.get("round"), int)]
    where = f"round {max(rounds)}" if rounds else "no round yet"
    return f"interrupted, {where}" if record.result else f"not ended, {where}"
