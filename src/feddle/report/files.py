"""A grid as files for a paper: tables as Markdown, LaTeX and CSV, figures as PNG and PDF."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from feddle.core.errors import FeddleError
from feddle.report.charts import COLOURS, DASHES
from feddle.report.grid import Cell, Grid, Panel, distinct_names
from feddle.report.numbers import NONE, Spread, counted, mean_of, ranged
from feddle.report.page import write_document
from feddle.report.setting import examples, refused
from feddle.report.tables import QUICK, Entry, footnotes, from_clean, legend, marks, results
from feddle.report.warnings import sources, warnings
from feddle.report.words import verdicts

_COSTS = ("seconds", "bytes_up", "bytes_down", "negative_share")
_INK = ("#0b4a94", "#d0700f", "#147f46", "#8a3a66", "#1f8fef", "#9d1a05")  # the page's colours
_STYLES = ("-", "--", ":", "-.")


def export(grids: Sequence[Grid], formats: Sequence[str], folder: Path) -> list[Path]:
    """Write grids to files: one per grid for a table format, one per setting for a figure format."""
    names = [grid.record["grid"] for grid in grids]
    places = [place.replace("/", "-") for place in distinct_names([grid.folder for grid in grids])]
    written = []
    for grid, name, place in zip(grids, names, places, strict=True):
        stem = name if names.count(name) == 1 else f"{name}-{place}"
        for kind in dict.fromkeys(formats):
            if kind in _TABLES:
                ending, text = _TABLES[kind]
                written.append(write_document(text(grid), folder / f"{stem}.{ending}"))
            else:
                written += _draw(grid, folder, kind, stem)
    return written


def _title(grid: Grid) -> str:
    return grid.record.get("title", "Runs compared")


def _notes(grid: Grid) -> list[str]:
    left_out = [f"Left out, {counted(len(cells), 'cell')}: {reason}" for reason, cells in grid.left_out.items()]
    return [*_counts(grid), legend(grid), *footnotes(grid), *warnings(grid), *verdicts(grid), *left_out]


def _counts(grid: Grid) -> list[str]:
    """How many examples the runs of each panel use."""
    return [f"{panel.title}: {text}".removeprefix(": ") for panel in grid.panels if (text := examples(panel.runs))]


def to_markdown(grid: Grid) -> str:
    """Every panel as a Markdown table."""
    blocks = [f"# {_title(grid)}\n", *([f"**{QUICK}**\n"] if grid.quick else [])]
    shown = 2 if any(cell.entry.get("paper") for cell in grid.cells) else 1  # our number, and the paper's next to it
    for panel in grid.panels:
        heads = [panel.axis, *(text for head in panel.heads for text in (head, "paper")[:shown])]
        lines = [_bars(heads), _bars(["---"] * len(heads))]
        for row in results(grid, panel, measures=False).rows:
            texts = [text for entry in row.entries for text in _markdown_entry(entry)[:shown] * entry.span]
            lines.append(_bars([row.label, *texts]))
        blocks.append("\n".join([*([f"## {panel.title}\n"] if panel.title else []), *lines]) + "\n")
    return "\n".join([*blocks, *(f"{note}\n" for note in _notes(grid))])


def _markdown_entry(entry: Entry) -> list[str]:
    """Our number and the paper's."""
    notes = "".join(f" ({note})" for note in entry.notes)
    return [_emphasised(entry, entry.text, "**%s**", "<u>%s</u>") + entry.marks + notes, entry.paper or NONE]


def to_latex(grid: Grid) -> str:
    r"""Every panel as a booktabs table; it needs `\usepackage{booktabs}`."""
    return "\n".join(_latex_panel(grid, panel) for panel in grid.panels)


