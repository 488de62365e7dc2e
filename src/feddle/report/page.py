"""The comparison as one HTML file that needs no network."""

import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from feddle.core.durable import write_whole
from feddle.core.errors import FeddleError
from feddle.report.curves import accuracy_chart, values_table
from feddle.report.markup import Markup, element, join
from feddle.report.records import CONFIG, Record
from feddle.report.strip import coefficient_charts
from feddle.report.summary import NONE, Summary, duration, is_best, megabytes, percent, ranked
from feddle.report.words import differences, facts, headline, remarks, setting, standing, versions

# The browser itself then refuses every resource from outside.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_page(records: Sequence[Record], out: Path) -> Path:
    """Write the comparison of these runs to `out`, whole or not at all."""
    if not records:
        raise FeddleError("expected at least one run to report, but there is none; name a run folder")
    return write_document(page(records), out)


def write_document(text: str, out: Path) -> Path:
    """Write a text to a file, whole or not at all."""
    if out.is_dir():
        raise FeddleError(f"{out}: expected a file to write, but it is a folder; name a file such as report.html")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # "replace": a folder name need not be valid Unicode, but the page must be.
        # `contested`: a grid and a process that watches it write the same page.
        write_whole(out, text.encode("utf-8", "replace"), sync=False, contested=True)
    except OSError as error:
        raise FeddleError(
            f"{out}: expected to write the report there, but {error.strerror}; choose another place"
        ) from error
    return out


def page(records: Sequence[Record]) -> str:
    """The whole document."""
    summaries = ranked(records)
    ordered = [each.record for each in summaries]
    title = headline(summaries)
    return document(title, [_opening(summaries, title), *_sections(summaries, ordered)])


def document(title: str, parts: Sequence[Markup], *, refresh: int | None = None) -> str:
    """A page of these parts that needs nothing from outside; `refresh` has it reload after so many seconds."""
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            *([f'<meta http-equiv="refresh" content="{refresh}">'] if refresh else []),
            '<meta name="color-scheme" content="light dark">',
            element("title", f"{title} – feddle report"),
            f"<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n<main>",
            *parts,
            f"</main>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n",
        )
    )


def _opening(summaries: Sequence[Summary], title: str) -> Markup:
    records = [each.record for each in summaries]
    return element(
        "header",
        element("h1", title),
        element("p", standing(summaries), class_="lead"),
        element("p", setting(records), class_="quiet") if setting(records) else None,
    )


def _sections(summaries: Sequence[Summary], ordered: Sequence[Record]) -> list[Markup]:
    sections = [
        element("section", element("h2", "Results"), _table(summaries)),
        element(
            "section",
            element("h2", "Accuracy over rounds"),
            accuracy_chart(ordered),
            values_table(ordered),
        ),
    ]
    strips = coefficient_charts(ordered)
    if strips:
        explanation = (
            "Each dot is the coefficient of one anchor in that round’s search. An anchor with a negative"
            " coefficient is moved away from."
        )
        sections.append(
            element("section", element("h2", "Coefficients"), element("p", explanation, class_="quiet"), *strips)
        )
    return [*sections, _again(ordered)]


def _table(summaries: Sequence[Summary]) -> Markup:
    headings = ("Method", "Accuracy", "Last", "Time", "Negative", "MB up", "MB down")
    head = element("tr", *(element("th", text, scope="col") for text in headings))
    rows = (_row(each, summaries) for each in summaries)
    note = (
        "Accuracy: best of the last five evaluations. Last: the last evaluation. Negative: share of the"
        " coefficients below zero. MB: 10⁶ bytes sent by and to the clients. Bold: the best accuracy."
    )
    return join(
        element("table", element("thead", head), element("tbody", *rows), class_="results"),
        element("p", note, class_="note"),
    )


def _row(each: Summary, summaries: Sequence[Summary]) -> Markup:
    best = is_best(each.accuracy, [other.accuracy for other in summaries])
    best_last = is_best(each.last, [other.last for other in summaries])
    return element(
        "tr",
        element(
            "th",
            element("strong" if best else "span", each.record.label),
            _remarks(each, summaries),
            scope="row",
        ),
        _cell("Accuracy", percent(each.accuracy), best),
        _cell("Last", percent(each.last), best_last),
        _cell("Time", duration(each.seconds)),
        _cell("Negative", percent(each.negative_share)),
        _cell("MB up", megabytes(each.bytes_up)),
        _cell("MB down", megabytes(each.bytes_down)),
    )


def _cell(heading: str, text: str, best: bool = False) -> Markup:
    # A phone shows each row as a card, and takes the heading from the attribute.
    inside = element("strong", text) if best else text
    return element("td", inside, data_heading=heading, class_="none" if text == NONE else None)


def _remarks(each: Summary, summaries: Sequence[Summary]) -> Markup:
    own = facts(each.record)
    differing = [own[key] for key in differences([other.record for other in summaries]) if key in own]
    texts = [", ".join(differing), *remarks(each.record)]
    return join(
        element("small", each.status, class_="status") if each.status else None,
        *(element("small", text) for text in texts if text),
    )


def _again(records: Sequence[Record]) -> Markup:
    commands = (element("li", element("span", each.label), element("code", run_again(each))) for each in records)
    written_by = versions(records)
    return element(
        "section",
        element("h2", "Run again"),
        element("ul", *commands, class_="commands"),
        element("p", written_by, class_="note") if written_by else None,
    )


def run_again(record: Record) -> str:
    """The command that makes a run once more."""
    return f"feddle run {shlex.quote(str(record.folder / CONFIG))}"


def _asset(name: str) -> str:
    return files("feddle.report").joinpath(name).read_text(encoding="utf-8")
