"""A grid's results as a table shows them: what is best, what is above Center, and the paper's number beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass

from feddle.report.grids import CellRecord, GridRecord, Panel, Spread
from feddle.report.summary import NONE

CENTER = "center"
QUICK = (
    "Quick runs: a small network, few rounds, and delays shortened in proportion. They show that everything works; they"
    " are not the paper’s setting, and not to be compared with its numbers."
)


@dataclass(frozen=True)
class View:
    """A cell as a table shows it."""

    cell: CellRecord
    ours: str
    paper: str
    leads: bool  # the best of its column
    best: bool  # that, or the best of those with the same data at the server
    above_center: bool
    marks: str  # † a substitute guides, § changed by the user, ‡ not run to the end
    from_clean: float | None  # points from the same cell with clean labels


def view(panel: Panel, row: str, column: int) -> View | None:
    """What stands in a place of a panel; None where the grid has no cell."""
    cell = panel.at(row, column)
    if cell is None:
        return None
    ours, center = _tenths(cell.accuracy), panel.at(CENTER, column)
    floor = None if center is None or row == CENTER else _tenths(center.accuracy)
    others = [each for other in panel.rows if (each := panel.at(other, column)) is not None]
    leads = _is_best(ours, others)
    return View(
        cell,
        spread_text(cell.accuracy),
        NONE if cell.paper is None else f"{cell.paper[0]:.1f} ± {cell.paper[1]:.1f}",
        leads=leads,
        best=leads or _is_best(ours, [each for each in others if _has_own(each) == _has_own(cell)]),
        above_center=ours is not None and floor is not None and ours > floor,
        marks=_marks(cell),
        from_clean=_from_clean(panel, row, column),
    )


def spread_text(spread: Spread | None) -> str:
    """A share as mean ± standard deviation in per cent; one seed has no deviation."""
    if spread is None:
        return NONE
    return f"{100 * spread.mean:.1f}" + ("" if spread.std is None else f" ± {100 * spread.std:.1f}")


def signed(points: float) -> str:
    """A difference in points: −1.2, +0.3."""
    return f"{points:+.1f}".replace("-", "−") if points else "±0.0"


def legend(grid: GridRecord) -> str:
    """What the numbers are, and what bold and underlined mean."""
    above = " Underlined: above Center." if any(cell.key.get("method") == CENTER for cell in grid.cells) else ""
    both = len({_has_own(cell) for cell in grid.cells if cell.runs}) > 1
    groups = (
        " and, as in the paper, of the methods with and of those without in-domain data at the server" if both else ""
    )
    return (
        "Accuracy in per cent: the best of a run’s last five evaluations, the paper’s rule; mean ± standard deviation"
        f" where there are several seeds. Bold: the best of its column{groups}.{above}"
    )


def footnotes(grid: GridRecord) -> list[str]:
    """What the marks of the tables mean, only those that are there."""
    ran = [cell for cell in grid.cells if cell.runs]
    notes = []
    if stand_ins := list(dict.fromkeys(cell.facts["substitute"] for cell in ran if cell.facts.get("substitute"))):
        notes.append(f"† {'; '.join(stand_ins)}.")
    if changed := list(dict.fromkeys(text for cell in ran for text in cell.changed)):
        notes.append(f"§ Run with {', '.join(changed)}.")
    if any(not cell.is_final for cell in ran):
        notes.append("‡ Not run to the end, so not final.")
    return notes


def _is_best(ours: float | None, among: Sequence[CellRecord]) -> bool:
    known = [value for each in among if (value := _tenths(each.accuracy)) is not None]
    return len(known) > 1 and ours == max(known)


def _has_own(cell: CellRecord) -> bool:
    """Whether the server holds data of the clients' task: the paper compares methods with as much."""
    return cell.facts.get("server") == "own"


def _marks(cell: CellRecord) -> str:
    if not cell.runs:
        return ""
    said = {"†": cell.facts.get("substitute"), "§": cell.changed, "‡": not cell.is_final}
    return "".join(mark for mark, holds in said.items() if holds)


def _from_clean(panel: Panel, row: str, column: int) -> float | None:
    """Points between a cell with random labels and the same one with clean labels, as both are shown."""
    key = panel.columns[column]
    same = {**key, "label_noise": 0}
    if not key.get("label_noise") or same not in panel.columns:
        return None
    pair = [panel.cells.get((row, at)) for at in (column, panel.columns.index(same))]
    ours, clean = (None if cell is None else _tenths(cell.accuracy) for cell in pair)
    return None if ours is None or clean is None else round(ours - clean, 1)


def _tenths(spread: Spread | None) -> float | None:
    """As it is shown: equal to one decimal is equal."""
    return None if spread is None else round(100 * spread.mean, 1)
