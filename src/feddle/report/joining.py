"""Whether clients benefit from joining: the federated model and the client's own model, for each client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from feddle.core.metrics import ACCURACY, Metric, metric_named
from feddle.records import ClientScores, RunRecord
from feddle.report.evidence import (
    LEVEL,
    exact_p,
    have_same_tests,
    interval_over_seeds,
    obstacle,
    only,
    p_words,
    right_by_client,
)
from feddle.report.grid import LOCAL, Cell, Grid, Panel, is_local, value_in
from feddle.report.numbers import binomial_interval, counted, effective_count, listed, mean_of, ranged, signed

_NAMES = 5  # names in a sentence
_GUIDED = ("feddle", "feddle+", "fed+ft", "hfcl", "center", "convex")  # methods that use labelled data at the server
BETTER, WORSE = "better", "worse"
NOT_CLEAR, TOO_FEW, UNKNOWN = "no clear difference", "too few test examples to tell", "unknown number of test examples"
_VERDICTS = {BETTER: "clearly better", WORSE: "clearly worse", NOT_CLEAR: NOT_CLEAR, TOO_FEW: TOO_FEW, UNKNOWN: UNKNOWN}
Counts = tuple[int, int, int]  # test examples right only in the federation, right only alone, and all
Pair = tuple[RunRecord, RunRecord]  # a federated run, and the run of `local` with the same seed


@dataclass(frozen=True)
class Verdict:
    """Whether a client is better off in the federation."""

    word: str  # a key of `_VERDICTS`
    detail: str = ""  # the result of the test

    @property
    def short(self) -> str:
        """The verdict for a column of a table."""
        word = {NOT_CLEAR: "not clear", TOO_FEW: "too few examples", UNKNOWN: "not known"}.get(self.word, self.word)
        return f"{word}, {self.detail}" if self.detail else word


@dataclass(frozen=True)
class Joined:
    """A method of the federation, compared with clients that train alone."""

    label: str
    metric: Metric
    means: tuple[float, float]  # over the clients: in the federation, and alone
    verdicts: Mapping[str, Verdict]  # of each client; empty if the metric has no test
    seeds: str = ""  # which seeds are compared; empty if there is only one

    def names(self, word: str) -> list[str]:
        """The clients with a verdict."""
        return [name for name, verdict in self.verdicts.items() if verdict.word == word]

    @property
    def headline(self) -> str:
        """For how many clients it is better to join."""
        if not self.verdicts:
            return f"{self.label} compared with training alone: {self._means}"
        counts = {word: len(self.names(word)) for word in _VERDICTS}
        first, *others = [f"{word} for {counts[word]}" for word in _VERDICTS if counts[word]]
        of = f" of {counted(len(self.verdicts), 'client')}"
        return f"{self.label} compared with training alone: {', '.join([first + of, *others])}"

    @property
    def sentence(self) -> str:
        """For which clients it is better to join."""
        mean = f"{self.metric.words}, mean over clients: {self._means}."
        if not self.verdicts:
            return f"{self.seeds}{self.label} compared with training alone: {mean}"
        total, parts = counted(len(self.verdicts), "client"), []
        for word, said in _VERDICTS.items():
            if names := self.names(word):
                few = len(names) <= _NAMES and word != NOT_CLEAR
                parts.append(f"{said} for {listed(names) if few else f'{len(names)} of {total}'}")
        return f"{self.seeds}{self.label} compared with training alone: {'; '.join(parts)}. {mean}"

    @property
    def _means(self) -> str:
        joined, alone = map(self.metric.shown, self.means)
        return f"{joined} in the federation, {alone} alone"


def joining(grid: Grid) -> list[str]:
    """Whether the clients are better off than alone, one sentence for each method; none without the method local."""
    return [joined.sentence for panel in grid.panels for joined in joined_methods(panel, obstacle(grid, panel))]


def joined_methods(panel: Panel, barred: str = "") -> list[Joined]:
    """The methods of a panel with one column that can be compared with `local`; if `barred`, without verdicts."""
    runs = first_runs(panel)
    found = measured(runs)
    alone = next((label for label in found if runs[label].method == LOCAL), None)
    if alone is None or found[alone]["measured_on"] == "train":
        return []
    cells = _first_cells(panel)
    pairs = {label: _pairs(cells[label].runs, cells[alone].runs) for label in found if label != alone}
    joined = [_joined(label, several) for label, several in pairs.items() if several]
    return [replace(each, verdicts={}) for each in joined] if barred else joined


def _first_cells(panel: Panel) -> dict[str, Cell]:
    """The cells of the first column, by label."""
    return {label: panel.at(row, 0) for row, label in panel.rows.items()}


def first_runs(panel: Panel) -> dict[str, RunRecord]:
    """The first run of each row, by label; empty if the panel has several columns."""
    cells = _first_cells(panel) if len(panel.columns) == 1 else {}
    return {label: cell.runs[0] for label, cell in cells.items() if cell.runs}


def measured(runs: Mapping[str, RunRecord]) -> dict[str, ClientScores]:
    """The clients of each row, if they are measured as those of the first row that has any."""
    kept = {label: run.result.get("clients") for label, run in runs.items()}
    found = {label: clients for label, clients in kept.items() if clients and clients["scores"]}
    kinds = [(clients["metric"], clients["measured_on"]) for clients in found.values()]
    return {
        label: clients for label, clients in found.items() if (clients["metric"], clients["measured_on"]) == kinds[0]
    }


def scores_of_seeds(panel: Panel) -> dict[str, list[ClientScores]]:
    """The clients of each row for every seed, if they are the same ones; otherwise those of the first seed."""
    first = measured(first_runs(panel))
    cells = _first_cells(panel)
    runs = {label: [run for run in cells[label].runs if run.result.get("clients")] for label in first}
    if not all(_has_named_tests(run) and run.metric == ACCURACY for each in runs.values() for run in each):
        return {label: [clients] for label, clients in first.items()}
    return {label: [_clients(run) for run in runs[label] if _clients(run)["scores"]] for label in first}


def names_of(clients: ClientScores) -> list[str]:
    """The names of the clients; their numbers if they have no names."""
    return clients["names"] or [f"client {number}" for number in clients["clients"]]


def by_name(clients: ClientScores) -> dict[str, float]:
    """The score of each client."""
    return dict(zip(names_of(clients), clients["scores"], strict=False))


def _pairs(runs: Sequence[RunRecord], alone: Sequence[RunRecord]) -> list[Pair]:
    """The runs with the same seed and the same test examples, if both measured clients."""
    pairs = [(run, other) for run in runs for other in alone if have_same_tests(run, other)]
    return [pair for pair in pairs if all(run.result.get("clients") for run in pair)]


def _joined(label: str, pairs: Sequence[Pair]) -> Joined:
    several = len(pairs) > 1
    if several and not all(_has_named_tests(run) for pair in pairs for run in pair):
        pairs = pairs[:1]  # clients without names are others with every seed
    seeds = f"Seed {pairs[0][0].seed}: " if several and len(pairs) == 1 else ""
    seeds = f"Over {len(pairs)} seeds: " if len(pairs) > 1 else seeds
    scores = [tuple(by_name(_clients(run)) for run in pair) for pair in pairs]
    shared = [[(ours[name], own[name]) for name in own if name in ours] for ours, own in scores]
    both = [pair for each in shared for pair in each]
    metric = metric_named(_clients(pairs[0][0])["metric"])
    if not both:
        return Joined(label, metric, (0.0, 0.0), {}, seeds)
    means = fmean(ours for ours, _ in both), fmean(own for _, own in both)
    return Joined(label, metric, means, _verdicts(pairs) if metric == ACCURACY else {}, seeds)


def _clients(run: RunRecord) -> ClientScores:
    clients = run.result.get("clients")
    assert clients is not None
    return clients


def _has_named_tests(run: RunRecord) -> bool:
    """Whether its clients have names, and it is known which of their test examples are right."""
    return bool(_clients(run)["names"]) and bool(right_by_client(_clients(run)))


def _verdicts(pairs: Sequence[Pair]) -> dict[str, Verdict]:
    """The verdict of each client that both runs measured, corrected for the number of clients (Bonferroni).

    If it is known which of a client's own test examples are predicted correctly, the exact paired test decides.
    Otherwise the 95 % intervals for the number of test examples must not overlap, which is stricter.
    """
    counts: dict[str, list[Counts]] = {}  # of each seed
    for run, alone in pairs:
        ours, own = right_by_client(_clients(run)), right_by_client(_clients(alone))
        names = dict(zip(_clients(run)["clients"], names_of(_clients(run)), strict=False))
        for client in (client for client in ours if client in own and client in names):
            found = (*only(ours[client].bits, own[client].bits), ours[client].tests)
            counts.setdefault(names[client], []).append(found)
    if counts:
        return {name: _paired(found, len(counts)) for name, found in counts.items()}
    return _by_intervals(*pairs[0])


def _paired(counts: Sequence[Counts], comparisons: int) -> Verdict:
    """The exact test with the mean counts over the seeds, which may share test examples.

    Several seeds must also agree. This only withdraws verdicts, so it needs no correction.
    """
    more, less, tests = (round(fmean(values)) for values in zip(*counts, strict=True))
    level, p = LEVEL / comparisons, exact_p(more, less)
    if exact_p(tests, 0) >= level:  # the test fails even if one model is right on all of them, and the other on none
        return Verdict(TOO_FEW)
    if p >= level:
        return Verdict(NOT_CLEAR, p_words(p))
    if len(counts) > 1 and (doubt := _doubt(counts, level)):
        return Verdict(NOT_CLEAR, doubt)
    return Verdict(BETTER if more > less else WORSE, p_words(p))


def _doubt(counts: Sequence[Counts], level: float) -> str:
    """Why several seeds do not show a client's difference; empty if they do.

    They show it if the interval over the seeds does not contain 0, or if every seed alone shows it. The second rule
    is needed because few seeds have a wide interval, even if each of them shows a harm.
    """
    points = [100 * (more - less) / max(tests, 1) for more, less, tests in counts]
    low, high = interval_over_seeds(points)
    if min(points) < 0 < max(points):
        return "the seeds differ" if low <= 0 <= high else ""
    if not low <= 0 <= high or all(exact_p(more, less) < level for more, less, _ in counts):
        return ""
    ends = f"{max(low, -100):.1f} to {min(high, 100):.1f}".replace("-", "−")
    return f"{signed(fmean(points))} points on average, but {len(counts)} seeds are too few (95 % interval {ends})"


def _by_intervals(run: RunRecord, alone: RunRecord) -> dict[str, Verdict]:
    ours, own = by_name(_clients(run)), by_name(_clients(alone))
    shared, counts = [name for name in own if name in ours], _effective(run)
    found = {}
    for name in shared:
        if name not in counts:
            found[name] = Verdict(UNKNOWN)
            continue
        ends = [100 * ours[name], 100 * own[name], 0.0, 100.0]
        here, there, least, most = (binomial_interval(end, counts[name], len(shared)) for end in ends)
        if least[1] >= most[0]:
            found[name] = Verdict(TOO_FEW)
        elif max(here[0], there[0]) > min(here[1], there[1]):
            found[name] = Verdict(BETTER if ours[name] > own[name] else WORSE)
        else:
            found[name] = Verdict(NOT_CLEAR)
    return found


def _effective(run: RunRecord) -> dict[str, float]:
    """The number of test examples behind the score of each client; clients for which it is unknown are left out.

    A client that is measured by its classes has the effective number of a weighted mean.
    """
    clients = _clients(run)
    names = dict(zip(clients["clients"], names_of(clients), strict=False))
    if clients["measured_on"] != "classes":
        return {name: count for name, count in zip(names.values(), clients["tested"], strict=False) if count}
    per_class = [sum(row) for row in run.result.get("classes", {}).get("confusion", [])]
    rows = zip(run.data.get("shown", []), run.data.get("counts", []), strict=False)
    known = {names[client]: counts for client, counts in rows if client in names and len(counts) == len(per_class)}
    found = {name: effective_count(counts, per_class) for name, counts in known.items()}
    return {name: count for name, count in found.items() if count}


def caveats(grid: Grid) -> list[str]:
    """What a comparison with `local` does not say, once for each panel that has it."""
    return [text for panel in grid.panels for text in (_caveat(panel), _more_labels(panel)) if text]


def _more_labels(panel: Panel) -> str:
    """The labelled examples at the server, which other methods use and `local` does not; empty if there are none."""
    if not any(map(is_local, panel.cells.values())) or len(panel.columns) > 1:
        return ""
    runs = {label: run for label, run in first_runs(panel).items() if _reads_labels(run) and run.data.get("guidance")}
    if not runs:
        return ""
    amount = ranged(run.data["guidance"] for run in runs.values())
    held = all(run.data.get("guidance_from_test") for run in runs.values())
    verb, taken = "uses" if len(runs) == 1 else "use", ", which were taken from the held-out data" if held else ""
    return (
        f"{listed(list(runs), _NAMES)} also {verb} {amount} labelled examples at the server{taken}; {LOCAL} does not."
    )


def _reads_labels(run: RunRecord) -> bool:
    """Whether the method of a run reads labels of the clients' task at the server."""
    if run.method not in _GUIDED or value_in(run.config, ("data", "server", "name")):  # data of another domain
        return False
    objective = value_in(run.config, ("method", "objective"))
    name = objective.get("name") if isinstance(objective, Mapping) else objective
    own = [value_in(run.config, ("method", name)) for name in ("server_anchor", "head_anchor")]
    trains = run.method == "feddle" and own != [None, None]
    return trains or name not in ("distil", "clusters")


