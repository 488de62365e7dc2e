"""A grid's tables as Markdown, LaTeX and CSV, with all that the page says of them."""

import csv
import io
from collections.abc import Sequence

from feddle.report.belonging import warnings
from feddle.report.grid_table import QUICK, View, footnotes, legend, signed, view
from feddle.report.grids import CellRecord, GridRecord, Panel, Spread, row_words, spread_of
from feddle.report.summary import NONE


def to_markdown(grid: GridRecord) -> str:
    """Every panel as a Markdown table."""
    blocks = [f"# {grid.facts['title']}\n"]
    if grid.quick:
        blocks.append(f"**{QUICK}**\n")
    for panel in grid.panels:
        head = [grid.row_axis, *(text for words in panel.column_words for text in (words, "paper"))]
        lines = [f"## {panel.title}\n", _bars(head), _bars(["---"] * len(head))]
        for row in panel.rows:
            seen = [view(panel, row, column) for column in range(len(panel.columns))]
            lines.append(_bars([row_words(grid, row), *(text for each in seen for text in _markdown_cell(each))]))
        blocks.append("\n".join(lines) + "\n")
    blocks += [f"{note}\n" for note in (legend(grid), *footnotes(grid))]
    blocks += [f"**{text}**\n" for text in warnings(grid)]
    blocks += [f"{text}\n" for text in _left_out(grid)]
    return "\n".join(blocks)


def to_latex(grid: GridRecord) -> str:
    """Every panel as a booktabs table; `\\usepackage{booktabs}`."""
    return "\n".join(_latex_panel(grid, panel) for panel in grid.panels)


def to_csv(grid: GridRecord) -> str:
    """One line a cell, with every number that the page has, and what is to be known of it."""
    axes = list(grid.facts["axes"])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    numbers = ("mean", "std", "seeds", "last_mean", "last_std", "paper_mean", "paper_std")
    costs = ("seconds", "bytes_up", "bytes_down", "negative_share")
    facts = [_facts(grid, cell) for cell in grid.cells]
    writer.writerow([*axes, *numbers, *costs, *(facts[0] if facts else ())])
    for cell, told in zip(grid.cells, facts, strict=True):
        means = [spread_of([getattr(run.summary, name) for run in cell.runs]) for name in costs]
        writer.writerow(
            [
                *(cell.key.get(axis, "") for axis in axes),
                *_three(cell.accuracy),
                *_three(cell.last)[:2],
                *(cell.paper or ("", "")),
                *("" if each is None else f"{each.mean:g}" for each in means),
                *told.values(),
            ]
        )
    return out.getvalue()


def _facts(grid: GridRecord, cell: CellRecord) -> dict[str, str | int]:
    """What is to be known of a cell's number before it is used."""
    places = [(panel, at) for panel in grid.panels for at, each in panel.cells.items() if each is cell]
    seen = [view(panel, row, column) for panel, (row, column) in places if column is not None]
    points = next((each.from_clean for each in seen if each is not None), None)
    versions = dict.fromkeys(str(run.made["feddle"]) for run in cell.runs if run.made.get("feddle"))
    return {
        "final": int(cell.is_final),
        "quick": int(grid.quick),
        "substitute": cell.facts.get("substitute") or "",
        "left_out": cell.facts.get("left_out") or "",
        "changed": " ".join(cell.changed),
        "other_config": int(any(cell.differs(run) for run in cell.runs)),
        "from_clean": "" if points is None else f"{points:g}",
        "feddle": " ".join(versions),
        "source": " ".join(dict.fromkeys(source for run in cell.runs for source in run.sources)),
    }


def _left_out(grid: GridRecord) -> list[str]:
    return [f"Left out, {len(cells)} of the cells: {reason}" for reason, cells in grid.left_out.items()]


def _three(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return "", "", ""
    return f"{100 * spread.mean:.3f}", "" if spread.std is None else f"{100 * spread.std:.3f}", str(spread.count)


def _markdown_cell(seen: View | None) -> tuple[str, str]:
    """Our number and the paper's."""
    if seen is None:
        return NONE, NONE
    points = "" if seen.from_clean is None else f" ({signed(seen.from_clean)} from clean labels)"
    return _marked(seen, "**", "**", "<u>", "</u>") + seen.marks + points, seen.paper


def _latex_panel(grid: GridRecord, panel: Panel) -> str:
    notes = [*([QUICK] if grid.quick else []), legend(grid), *footnotes(grid), *warnings(grid), *_left_out(grid)]
    small = " Small: the paper." if any(cell.paper for cell in panel.cells.values()) else ""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(grid.facts['title'])}: {_tex(panel.title)}.{small}}}",
        rf"\begin{{tabular}}{{l{'c' * len(panel.columns)}}}",
        r"\toprule",
        " & ".join(["", *map(_tex, panel.column_words)]) + r" \\",
        r"\midrule",
    ]
    for row in panel.rows:
        cells = [_latex_cell(view(panel, row, column)) for column in range(len(panel.columns))]
        lines.append(" & ".join([_tex(row_words(grid, row)), *cells]) + r" \\")
    said = rf"\par\smallskip\footnotesize {_tex(' '.join(notes))}"
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", said, r"\end{table}", ""])


def _latex_cell(seen: View | None) -> str:
    if seen is None:
        return "--"
    ours = _marked(seen, r"\textbf{", "}", r"\underline{", "}").replace(" ± ", r" $\pm$ ").replace(NONE, "--")
    points = "" if seen.from_clean is None else rf" {{\scriptsize {_tex(signed(seen.from_clean))} from clean}}"
    paper = "" if seen.paper == NONE else rf" {{\scriptsize ({_tex(seen.paper)})}}"
    return ours + _tex(seen.marks) + points + paper


def _marked(seen: View, bold: str, end_bold: str, line: str, end_line: str) -> str:
    text = f"{line}{seen.ours}{end_line}" if seen.above_center else seen.ours
    return f"{bold}{text}{end_bold}" if seen.best else text


def _bars(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _tex(text: str) -> str:
    known = {"σ": r"$\sigma$", "λ": r"$\lambda$", "·": r"$\cdot$", "α": r"$\alpha$", "±": r"$\pm$", "−": "$-$"}
    marks = {"†": r"$^\dagger$", "‡": r"$^\ddagger$", "§": r"\S{}", "’": "'", "–": "--"}
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {c: rf"\text{name}{{}}" for c, name in _NAMED.items()}
    return "".join({**special, **known, **marks}.get(char, char) for char in text)


_NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum"}
