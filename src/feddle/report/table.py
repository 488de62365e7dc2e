"""The comparison as a table for the terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from feddle.report.records import Record
from feddle.report.summary import duration, is_best, percent, ranked


def summary_table(records: Sequence[Record]) -> Table:
    """One row a run, best accuracy first and in bold; readable at 80 columns."""
    table = Table(box=SIMPLE_HEAD, caption="Accuracy: best of the last five evaluations.", caption_justify="left")
    table.add_column("Method", overflow="fold")
    for heading in ("Accuracy", "Last", "Time", "Negative"):
        table.add_column(heading, justify="right", no_wrap=True)
    summaries = ranked(records)
    column = [each.accuracy for each in summaries]
    for each in summaries:
        style = "bold" if is_best(each.accuracy, column) else ""
        # Text, not markup: a folder may be called `[red]`.
        method = Text(each.record.label, style)
        if each.status:
            method.append(f" ({each.status})", "dim not bold")
        table.add_row(
            method,
            Text(percent(each.accuracy), style),
            percent(each.last),
            duration(each.seconds),
            percent(each.negative_share),
        )
    return table
