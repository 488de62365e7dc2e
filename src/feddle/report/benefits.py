"""Who benefits: the last model for each client and each class, and the clients that train alone."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from feddle.core.metrics import ACCURACY, Metric, metric_named
from feddle.records import ClientScores, RunRecord, finite, worst_tenth
from feddle.report.evidence import right_by_client
from feddle.report.grid import LOCAL, Panel, is_simulation, value_in
from feddle.report.joining import (
    Joined,
    about_untested,
    by_name,
    first_runs,
    joined_methods,
    measured,
    names_of,
    scores_of_seeds,
)
from feddle.report.markup import Markup, each, element, folded, join, table, unbroken
from feddle.report.numbers import NONE, mean_of, ranged

_OPEN = 30  # rows of a table that is not folded
_MATRIX = 30  # classes of a confusion matrix that is shown
_SHARES = ("accuracy", "balanced_accuracy", "auc", "f1", "label_accuracy")  # shown in per cent
_MEASURED = {
    "test": "Each client is measured on its own test examples.",
    "classes": "The data does not say which client a test example belongs to. So the accuracy of each class on the test"
    " data is weighted by the share of the class in the client’s training data.",
    "train": "There is no test data of single clients, so each client is measured on its training data. This is too"
    " optimistic, most of all for a client that trains alone.",
}
_MEANS = (
    " The numbers in tables are means over the seeds. The number of a client is the mean over the seeds that measured"
    " it. Numbers of examples are those of one seed, or their range if the seeds differ."
)
Section = tuple[str, str, Sequence[Markup | None]]


def benefits(panel: Panel, barred: str = "") -> list[Section]:
    """The sections of a panel, as title, text and content. A panel with several columns has none.

    `barred`: why there are no verdicts, if there are none.
    """
    if not (runs := first_runs(panel)):
        return []
    seed = next(f" The numbers in tables are those of seed {run.seed}." for run in runs.values())
    several = any(len(cell.runs) > 1 for cell in panel.cells.values())
    averaged = any(len(each) > 1 for each in scores_of_seeds(panel).values())
    sections = [_clients_section(panel, barred), _last_section(runs), _classes_section(runs)]
    about = [_MEANS if averaged else seed, seed, seed] if several else [""] * 3
    return [(title, text + more, content) for (title, text, content), more in zip(sections, about, strict=True)]


def _clients_section(panel: Panel, barred: str) -> Section:
    runs = first_runs(panel)
    found, seeds = measured(runs), scores_of_seeds(panel)
    if not found:
        return "Clients", "", []
    first = next(iter(found.values()))
    metric, joined = metric_named(first["metric"]), joined_methods(panel, barred)
    alone = any(runs[label].method == LOCAL for label in found)
    text = [
        f"{metric.words} of the last model for each client. {_MEASURED[first['measured_on']]}",
        about_untested(found) or _about_others(runs[next(iter(found))], first),
        "With local, each client trains alone, with as many passes over its data as in the federation on average."
        if alone
        else f"To compare with clients that train alone, run the method local too ({_how_to_add_local(runs)}).",
        _about_clear(list(found.values())) if joined and metric == ACCURACY and not barred else "",
        f"No client has a verdict, because {barred}." if joined and barred else "",
    ]
    sentences = each("p", [one.sentence for one in joined])
    parts = [sentences, _spread_table(seeds, metric), _client_table(seeds, metric, joined)]
    return "Who benefits", " ".join(filter(None, text)), parts


def _how_to_add_local(runs: Mapping[str, RunRecord]) -> str:
    python = all(is_simulation(run) for run in runs.values())
    return f'feddle.simulate(…, method="{LOCAL}")' if python else f"feddle compare --methods …,{LOCAL}"


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
    """The rule for a clear difference between two models of a client."""
    if all(map(right_by_client, found)):
        return (
            "A difference is clear if an exact paired test on the client’s test examples has p < 0.05, divided by the"
            " number of clients compared. With several seeds, the test uses the mean counts of all of them, and"
            " either the 95 % interval of the difference over the seeds must not contain 0, or every seed alone must"
            " show the difference by the same test."
        )
    return (
        "A difference is clear if the 95 % intervals of the two models do not overlap. The width of an interval follows"
        " from the number of test examples of each class, and from the number of clients compared (Bonferroni)."
    )


def _spread_table(seeds: Mapping[str, Sequence[ClientScores]], metric: Metric) -> Markup:
    """The distribution over the clients, for each row, as means over the seeds."""
    heads = ["Over the clients", "Mean", "Worst tenth", "Worst", "Median", "Best"]
    rows = []
    for label, found in seeds.items():
        values = zip(*(_distribution(clients, metric) for clients in found), strict=True)
        rows.append(_row(label, (metric.shown(mean_of(each)) for each in values)))
    return _scrolled(heads, rows)


def _distribution(clients: ClientScores, metric: Metric) -> list[float | None]:
    ends = sorted(clients["scores"], reverse=not metric.higher)
    return [clients["mean"], worst_tenth(clients), ends[0], median(ends), ends[-1]]


def _client_table(seeds: Mapping[str, Sequence[ClientScores]], metric: Metric, joined: Sequence[Joined]) -> Markup:
    """The score of each client in each row, as means over the seeds, with the comparison to training alone."""
    scores = {label: [by_name(clients) for clients in found] for label, found in seeds.items()}
    verdicts = {each.label: each.verdicts for each in joined}
    sizes = _sizes([clients for found in seeds.values() for clients in found])
    on_training = any(clients["measured_on"] == "train" for found in seeds.values() for clients in found)
    heads = ["Client", "Trained on", "Measured on (training)" if on_training else "Tested on", *scores]
    rows = []
    for name, counts in sizes.items():
        verdict_of = {label: found[name].short for label, found in verdicts.items() if name in found}
        means = {label: mean_of([each.get(name) for each in known]) for label, known in scores.items()}
        cells = [join(metric.shown(mean), _small(verdict_of.get(label, ""))) for label, mean in means.items()]
        rows.append(_row(name, [*counts, *cells]))
    return _long(f"Each of {len(rows)} clients", heads, rows, "clients")


def _sizes(found: Sequence[ClientScores]) -> dict[str, tuple[str, str]]:
    """The numbers of examples that each client has for training and for testing; ranges if the seeds differ."""
    sizes: dict[str, list[tuple[int, int]]] = {}
    for clients in found:
        for name, *counts in zip(names_of(clients), clients["examples"], clients["tested"], strict=False):
            sizes.setdefault(name, []).append((counts[0], counts[1]))
    for clients in found:
        for name, count in clients.get("untested", {}).items():
            sizes.setdefault(name, []).append((count, 0))
    columns = {name: zip(*counts, strict=True) for name, counts in sizes.items()}
    return {name: (ranged(train, "d"), ranged(tested, "d")) for name, (train, tested) in columns.items()}


def _small(text: str) -> Markup | None:
    return element("small", unbroken(text)) if text else None


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
    one, many = ("Label", "Labels") if labels else ("Class", "Classes")
    shown = _long(f"Each of {len(rows)} {many.lower()}", [one, *found], rows) if rows else None
    return many, f"{text} {NONE}: no test example.", [shown, *matrices]


def _confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Markup:
    rows = [_row(name, map(str, row)) for name, row in zip(names, counts, strict=False)]
    return _scrolled(["True class, taken for", *names], rows)


def _row(label: str, texts: Iterable[str]) -> Markup:
    return join(element("th", label, scope="row"), each("td", texts))


def _long(summary: str, heads: Sequence[str], rows: Sequence[Markup], kind: str = "") -> Markup:
    """A table, folded if it has many rows."""
    shown = _scrolled(heads, rows, kind)
    return folded(summary, shown) if len(rows) > _OPEN else shown


def _scrolled(heads: Sequence[str], rows: Sequence[Markup], kind: str = "") -> Markup:
    return element("div", table(f"values {kind}".strip(), heads, rows), class_="scroll")