def _caveat(panel: Panel) -> str:
    alone = [cell for cell in panel.cells.values() if is_local(cell)]
    if not alone:
        return ""
    metric, others = alone[0].metric, [cell for cell in panel.cells.values() if cell.runs and not is_local(cell)]
    text = f"{LOCAL}: each client’s own model is measured on the examples of that client only"
    if metric == ACCURACY:
        text += ", so it rarely or never has to distinguish the client’s classes from those of other clients"
    whole = mean_of([value for run in alone[0].runs if (value := on_all_tests(run)) is not None])
    if whole is None or len(panel.columns) > 1:
        return f"{text}."
    means = [f"{cell.name} {metric.shown(mean_of([run.last_score for run in cell.runs]))}" for cell in others]
    means = [f"the clients’ own models {metric.shown(whole)} on average", *means]
    return f"{text}. {metric.words} on all test data: {listed(means, _NAMES)}."


def on_all_tests(run: RunRecord) -> float | None:
    """The mean score of the clients' own models, each measured on all test data; None if it was not measured."""
    clients = run.result.get("clients")
    return clients.get("whole") if clients else None


def untested(grid: Grid) -> list[str]:
    """The clients without a test example by name, once for each panel; runs of earlier versions do not name them."""
    return [text for panel in grid.panels if (text := about_untested(measured(first_runs(panel))))]


def about_untested(found: Mapping[str, ClientScores]) -> str:
    """The clients without a test example."""
    names = list(dict.fromkeys(name for clients in found.values() for name in clients.get("untested", {})))
    if not names:
        return ""
    whom = "it" if len(names) == 1 else "them"
    return f"Without a test example, so nothing can be said about {whom}: {listed(names, _NAMES)}."
