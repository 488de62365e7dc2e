"""A grid as one HTML file that needs no network."""

import shlex
from collections.abc import Sequence

import yaml

from feddle.report.bars import staleness_chart
from feddle.report.belonging import warnings
from feddle.report.curves import Curve, curve_chart
from feddle.report.grid_table import CENTER, QUICK, View, footnotes, legend, signed, view
from feddle.report.grid_words import common_setting, headline, lead, really_run, row_notes
from feddle.report.grids import CellRecord, GridRecord, Panel, mean_curve, row_words, spread_of
from feddle.report.markup import Markup, element, escape, join
from feddle.report.page import document
from feddle.report.price import price, staleness, target_of
from feddle.report.strip import coefficient_charts
from feddle.report.summary import NONE, duration, megabytes, percent

_QUANTITIES = {
    "update_cosine": "Cosine between a client’s update and the true update: mean over clients, and what they span",
    "true_update_cosines": "Cosine between the true update and that of the look before",
    "signal_cosine": "Cosine between the directions of the guiding and of in-domain data, at the start of the search",
    "search_cosine": "Cosine between the steps that the search makes on the guiding and on in-domain data",
}
_HEADS = {
    "dirichlet": "Dir(α): how unevenly the classes are spread over the clients; 0.1 is very uneven, 1 much less.",
    "delay_sigma": "σ: how late updates come back, in rounds, as the spread of a half-normal distribution.",
}
_SERVER = {  # the two halves of the paper's convergence plots
    ("own",): "With in-domain data at the server",
    ("none", "outside"): "Without in-domain data at the server",
}


def grid_page(grids: Sequence[GridRecord], target: float | None = None, *, live: bool = False) -> str:
    """The whole document; `live` reloads it while runs go on."""
    parts = [part for grid in grids for part in _grid(grid, target)]
    return document(headline(grids[0]), parts, refresh=5 if live else None)


def _grid(grid: GridRecord, target: float | None) -> list[Markup]:
    return [
        _opening(grid),
        *(section for panel in grid.panels for section in _panel(grid, panel, target)),
        *_left_out(grid),
        _configs(grid),
        _again(grid),
    ]


def _opening(grid: GridRecord) -> Markup:
    note = str(grid.facts.get("note") or "")
    said = common_setting(grid)
    return element(
        "header",
        element("p", f"{grid.facts['grid']}: {grid.facts['title']}", class_="quiet"),
        element("h1", headline(grid)),
        element("p", QUICK, class_="alert") if grid.quick else None,
        *(element("p", text, class_="alert") for text in warnings(grid)),
        element("p", Markup(escape(" ".join(lead(grid))).replace(" %", "&nbsp;%")), class_="lead"),
        element("p", said, class_="quiet") if said else None,
        element("p", note, class_="quiet") if note else None,
    )


def _panel(grid: GridRecord, panel: Panel, target: float | None) -> list[Markup]:
    if not any(cell.runs for cell in panel.cells.values()):
        return []
    return [
        element("section", element("h2", f"Accuracy: {panel.title}"), _ran(panel), _table(grid, panel)),
        element("section", element("h2", f"Over rounds: {panel.title}"), *_curves(grid, panel)),
        *_coefficients(grid, panel),
        *_staleness(panel),
        element("section", element("h2", f"Cost: {panel.title}"), _cost(grid, panel, target)),
    ]


def _ran(panel: Panel) -> Markup | None:
    text = really_run(panel)
    return element("p", text, class_="quiet") if text else None


def _table(grid: GridRecord, panel: Panel) -> Markup:
    head = element("tr", *(element("th", text, scope="col") for text in ("", *panel.column_words)))
    rows = [_row(grid, panel, row) for row in panel.rows]
    heads = [text for axis, text in _HEADS.items() if len(panel.columns) > 1 and axis in panel.columns[0]]
    small = " Small: the paper’s number." if any(cell.paper for cell in grid.cells) else ""
    notes = [*heads, legend(grid) + small, *footnotes(grid)]
    told = [element("li", element("strong", row_words(grid, row)), f" {text}.") for row, text in row_notes(panel)]
    return join(
        element("table", element("thead", head), element("tbody", *rows), class_="results cells"),
        *(element("p", note, class_="note") for note in notes),
        element("details", element("summary", "What the rows are"), element("ul", *told)) if told else None,
    )


