"""Grids as one HTML file that needs no network."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import yaml

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.core.metrics import ACCURACY
from feddle.report.benefits import benefits
from feddle.report.charts import Curve, curve_chart, staleness_chart
from feddle.report.clients import client_figures
from feddle.report.coefficients import coefficient_figures
from feddle.report.evidence import obstacle
from feddle.report.grid import CENTER, LOCAL, Grid, Panel, is_local, is_simulation, read_grids
from feddle.report.joining import caveats
from feddle.report.markup import Markup, each, element, escape, folded, join, paragraph, table, unbroken
from feddle.report.numbers import NONE, counted, listed
from feddle.report.setting import differences, discards_late, examples, really_run, setting, simulated_clients, versions
from feddle.report.tables import QUICK, Entry, Row, Table, cost, results, table_notes
from feddle.report.warnings import warnings
from feddle.report.words import ABOUT, DISCARDING, headline, lead

_QUANTITIES = {
    "update_cosine": "Cosine between a client’s update and the true update: mean and range over clients",
    "true_update_cosines": "Cosine between the true update and the previous true update",
    "signal_cosine": "Cosine between the gradients on the guiding data and on in-domain data, where the search starts",
    "search_cosine": "Cosine between the results of the search on the guiding data and on in-domain data",
    "gate_cosine": "Cosine between the gradients on two halves of the guiding data",
}
_ABOUT_GUIDANCE = ("gate_cosine", "signal_cosine", "search_cosine")  # shown if they were measured
_SHOWN = 3  # charts of coefficients that are not folded


def write_document(text: str, out: Path) -> Path:
    """Write a text to a file. If the process stops, the file has the old or the new text, never a part."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # "replace": the name of a folder may be invalid Unicode, which the page must not contain.
        # `contested`: a grid and `feddle report --watch` may write the same page at once.
        write_whole(out, text.encode("utf-8", "replace"), sync=False, contested=True)
    except OSError as error:
        raise FeddleError(
            f"cannot write {out}: {error.strerror}; choose a file in a writable folder with --out (in Python: out=)"
        ) from error
    return out


def write_report(
    runs: Path | str | Sequence[Path | str], out: Path | str = "report.html", target: float | None = None
) -> Path:
    """Write a page to the file `out`. It shows the `runs`: one or more folders of runs, comparisons or grids.

    With `target`, an accuracy from 0 to 1, the page shows the cost to reach it. Returns the path of the page.
    """
    folders = [runs] if isinstance(runs, str | Path) else runs
    return write_document(page(read_grids([Path(run) for run in folders]), target), Path(out))


