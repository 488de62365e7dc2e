"""What an operator pays: rounds, time and bytes until a target accuracy, from the histories."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from feddle.report.grid_table import CENTER
from feddle.report.grids import CellRecord, Panel, SeedRun, spread_of
from feddle.report.records import accuracy_curve, finite


@dataclass(frozen=True)
class Price:
    """What the first evaluation at or above the target had cost, mean over the seeds that reached it."""

    time: float  # in rounds of a server that does not wait
    megabytes: float  # up and down together
    reached: int
    seeds: int


def target_of(panel: Panel, column: int, asked: float | None) -> float | None:
    """The accuracy that is asked for; by default what the better half of the column's methods reaches."""
    if asked is not None:
        return asked
    others = [cell for row in panel.rows if row != CENTER and (cell := panel.at(row, column)) is not None]
    found = [cell.accuracy.mean for cell in others if cell.accuracy]
    return median(found) if found else None


def price(cell: CellRecord, target: float) -> Price | None:
    """None if no seed reached the target."""
    paid = [_paid(cell, run, target) for run in cell.runs]
    times, sizes = (spread_of([each and each[i] for each in paid]) for i in (0, 1))
    if times is None or sizes is None:
        return None
    return Price(times.mean, sizes.mean, times.count, len(cell.runs))


def _paid(cell: CellRecord, run: SeedRun, target: float) -> tuple[float, float] | None:
    # As the values are shown, to a tenth of a per cent.
    at = next((at for at, accuracy in accuracy_curve(run.record) if round(accuracy, 3) >= round(target, 3)), None)
    if at is None:
        return None
    line = next(entry for entry in run.record.history if entry.get("round") == at)
    sent = sum(finite(line.get(key)) or 0.0 for key in ("bytes_up", "bytes_down"))
    return cell.clock(run, at), sent / 1e6


def staleness(cells: Sequence[CellRecord]) -> list[int]:
    """The staleness of every update that arrived in these cells' runs."""
    return [
        value
        for cell in cells
        for run in cell.runs
        for entry in run.record.history
        for value in entry.get("staleness") or ()
        if isinstance(value, int)
    ]
