"""Who benefits: the last model for each client and each class, and the clients that train alone."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from feddle.core.metrics import ACCURACY, Metric, metric_named
from feddle.records import ClientScores, RunRecord, finite, worst_tenth
from feddle.report.evidence import differs, have_same_tests, only, right_by_client
from feddle.report.grid import LOCAL, Grid, Panel, value_in
from feddle.report.markup import Markup, each, element, folded, join, table
from feddle.report.numbers import NONE, binomial_interval, counted, effective_count, listed

_OPEN = 30  # rows of a table that is not folded
_MATRIX = 30  # classes of a confusion matrix that is shown
_NAMES = 5  # names in a sentence
_SHARES = ("accuracy", "balanced_accuracy", "auc", "f1", "label_accuracy")  # shown in per cent
_MEASURED = {
    "test": "Each client is measured on its own test examples.",
    "classes": "The data does not say which client a test example belongs to. So the accuracy of each class on the test"
    " data is weighted by the share of the class in the client’s training data.",
    "train": "There is no test data of single clients, so each client is measured on its training data. This is too"
    " optimistic, most of all for a client that trains alone.",
}
Section = tuple[str, str, Sequence[Markup | None]]


def benefits(panel: Panel) -> list[Section]:
    """The sections of a panel, as title, text and content. A panel with several columns has none."""
    if not (runs := _runs(panel)):
        return []
    seed = next(f" All numbers are those of seed {run.config.get('seed')}." for run in runs.values())
    seed = seed if _has_seeds(panel) else ""
    sections = [_clients_section(panel, runs), _last_section(runs), _classes_section(runs)]
    return [(title, text + seed, content) for title, text, content in sections]


def joining(grid: Grid) -> list[str]:
    """Whether the clients are better off than alone, one sentence for each method; none without the method local."""
    return [text for panel in grid.panels for text in _joining(panel)]


def _runs(panel: Panel) -> dict[str, RunRecord]:
    """The first run of each row, if the panel has one column."""
    cells = {label: panel.at(row, 0) for row, label in panel.rows.items()} if len(panel.columns) == 1 else {}
    return {label: cell.runs[0] for label, cell in cells.items() if cell.runs}


def _measured(runs: Mapping[str, RunRecord]) -> dict[str, ClientScores]:
    """The clients of each row, if they are measured as those of the first row that has any."""
    kept = {label: run.result.get("clients") for label, run in runs.items()}
    found = {label: clients for label, clients in kept.items() if clients and clients["scores"]}
    kinds = [(clients["metric"], clients["measured_on"]) for clients in found.values()]
    return {
        label: clients for label, clients in found.items() if (clients["metric"], clients["measured_on"]) == kinds[0]
    }


def _names(clients: ClientScores) -> list[str]:
    return clients["names"] or [f"client {number}" for number in clients["clients"]]


def _by_name(clients: ClientScores) -> dict[str, float]:
    return dict(zip(_names(clients), clients["scores"], strict=False))


def _joining(panel: Panel) -> list[str]:
    runs = _runs(panel)
    found = _measured(runs)
    alone = next((label for label in found if runs[label].method == LOCAL), None)
    if alone is None or found[alone]["measured_on"] == "train":
        return []
    same = [label for label in found if label != alone and have_same_tests(runs[label], runs[alone])]
    seed = f"Seed {runs[alone].config.get('seed')}: " if _has_seeds(panel) else ""
    return [seed + _verdict(label, runs[label], found[label], found[alone]) for label in same]


def _has_seeds(panel: Panel) -> bool:
    return any(len(cell.runs) > 1 for cell in panel.cells.values())


def _verdict(label: str, run: RunRecord, joined: ClientScores, alone: ClientScores) -> str:
    """For which clients a method is better than training alone, and for which it is worse."""
    metric, ours, own = metric_named(joined["metric"]), _by_name(joined), _by_name(alone)
    shared = [name for name in own if name in ours]
    if not shared:
        return f"{label}: no client was measured both in the federation and alone."
    means = [metric.shown(fmean(scores[name] for name in shared)) for scores in (ours, own)]
    mean = f"{metric.words}, mean over clients: {means[0]} in the federation, {means[1]} alone."
    if metric != ACCURACY:  # for which there is no test
        return f"{label} compared with training alone: {mean}"
    clear = _clear(joined, alone, _effective(run, joined), len(shared))
    better = [name for name in shared if name in clear and ours[name] > own[name]]
    worse = [name for name in shared if name in clear and ours[name] < own[name]]
    groups = {"clearly better": better, "clearly worse": worse}
    parts = [f"{words} for {listed(names, _NAMES)}" for words, names in groups.items() if names]
    if level := len(shared) - len(better) - len(worse):
        parts.append(f"no clear difference for {level} of {counted(len(shared), 'client')}")
    return f"{label} compared with training alone: {'; '.join(parts)}. {mean}"


def _clear(joined: ClientScores, alone: ClientScores, tests: Mapping[str, float], comparisons: int) -> set[str]:
    """The clients with a difference that is more than chance, corrected for the number of comparisons.

    If it is known which of a client's own test examples are right, the exact paired test decides. Otherwise the
    intervals that the number of test examples leaves open must not overlap, which is stricter.
    """
    ours, own = right_by_client(joined), right_by_client(alone)
    if ours and own:
        names = dict(zip(joined["clients"], _names(joined), strict=False))
        return {names[c] for c in ours if c in own and differs(*only(ours[c].bits, own[c].bits), comparisons)}
    scores, clear = [_by_name(clients) for clients in (joined, alone)], set()
    for name, count in tests.items():
        ends = [binomial_interval(100 * known[name], count, comparisons) for known in scores if name in known]
        if len(ends) == 2 and max(low for low, _ in ends) > min(high for _, high in ends):
            clear.add(name)
    return clear


def _effective(run: RunRecord, clients: ClientScores) -> dict[str, float]:
    """The number of test examples that the score of each client rests on; clients of which it is unknown are left out.

    A client that is measured by its classes has the effective number of a weighted mean.
    """
    names = dict(zip(clients["clients"], _names(clients), strict=False))
    if clients["measured_on"] != "classes":
        return {name: count for name, count in zip(names.values(), clients["tested"], strict=False) if count}
    per_class = [sum(row) for row in run.result.get("classes", {}).get("confusion", [])]
    rows = zip(run.data.get("shown", []), run.data.get("counts", []), strict=False)
    known = {names[client]: counts for client, counts in rows if client in names and len(counts) == len(per_class)}
    found = {name: effective_count(counts, per_class) for name, counts in known.items()}
    return {name: count for name, count in found.items() if count}


def _clients_section(panel: Panel, runs: Mapping[str, RunRecord]) -> Section:
    found = _measured(runs)
    if not found:
        return "Clients", "", []
    first = next(iter(found.values()))
    metric, sentences = metric_named(first["metric"]), _joining(panel)
    alone = any(runs[label].method == LOCAL for label in found)
    text = [
        f"{metric.words} of the last model for each client. {_MEASURED[first['measured_on']]}",
        _about_others(runs[next(iter(found))], first),
        "With local, each client trains alone, with as many passes over its data as in the federation on average."
        if alone
        else "To compare with clients that train alone, run the method local too (feddle compare --methods …,local).",
        _about_clear(list(found.values())) if sentences and metric == ACCURACY else "",
    ]
    parts = [each("p", sentences), _spread_table(found, metric), _client_table(found, metric)]
    return "Who benefits", " ".join(filter(None, text)), parts


def _about_others(run: RunRecord, clients: ClientScores) -> str:
    """Why some clients are not measured; empty if all are."""
    measured, total = len(clients["clients"]), clients["of"]
    if measured >= total:
        return ""
    section, usual = ("method", 50) if run.method == LOCAL else ("evaluation", 200)  # the defaults of `clients`
    limit = finite(value_in(run.config, (section, "clients")))
    if measured >= (usual if limit is None else limit) or clients["measured_on"] == "train":
        return f"{measured} of {total} clients, drawn at random."
    verb = "has" if total - measured == 1 else "have"
    return f"{total - measured} of {total} clients {verb} no test example, so nothing can be said about them."


def _about_clear(found: Sequence[ClientScores]) -> str:
    """When a difference between two models of a client is called clear."""
    if all(map(right_by_client, found)):
        return (
            "A difference is clear if an exact paired test on the client’s test examples has p < 0.05, divided by the"
            " number of clients compared."
        )
    return (
        "A difference is clear if the intervals that the number of test examples of each class leaves open do not"
        " overlap. They are intervals of 95 %, widened for the number of clients compared (Bonferroni)."
    )


def _spread_table(found: Mapping[str, ClientScores], metric: Metric) -> Markup:
    """The distribution over the clients, for each row."""
    heads = ["Over the clients", "Mean", "Worst tenth", "Worst", "Median", "Best"]
    rows = []
    for label, clients in found.items():
        ends = sorted(clients["scores"], reverse=not metric.higher)
        values = [clients["mean"], worst_tenth(clients), ends[0], median(ends), ends[-1]]
        rows.append(_row(label, map(metric.shown, values)))
    return _scrolled(heads, rows)


def _client_table(found: Mapping[str, ClientScores], metric: Metric) -> Markup:
    """The score of each client in each row."""
    scores = {label: _by_name(clients) for label, clients in found.items()}
    sizes: dict[str, tuple[int, int]] = {}
    for clients in found.values():
        sizes |= dict(zip(_names(clients), zip(clients["examples"], clients["tested"], strict=False), strict=False))
    on_training = any(clients["measured_on"] == "train" for clients in found.values())
    heads = ["Client", "Trained on", "Measured on (training)" if on_training else "Tested on", *scores]
    rows = [
        _row(name, [*map(str, counts), *(metric.shown(known.get(name)) for known in scores.values())])
        for name, counts in sizes.items()
    ]
    return _long(f"Each of {len(rows)} clients", heads, rows)


def _last_section(runs: Mapping[str, RunRecord]) -> Section:
    """Every metric of the last evaluation."""
    found = {label: last for label, run in runs.items() if (last := run.result.get("last"))}
    names = dict.fromkeys(name for last in found.values() for name in last)
    rows = [_row(name.replace("_", " "), (_value(name, last.get(name)) for last in found.values())) for name in names]
    return "Metrics", "Every metric of the last evaluation.", [_scrolled(["Metric", *found], rows) if rows else None]


def _value(name: str, value: float | None) -> str:
    if value is None:
        return NONE
    return f"{100 * value:.1f}%" if name in _SHARES else f"{value:.3g}".replace("-", "−")


def _classes_section(runs: Mapping[str, RunRecord]) -> Section:
    found = {label: classes for label, run in runs.items() if (classes := run.result.get("classes"))}
    names = dict.fromkeys(name for classes in found.values() for name in classes.get("names", []))
    labels = any("f1" in classes for classes in found.values())
    values = [classes.get("f1", []) if labels else classes.get("accuracy", []) for classes in found.values()]
    scores = [dict(zip(c.get("names", []), v, strict=False)) for c, v in zip(found.values(), values, strict=True)]
    rows = [_row(name, (_value("accuracy", known.get(name)) for known in scores)) for name in names]
    matrices = [
        folded(f"Confusion matrix of {label}", _confusion(classes.get("names", []), classes["confusion"]))
        for label, classes in found.items()
        if 0 < len(classes.get("confusion", [])) <= _MATRIX
    ]
    text = "F1 of each label." if labels else "The share of each class that the last model recognises."
    shown = _long(f"Each of {len(rows)} classes", ["Class", *found], rows) if rows else None
    return "Classes", f"{text} {NONE}: no test example.", [shown, *matrices]


def _confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Markup:
    rows = [_row(name, map(str, row)) for name, row in zip(names, counts, strict=False)]
    return _scrolled(["True class, taken for", *names], rows)


def _row(label: str, texts: Iterable[str]) -> Markup:
    return join(element("th", label, scope="row"), each("td", texts))


def _long(summary: str, heads: Sequence[str], rows: Sequence[Markup]) -> Markup:
    """A table, folded if it has many rows."""
    shown = _scrolled(heads, rows)
    return folded(summary, shown) if len(rows) > _OPEN else shown


def _scrolled(heads: Sequence[str], rows: Sequence[Markup]) -> Markup:
    return element("div", table("values", heads, rows), class_="scroll")
