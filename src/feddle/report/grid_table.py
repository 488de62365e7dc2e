"""A grid's results as tables: what is best, what is above Center, and the paper's number beside ours."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from feddle.report.grids import CellRecord, GridRecord, Panel, Spread, row_words, spread_of
from feddle.report.summary import NONE

CENTER = "center"


@dataclass(frozen=True)
class View:
    """A cell as a table shows it."""

    cell: CellRecord
    ours: str
    paper: str
    best: bool
    above_center: bool
    marks: str  # † a substitute guides, ‡ not run to the end


def view(panel: Panel, row: str, column: int) -> View | None:
    """What stands in a place of a panel; None where the grid has no cell."""
    cell = panel.at(row, column)
    if cell is None:
        return None
    ours = _tenths(cell.accuracy)
    others = [_tenths(each.accuracy) for other in panel.rows if (each := panel.at(other, column)) is not None]
    center = panel.at(CENTER, column)
    floor = None if center is None or row == CENTER else _tenths(center.accuracy)
    known = [value for value in others if value is not None]
    return View(
        cell,
        spread_text(cell.accuracy),
        NONE if cell.paper is None else f"{cell.paper[0]:.1f} ± {cell.paper[1]:.1f}",
        best=ours is not None and len(known) > 1 and ours == max(known),
        above_center=ours is not None and floor is not None and ours > floor,
        marks=("†" if cell.facts.get("substitute") and cell.runs else "")
        + ("‡" if cell.runs and not cell.is_final else ""),
    )


def spread_text(spread: Spread | None) -> str:
    """A share as mean ± standard deviation in per cent; one seed has no deviation."""
    if spread is None:
        return NONE
    return f"{100 * spread.mean:.1f}" + ("" if spread.std is None else f" ± {100 * spread.std:.1f}")


def footnotes(grid: GridRecord) -> list[str]:
    """What the marks of the tables mean, only those that are there."""
    notes = []
    stand_ins = list(dict.fromkeys(c.facts["substitute"] for c in grid.cells if c.facts.get("substitute") and c.runs))
    if stand_ins:
        notes.append(f"† {'; '.join(stand_ins)}.")
    if any(cell.runs and not cell.is_final for cell in grid.cells):
        notes.append("‡ Not run to the end, so not final.")
    return notes


def to_markdown(grid: GridRecord) -> str:
    """Every panel as a Markdown table."""
    blocks = [f"# {grid.facts['title']}\n"]
    if grid.quick:
        blocks.append(f"**{QUICK}**\n")
    for panel in grid.panels:
        head = [grid.row_axis, *(text for words in panel.column_words for text in (words, "paper"))]
        lines = [f"## {panel.title}\n", _bars(head), _bars(["---"] * len(head))]
        for row in panel.rows:
            texts = [row_words(grid, row)]
            for column in range(len(panel.columns)):
                seen = view(panel, row, column)
                texts += (
                    [NONE, NONE]
                    if seen is None
                    else [_marked(seen, "**", "**", "<u>", "</u>") + seen.marks, seen.paper]
                )
            lines.append(_bars(texts))
        blocks.append("\n".join(lines) + "\n")
    blocks += [f"{note}\n" for note in (LEGEND, *footnotes(grid))]
    return "\n".join(blocks)


def to_latex(grid: GridRecord) -> str:
    """Every panel as a booktabs table; `\\usepackage{booktabs}`."""
    return "\n".join(_latex_panel(grid, panel) for panel in grid.panels)


def to_csv(grid: GridRecord) -> str:
    """One line a cell, with every number that the page has."""
    axes = list(grid.facts["axes"])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    numbers = ("mean", "std", "seeds", "last_mean", "last_std", "paper_mean", "paper_std")
    costs = ("seconds", "bytes_up", "bytes_down", "negative_share")
    writer.writerow([*axes, *numbers, *costs, "final", "quick", "substitute", "left_out"])
    for cell in grid.cells:
        ours, last = cell.accuracy, cell.last
        means = [spread_of([getattr(run.summary, name) for run in cell.runs]) for name in costs]
        writer.writerow(
            [
                *(cell.key.get(axis, "") for axis in axes),
                *_three(ours),
                *_three(last)[:2],
                *(cell.paper or ("", "")),
                *("" if each is None else f"{each.mean:g}" for each in means),
                int(cell.is_final),
                int(grid.quick),
                cell.facts.get("substitute", ""),
                cell.facts.get("left_out", ""),
            ]
        )
    return out.getvalue()


LEGEND = (
    "Accuracy in per cent: the best of a run’s last five evaluations, the paper’s rule; mean ± standard deviation where"
    " there are several seeds. Bold: the best of its column. Underlined: above Center."
)
QUICK = (
    "Quick runs: a small network, few rounds, and delays shortened in proportion. They show that everything works; they"
    " are not the paper’s setting, and not to be compared with its numbers."
)


def _three(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return "", "", ""
    return f"{100 * spread.mean:.3f}", "" if spread.std is None else f"{100 * spread.std:.3f}", str(spread.count)


def _latex_panel(grid: GridRecord, panel: Panel) -> str:
    count = len(panel.columns)
    lines = [
        *([f"% {QUICK}"] if grid.quick else []),
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(grid.facts['title'])}: {_tex(panel.title)}. Small: the paper.}}",
        rf"\begin{{tabular}}{{l{'c' * count}}}",
        r"\toprule",
        " & ".join(["", *map(_tex, panel.column_words)]) + r" \\",
        r"\midrule",
    ]
    for row in panel.rows:
        texts = [_tex(row_words(grid, row))]
        for column in range(count):
            seen = view(panel, row, column)
            if seen is None:
                texts.append("--")
                continue
            ours = _marked(seen, r"\textbf{", "}", r"\underline{", "}").replace(" ± ", r" $\pm$ ").replace(NONE, "--")
            marks = seen.marks.replace("†", r"$^\dagger$").replace("‡", r"$^\ddagger$")
            said = seen.paper.replace(" ± ", r" $\pm$ ")
            paper = "" if seen.paper == NONE else rf" {{\scriptsize ({said})}}"
            texts.append(ours + marks + paper)
        lines.append(" & ".join(texts) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _marked(seen: View, bold: str, end_bold: str, line: str, end_line: str) -> str:
    text = f"{line}{seen.ours}{end_line}" if seen.above_center else seen.ours
    return f"{bold}{text}{end_bold}" if seen.best else text


def _bars(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _tex(text: str) -> str:
    known = {"σ": r"$\sigma$", "λ": r"$\lambda$", "·": r"$\cdot$", "α": r"$\alpha$"}
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    return "".join({**special, **known}.get(char, char) for char in text)


def _tenths(spread: Spread | None) -> float | None:
    """As it is shown: equal to one decimal is equal."""
    return None if spread is None else round(100 * spread.mean, 1)