def _row(grid: GridRecord, panel: Panel, row: str) -> Markup:
    head = element("th", row_words(grid, row), scope="row")
    seen = [view(panel, row, column) for column in range(len(panel.columns))]
    alike = len({each.best for each in seen if each is not None}) == 1  # else it is the best of some columns only
    if (row, None) in panel.cells and len(seen) > 1 and alike:
        return element("tr", head, _cell(seen[0], "all settings", len(seen)))
    return element("tr", head, *map(_cell, seen, panel.column_words))


def _cell(seen: View | None, heading: str, span: int = 1) -> Markup:
    if seen is None:
        return element("td", NONE, data_heading=heading, class_="none")
    text = element("u", seen.ours) if seen.above_center else seen.ours
    text = element("strong", text) if seen.best else text
    reason = seen.cell.facts.get("left_out")
    paper = element("small", f"paper {seen.paper}") if seen.paper != NONE else None
    absent = element("small", "left out") if reason and not seen.cell.runs else None
    points = None if seen.from_clean is None else element("small", f"{signed(seen.from_clean)} from clean labels")
    wide = {"colspan": str(span)} if span > 1 else {}
    found = "none" if seen.ours == NONE else None
    return element("td", text, seen.marks, absent, points, paper, data_heading=heading, class_=found, **wide)


def _curves(grid: GridRecord, panel: Panel) -> list[Markup]:
    charts = []
    for column, words in enumerate(panel.column_words):
        for servers, title in _SERVER.items():
            curves = _lines(grid, panel, column, servers)
            if any(panel.rows[curve.index] != CENTER for curve in curves):
                charts.append(curve_chart(curves, f"{_begun(words)}. {title}"))
        for key in grid.facts.get("figure") or ():
            drawn = _lines(grid, panel, column, (), key) if key in _QUANTITIES else []
            if any(curve.points for curve in drawn):
                charts.append(curve_chart(drawn, f"{_begun(words)}. {_QUANTITIES[key]}", unit=""))
    if not charts:
        return [element("p", "The curves appear with the first evaluation.", class_="quiet")]
    several = any(len(cell.runs) > 1 for cell in panel.cells.values())
    band = " Bands span the seeds, lines are their mean." if several else " One seed, so no bands."
    return [element("p", f"Accuracy of the server’s model after each round.{band}", class_="quiet"), *charts]


def _begun(words: str) -> str:
    """A column's head as a sentence begins; σ stays small."""
    return words[:1].upper() + words[1:] if words.isascii() else words


def _lines(grid: GridRecord, panel: Panel, column: int, servers: Sequence[str], key: str = "accuracy") -> list[Curve]:
    """The curves of a column's rows, Center in every chart to compare with; colours are by row."""
    found = []
    for index, row in enumerate(panel.rows):
        cell = panel.at(row, column)
        if cell is None or not cell.runs or (servers and cell.facts.get("server") not in servers and row != CENTER):
            continue
        points, band = mean_curve(cell, key)
        if points:
            found.append(Curve(index, row_words(grid, row), points, band, row == CENTER))
    return found


def _coefficients(grid: GridRecord, panel: Panel) -> list[Markup]:
    charts = []
    for (row, column), cell in panel.cells.items():
        drawn = coefficient_charts([run.record for run in cell.runs[:1]])
        words = "" if column is None else f", {panel.column_words[column]}"
        charts += (
            [element("div", element("h3", f"{row_words(grid, row)}{words}, seed {cell.runs[0].seed}"), *drawn)]
            if drawn
            else []
        )
    if not charts:
        return []
    text = (
        "Each dot is the coefficient of one anchor, a client’s update, in that round’s search. An anchor with a"
        " negative coefficient is moved away from."
    )
    more = element("details", element("summary", f"{len(charts) - 1} more"), *charts[1:]) if charts[1:] else None
    title = element("h2", f"Coefficients: {panel.title}")
    return [element("section", title, element("p", text, class_="quiet"), charts[0], more)]


def _staleness(panel: Panel) -> list[Markup]:
    charts = []
    for column, words in enumerate(panel.column_words):
        cells = [cell for row in panel.rows if (cell := panel.cells.get((row, column))) is not None]
        values = max((staleness([cell]) for cell in cells), key=lambda found: (sum(found), len(found)), default=[])
        charts += [staleness_chart(values, _begun(words))] if values else []
    if not charts:
        return []
    text = "How many rounds after it was asked for an update arrived, over all updates of a method that uses late ones."
    title = element("h2", f"Staleness: {panel.title}")
    return [element("section", title, element("p", text, class_="quiet"), *charts)]