def page(grids: Sequence[Grid], target: float | None = None, *, live: bool = False) -> str:
    """A self-contained HTML document. With `live`, the browser reloads it every five seconds."""
    html, css, js = (
        files("feddle.report").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    reload = '<meta http-equiv="refresh" content="5">\n' if live else ""
    body = "\n".join(part for grid in grids for part in _grid(grid, target) if part)
    return Template(html).substitute(title=escape(headline(grids[0])), refresh=reload, style=css, script=js, body=body)


def _grid(grid: Grid, target: float | None) -> list[Markup | None]:
    shown = [panel for panel in grid.panels if panel.runs]
    sections = [section for panel in shown for section in _panel(grid, panel, target)]
    again = "Finished runs are not run again; stopped runs continue. The same cell and seed give the same number. "
    called = "In Python, the same call with the same out= continues a stopped run and loads a finished one. "
    note = called if any(map(is_simulation, grid.runs)) else again if "cells" in grid.record else ""
    note += versions(grid.runs)
    return [_opening(grid), *sections, _left_out(grid), _configs(grid), commands_section(grid.commands, note.strip())]


def _opening(grid: Grid) -> Markup:
    record = grid.record
    name = f"{record['grid']}: {record['title']}" if "title" in record else ""
    alerts = [*([QUICK] if grid.quick else []), *warnings(grid)]
    texts = {
        "alert": alerts,
        "lead": [*caveats(grid), " ".join(lead(grid))],
        "quiet": [setting(grid.runs), simulated_clients(grid.runs), record.get("note", "").replace("`", "")],
    }
    return element(
        "header",
        paragraph(name, "quiet"),
        element("h1", headline(grid)),
        *(paragraph(text, kind) for kind, found in texts.items() for text in found),
    )


def _section(title: str, panel: Panel | None, text: str, *parts: Markup | None) -> Markup | None:
    """A section of the page with a title, or None if it has no content."""
    shown = [part for part in parts if part]
    title = f"{title}: {panel.title}" if panel and panel.title else title
    return element("section", element("h2", title), paragraph(text, "quiet"), *shown) if shown else None


def _panel(grid: Grid, panel: Panel, target: float | None) -> list[Markup | None]:
    one = len(panel.columns) == 1
    differing = [key for key in ("network", "rounds", "training") if key in differences(grid.runs)]
    curves = _curves(grid, panel) or [element("p", "The curves appear with the first evaluation.", class_="quiet")]
    which = "as requested" if target is not None else "the median of the column without Center"
    note = (
        f"Cost of a target ({which}): the number of rounds until the first evaluation that reached it, and the"
        " MB (10⁶ bytes) sent to and from the clients until then. For a server that waits for its slowest client, the"
        f" waiting time is included.{'' if one else ' Time, MB up and MB down: of a whole run.'}"
    )
    prices = cost(panel, target)
    asked = len(panel.rows) > 1 or target is not None
    priced = html_table(prices, [note], " cells") if prices.rows and asked else None
    partitions = client_figures(panel)
    counts = examples(panel.runs)
    notes = [*([counts] if counts and not partitions else []), *table_notes(grid, panel)]
    ranked = html_table(results(grid, panel), notes, "" if one else " cells")
    others = folded(f"{len(partitions) - 1} more", *partitions[1:]) if partitions[1:] else None
    return [
        _section("Clients and classes", panel, counts, *partitions[:1], others),
        _section("Results", panel, "" if one else really_run(panel, differing), ranked, _about_rows(panel)),
        *(_section(title, panel, text, *parts) for title, text, parts in benefits(panel, obstacle(grid, panel))),
        _section(f"{panel.metric.words} over rounds", panel, _about_curves(panel), *curves),
        _coefficients(panel),
        _staleness(panel),
        _section("Cost", panel, "", priced),
    ]


def _about_curves(panel: Panel) -> str:
    of_accuracy = panel.metric == ACCURACY
    counts = {len(cell.runs) for cell in panel.cells.values() if cell.runs}
    alone = listed([panel.rows[row] for (row, _), cell in panel.cells.items() if is_local(cell)] or [LOCAL])
    bands = {
        f"{alone}: mean of the clients’ own models, the dashed line, since they have no rounds.": any(
            map(is_local, panel.cells.values())
        ),
        "Lines are means over seeds, bands are their range.": max(counts) > 1,
        "The band of one seed is the 95 % interval (Wilson’s) for the number of test examples.": 1 in counts
        and of_accuracy,
        "Chance is the accuracy of always guessing the most frequent class.": any(
            panel.guess(column) is not None for column in range(len(panel.columns))
        ),
    }
    first = f"{panel.metric.words} of the server’s model after each round. The legend is sorted by the last value."
    return " ".join([first, *(text for text, holds in bands.items() if holds)])


def html_table(shown: Table, notes: Sequence[str], kind: str = "") -> Markup:
    """An HTML table, followed by its notes."""
    rows = [join(_label(row), *map(_entry, row.entries)) for row in shown.rows]
    drawn = table(f"results{kind}", [shown.label, *shown.headings], rows)
    return join(element("div", drawn, class_="sideways"), each("p", notes, class_="note"))


def _label(row: Row) -> Markup:
    status = element("small", row.status, class_="status") if row.status else None
    label = element("strong", row.label) if row.best else row.label
    return element("th", label, status, each("small", map(unbroken, row.notes)), scope="row")


def _entry(entry: Entry) -> Markup:
    text = element("u", entry.text) if entry.above_center else entry.text
    text = element("strong", text) if entry.best else text
    notes = [*entry.notes, *([f"paper {entry.paper}"] if entry.paper else [])]
    wide = str(entry.span) if entry.span > 1 else None
    kind = "none" if entry.text == NONE else None
    # On a phone each row is a card, with the heading from the attribute.
    return element("td", text, entry.marks, each("small", notes), data_heading=entry.heading, class_=kind, colspan=wide)


def _about_rows(panel: Panel) -> Markup | None:
    known = {name: _about(row, panel) for row, name in panel.rows.items() if row in ABOUT}
    items = [join(element("strong", name), f" {about}.") for name, about in known.items()]
    return folded("About the rows", element("ul", each("li", items))) if items else None


def _about(row: str, panel: Panel) -> str:
    runs = [run for (at, _), cell in panel.cells.items() if at == row for run in cell.runs]
    return DISCARDING if row == "fedavg" and runs and all(map(discards_late, runs)) else ABOUT[row]


def _curves(grid: Grid, panel: Panel) -> list[Markup]:
    charts = []
    for column, head in enumerate(panel.heads):
        head = _capital(head) if panel.columns[column] else ""
        curves = _lines(panel, column)
        if any(curve.label != panel.rows.get(CENTER) for curve in curves):
            unit = "%" if panel.metric.share else ""
            chance, higher = panel.guess(column), panel.metric.higher
            charts.append(curve_chart(curves, head, unit=unit, chance=chance, higher=higher))
        for key in grid.record.get("figure", _ABOUT_GUIDANCE):
            curves = _lines(panel, column, key) if key in _QUANTITIES else []
            caption = ". ".join(filter(None, (head, _QUANTITIES.get(key))))
            charts += [curve_chart(curves, caption, unit="")] if curves else []
    return charts


def _capital(head: str) -> str:
    """A column heading with a capital first letter. Headings with Greek letters, such as σ = 5, are not changed."""
    return head[:1].upper() + head[1:] if head.isascii() else head


def _lines(panel: Panel, column: int, key: str | None = None) -> list[Curve]:
    """One curve for each row of a column: the quantity `key`, by default the main metric.

    A row has the same colour in every column. The curve of Center is emphasised.
    """
    found = []
    for index, (row, label) in enumerate(panel.rows.items()):
        cell = panel.at(row, column)
        points, band = cell.curve(key)
        if points:
            alone = is_local(cell)
            found.append(Curve(index, label, points, [] if alone else band, row == CENTER, alone))
    return found


def _coefficients(panel: Panel) -> Markup | None:
    charts = []
    for (row, column), cell in panel.cells.items():
        for run in cell.runs[:1]:
            head = "" if column is None or not panel.columns[column] else f", {panel.heads[column]}"
            seed = f", seed {run.seed}" if len(cell.runs) > 1 else ""
            charts.append(coefficient_figures(run, f"{panel.rows[row]}{head}{seed}"))
    text = (
        "The coefficient of each anchor (the update of a client) in the search of each round. The rows are those of the"
        " atlas; a new anchor takes the row of the one that it replaces, and a blank cell has none. The model moves"
        " away from anchors with negative coefficients."
    )
    shown = list(filter(None, charts))
    more = shown[_SHOWN:]
    rest = folded(f"{len(more)} more", *more) if more else None
    return _section("Coefficients", panel, text, *shown[:_SHOWN], rest)


def _staleness(panel: Panel) -> Markup | None:
    charts = []
    for column, head in enumerate(panel.heads):
        lines = [[line for run in cell.runs for line in run.history] for cell in panel.column(column).values()]
        values = [[late for line in found for late in line.get("staleness", [])] for found in lines]
        most = max(values, key=lambda found: (sum(found), len(found)), default=[])
        name = _capital(head) if panel.columns[column] else "Updates"
        charts += [staleness_chart(most, name)] if most else []
    text = "Rounds between the request and the arrival of an update, for a method that uses late updates."
    return _section("Staleness", panel, text, *charts)


def _left_out(grid: Grid) -> Markup | None:
    items = [
        join(f"{counted(len(cells), 'cell')}: {reason}", folded("which", ", ".join(cells)))
        for reason, cells in grid.left_out.items()
    ]
    return _section("Left out", None, "", element("ul", each("li", items)) if items else None)


def _configs(grid: Grid) -> Markup:
    configs = []
    for cell in grid.cells:
        for run in cell.runs[:1]:
            text = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
            configs.append(folded(cell.name, element("pre", text)))
    return element("section", element("h2", "Configs"), *configs, class_="folded")


def commands_section(commands: Sequence[tuple[str, str]], note: str) -> Markup:
    """The section with the commands that repeat the runs. Each command has a label."""
    items = [join(element("span", label) if label else None, element("code", text)) for label, text in commands]
    shown = element("ul", each("li", items), class_="commands")
    return element("section", element("h2", "Run again"), shown, paragraph(note, "note"))