def _latex_panel(grid: Grid, panel: Panel) -> str:
    notes = [*([QUICK] if grid.quick else []), *_notes(grid)]
    small = " Small: the paper." if any(cell.entry.get("paper") for cell in panel.cells.values()) else ""
    caption = ": ".join(filter(None, (_title(grid), panel.title)))
    rows = [
        " & ".join([_tex(row.label), *(text for entry in row.entries for text in [_latex_entry(entry)] * entry.span)])
        for row in results(grid, panel, measures=False).rows
    ]
    lines = [
        rf"\begin{{table}}\centering\caption{{{_tex(caption)}.{small}}}",
        rf"\begin{{tabular}}{{l{'c' * len(panel.columns)}}}\toprule",
        " & ".join(["", *map(_tex, panel.heads)]) + r" \\\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule\end{tabular}",
        rf"\par\smallskip\footnotesize {_tex(' '.join(notes))}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_entry(entry: Entry) -> str:
    ours = _emphasised(entry, _tex(entry.text), r"\textbf{%s}", r"\underline{%s}")
    small = [*entry.notes, *([f"({entry.paper})"] if entry.paper else [])]
    return ours + _tex(entry.marks) + "".join(rf" {{\scriptsize {_tex(text)}}}" for text in small)


def _emphasised(entry: Entry, text: str, bold: str, underlined: str) -> str:
    text = underlined % text if entry.above_center else text
    return bold % text if entry.best else text


def _bars(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _tex(text: str) -> str:
    known = {"σ": r"$\sigma$", "λ": r"$\lambda$", "·": r"$\cdot$", "α": r"$\alpha$", "±": r"$\pm$", "−": "$-$"}
    notes = {"†": r"$^\dagger$", "‡": r"$^\ddagger$", "§": r"\S{}", "’": "'", "–": "--"}
    named = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum"}
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {c: rf"\text{name}{{}}" for c, name in named.items()}
    return "".join({**special, **known, **notes}.get(char, char) for char in text)


def to_csv(grid: Grid) -> str:
    """One line for each cell, with all numbers of the page and the marks and warnings that belong to them."""
    axes = list(grid.record["axes"])
    keys = [{axis: cell.entry["key"].get(axis, "") for axis in axes} for cell in grid.cells]
    rows = [{**key, **_columns(grid, cell)} for key, cell in zip(keys, grid.cells, strict=True)]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _columns(grid: Grid, cell: Cell) -> dict[str, str | float]:
    entry = cell.entry
    costs = {name: mean_of([getattr(run, name) for run in cell.runs]) for name in _COSTS}
    places = [(panel, *at) for panel in grid.panels for at, each in panel.cells.items() if each is cell]
    points = next((from_clean(panel, row, at) for panel, row, at in places if at is not None), None)
    paper: Sequence[float | str] = entry.get("paper") or ("", "")
    return {
        "metric": cell.metric.name,
        **_numbers(cell.accuracy, "mean", "std"),
        "seeds": cell.accuracy.count if cell.accuracy else "",
        **_numbers(cell.spread("last_score"), "last_mean", "last_std"),
        "paper_mean": paper[0],
        "paper_std": paper[1],
        **{name: "" if value is None else f"{value:g}" for name, value in costs.items()},
        "final": int(cell.is_final),
        "quick": int(grid.quick),
        "substitute": entry.get("substitute", ""),
        "left_out": entry.get("left_out", ""),
        **{use: _range(cell, use) for use in ("train", "guidance", "test")},
        "refused": sum(refused(run).total() for run in cell.runs),
        "changed": " ".join(entry.get("changed") or ()),
        "other_config": int(cell.has_other_config),
        "from_clean": "" if points is None else f"{points:g}",
        "feddle": " ".join(dict.fromkeys(str(run.made["feddle"]) for run in cell.runs if "feddle" in run.made)),
        "source": " ".join(dict.fromkeys(source for run in cell.runs for source in sources(run))),
    }


def _range(cell: Cell, use: Literal["train", "guidance", "test"]) -> str:
    """How many examples the runs of a cell use for something; two numbers if its seeds differ."""
    found = [run.data[use] for run in cell.runs if use in run.data]
    return ranged(found, "d") if found else ""


def _numbers(spread: Spread | None, mean: str, std: str) -> dict[str, str]:
    """The mean and standard deviation. Shares are in per cent."""
    values = (None, None) if spread is None else (spread.mean, spread.std)
    factor = 100 if spread and spread.metric.share else 1
    return {name: "" if v is None else f"{factor * v:.3f}" for name, v in zip((mean, std), values, strict=True)}


def _draw(grid: Grid, folder: Path, ending: str, stem: str) -> list[Path]:
    """Draw the main metric over rounds with matplotlib, one figure for each setting with results."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FeddleError("figures require matplotlib; pip install 'feddle[figures]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    notes = "\n".join(line for text in (*_counts(grid), *footnotes(grid)) for line in wrap(text, 110))
    written = []
    for panel in grid.panels:
        for column, head in enumerate(panel.heads):
            figure = Figure(figsize=(5.2, 3.4), layout="constrained")
            axes = figure.add_subplot()
            if not _plot(axes, panel, column):
                continue
            unit = ", %" if panel.metric.share else ""
            axes.set(xlabel="round", ylabel=panel.metric.words.lower() + unit, ylim=(0, None) if unit else None)
            axes.set_title(", ".join(filter(None, (panel.title, head))), fontsize=9)
            figure.supxlabel(notes, fontsize=5)
            axes.legend(fontsize=7, ncols=2, frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
            name = re.sub(r"[^\w.+]+", "-", f"{stem}-{panel.title}-{head}").strip("-")
            written.append(folder / f"{name}.{ending}")
            figure.savefig(written[-1], dpi=200)
    return written


def _plot(axes: Any, panel: Panel, column: int) -> bool:
    """Draw the curves of a column; whether it has any."""
    for index, (row, label) in enumerate(panel.rows.items()):
        cell = panel.at(row, column)
        points, band = cell.curve()
        if not points:
            continue
        ink, style = _INK[index % COLOURS], _STYLES[index // COLOURS % DASHES]
        rounds, values = zip(*points, strict=True)
        axes.plot(rounds, values, style, color=ink, lw=1.2, label=label + marks(cell))
        if band:
            axes.fill_between(*zip(*band, strict=True), color=ink, alpha=0.16, lw=0)
    drawn = bool(axes.lines)
    if drawn and (guess := panel.guess(column)) is not None:
        axes.axhline(guess, color="gray", ls=":", lw=1, label=f"chance {guess:.1f}%")
    return drawn


_TABLES = {"csv": ("csv", to_csv), "markdown": ("md", to_markdown), "latex": ("tex", to_latex)}