def _cost(grid: GridRecord, panel: Panel, asked: float | None) -> Markup:
    targets = [target_of(panel, column, asked) for column in range(len(panel.columns))]
    heads = [f"{words}: to {percent(target)}" for words, target in zip(panel.column_words, targets, strict=True)]
    head = element("tr", *(element("th", text, scope="col") for text in ("", "Time a run", "MB a run", *heads)))
    rows = []
    for row in panel.rows:
        cells = [cell for (at, _), cell in panel.cells.items() if at == row and cell.runs]
        if not cells:
            continue
        paid = [
            element("td", *_price(panel.at(row, column), target), data_heading=heading)
            for column, (target, heading) in enumerate(zip(targets, heads, strict=True))
        ]
        rows.append(
            element(
                "tr",
                element("th", row_words(grid, row), scope="row"),
                element("td", _mean_time(cells), data_heading="Time a run"),
                element("td", _mean_megabytes(cells), data_heading="MB a run"),
                *paid,
            )
        )
    which = "as asked" if asked is not None else "the median of the column without Center"
    note = (
        "Time a run: on the machine that ran it, mean over settings and seeds. MB: 10⁶ bytes to and from the clients."
        f" To a target accuracy ({which}): the rounds until the first evaluation that reached it, and the MB until"
        " then. A server that waits for its slowest client is charged for the waiting, in rounds of one that does not."
    )
    return join(
        element("table", element("thead", head), element("tbody", *rows), class_="results cells"),
        element("p", note, class_="note"),
    )


def _price(cell: CellRecord | None, target: float | None) -> list[str]:
    if cell is None or target is None or not cell.runs:
        return [NONE]
    if cell.key.get("method") == CENTER:
        return ["no clients"]
    paid = price(cell, target)
    if paid is None:
        return ["not reached"]
    some = "" if paid.reached == paid.seeds else f", {paid.reached} of {paid.seeds} seeds"
    return [f"{paid.time:.0f} rounds", element("small", f"{megabytes(1e6 * paid.megabytes)} MB{some}")]


def _mean_time(cells: Sequence[CellRecord]) -> str:
    spread = spread_of([run.summary.seconds for cell in cells for run in cell.runs])
    return duration(None if spread is None else spread.mean)


def _mean_megabytes(cells: Sequence[CellRecord]) -> str:
    sums = [
        run.summary.bytes_up + run.summary.bytes_down
        for cell in cells
        for run in cell.runs
        if run.summary.bytes_up is not None and run.summary.bytes_down is not None
    ]
    return megabytes(sum(sums) / len(sums)) if sums else NONE


def _left_out(grid: GridRecord) -> list[Markup]:
    if not grid.left_out:
        return []
    items = [
        element(
            "li",
            f"{len(cells)} {'cell' if len(cells) == 1 else 'cells'}: {reason}",
            element("details", element("summary", "which"), ", ".join(cells)),
        )
        for reason, cells in grid.left_out.items()
    ]
    return [element("section", element("h2", "Left out"), element("ul", *items))]


def _configs(grid: GridRecord) -> Markup:
    folded = []
    for cell in grid.cells:
        if not cell.runs:
            continue
        run = cell.runs[0]
        text = yaml.safe_dump(run.record.config, sort_keys=False, allow_unicode=True)
        made = ", ".join(f"{name} {value}" for name, value in _made(run.made))
        folded.append(
            element(
                "details",
                element("summary", cell.name),
                element("pre", text),
                element("p", made, class_="note") if made else None,
            )
        )
    return element("section", element("h2", "Configs"), *folded, class_="folded")


def _made(made: object) -> list[tuple[str, str]]:
    """Hashes and versions of a run, hashes cut to what tells them apart."""
    if not isinstance(made, dict):
        return []
    found = [(name, str(made[name])) for name in ("feddle", "torch") if made.get(name)]
    found += [(name, str(made[name])[:12]) for name in ("source", "config", "model") if made.get(name)]
    return found + [(f"data {name}", str(value)[:12]) for name, value in dict(made.get("data") or {}).items()]


def _again(grid: GridRecord) -> Markup:
    own = grid.facts.get("commands")
    commands = own or [*(grid.facts.get("asked") or ()), f"feddle report {shlex.quote(str(grid.folder))}"]
    items = [element("li", element("code", str(command))) for command in commands]
    if own:
        return element("section", element("h2", "Run again"), element("ul", *items, class_="commands"))
    text = "Finished cells are not run again; stopped ones go on. The same cell and seed give the same number."
    source = str(grid.facts.get("source") or "")[:12]
    made = f"Grid written by feddle {grid.facts.get('feddle', '?')}{f', source {source}' if source else ''}."
    return element(
        "section",
        element("h2", "Run again"),
        element("ul", *items, class_="commands"),
        element("p", f"{text} {made}", class_="note"),
    )
