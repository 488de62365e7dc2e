"""Which client has which classes, as a heat map."""

from feddle.records import RunRecord
from feddle.report.grid import Panel
from feddle.report.heatmap import Rows, heat_figure
from feddle.report.markup import Markup


def client_figures(panel: Panel) -> list[Markup]:
    """Heat maps of the first run in each column of a panel; equal partitions are shown once."""
    shown: list[list[list[int]]] = []
    figures = []
    for column, head in enumerate(panel.heads):
        runs = [run for cell in panel.column(column).values() for run in cell.runs if _is_whole(run)]
        if runs and runs[0].data["counts"] not in shown:
            shown.append(runs[0].data["counts"])
            several = len({run.seed for run in runs}) > 1
            seed = [f"Seed {runs[0].seed}"] if several else []
            title = ", ".join([*([head] if panel.columns[column] else []), *seed])
            figures.append(_figure(runs[0], f"{title}." if title else ""))
    return figures


def _is_whole(run: RunRecord) -> bool:
    """Whether the classes of the clients are known: a row for each client, and equally many classes in each row."""
    rows, clients = run.data.get("counts", []), run.data.get("shown", [])
    return len(rows) == len(clients) > 0 < len(rows[0]) and all(len(row) == len(rows[0]) for row in rows)


def _figure(run: RunRecord, title: str) -> Markup:
    shown, counts = run.data["shown"], run.data["counts"]
    clients = _named(run.data.get("names", []), [str(client) for client in shown])
    numbers = [str(number) for number in range(len(counts[0]))]
    classes = [_with_noun("class", name) for name in _named(run.data.get("classes", []), numbers)]
    rows: Rows = dict(zip(classes, zip(*counts, strict=True), strict=True))
    total = run.data.get("clients", len(clients))
    some = f" {len(clients)} of the {total:,} clients, evenly spaced." if total > len(clients) else ""
    caption = f" Number of training examples of each client and class.{some}"
    notes = [
        about_classes(_with_noun("client", name), classes, each) for name, each in zip(clients, counts, strict=True)
    ]
    return heat_figure(title, caption, rows, notes, 1, 400, f"{title}{caption}".strip(), clients)


def _named(names: list[str], numbers: list[str]) -> list[str]:
    """The names, if there is a different one for each number."""
    return names if len(names) == len(set(names)) == len(numbers) else numbers


def _with_noun(noun: str, name: str) -> str:
    """A name that is a number with its noun: class 3."""
    return f"{noun} {name}" if name.isdecimal() else name


def about_classes(client: str, classes: list[str], counts: list[int]) -> str:
    """The classes of a client in words, the most frequent first."""
    order = sorted((-count, at) for at, count in enumerate(counts) if count)
    parts = [f"{-count} of {classes[at]}" for count, at in order[:5]]
    more = [f"{len(order) - 5} more class{'' if len(order) == 6 else 'es'}"] if len(order) > 5 else []
    return f"{client}: {', '.join([*parts, *more])}"
