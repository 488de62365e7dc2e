"""What a grid shows, in sentences."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from feddle.report.grid_table import CENTER, signed, view
from feddle.report.grids import GridRecord, Panel, row_words
from feddle.report.records import value_in
from feddle.report.words import setting, shortlist

ABOUT = {
    "center": "trains on the server’s own data alone; no client takes part. The line to beat",
    "fed+ft": "averages what is back in time, then fine-tunes on the server’s data",
    "fed+ft-fedbuff": "collects late updates and adds their mean, then fine-tunes on the server’s data",
    "hfcl": "lets the server train as one more client",
    "feddf-id": "averages, then distils the clients’ predictions on the server’s data",
    "feddle-id": "searches the merging coefficients on the server’s data",
    "fedavg": "averages what is back in time",
    "fedavg-waiting": "averages, and waits for the slowest client of every round",
    "fedasync": "mixes each client’s model in as it arrives",
    "fedbuff": "collects late updates and adds their mean",
    "ca2fl": "is FedBuff, with each update calibrated by the client’s last one",
    "feddf-ood": "is FedDF, guided by data of another domain",
    "feddle-ood": "is Feddle, guided by data of another domain",
}


def headline(grid: GridRecord) -> str:
    """Who leads, in a few words."""
    wins, places = _wins(grid.panels)
    if not places:
        return str(grid.facts["title"])
    row, count = wins.most_common(1)[0]
    level = [each for each, won in wins.items() if won == count]
    if len(level) > 1:
        return f"{shortlist([row_words(grid, each) for each in level])} are level"
    if places == 1:
        return f"{row_words(grid, row)} leads"
    return f"{row_words(grid, row)} is best in {count} of {places} settings"


def lead(grid: GridRecord) -> list[str]:
    """The result in a few sentences."""
    shown = grid.panels[:6]
    sentences = [text for panel in shown for text in (_standing(grid, panel), _noise(grid, panel)) if text]
    done = sum(cell.is_final for cell in grid.cells)
    if done < len(grid.cells):
        left = sum(bool(cell.facts.get("left_out")) for cell in grid.cells)
        out = f", {left} left out because what they need cannot be had here (listed below)" if left else ""
        sentences.append(f"{done} of {len(grid.cells)} cells are finished{out}.")
    if not grid.quick and (text := _against_the_paper(grid)):
        sentences.append(text)
    return sentences


def common_setting(grid: GridRecord) -> str:
    """What all runs have in common."""
    records = [run.record for cell in grid.cells for run in cell.runs]
    return setting(records).partition(" The runs differ in")[0] if records else ""


def really_run(panel: Panel) -> str:
    """What the runs of a table were, by their configs, whatever its heads say."""
    configs = [run.record.config for cell in panel.cells.values() for run in cell.runs]
    phrases = [shortlist(each) for phrase in _PHRASES if (each := _distinct(phrase(config) for config in configs))]
    return f"Run: {', '.join(phrases)}." if phrases else ""


def _network(config: Mapping[str, Any]) -> str:
    model, size = value_in(config, ("model",)), value_in(config, ("data", "image_size"))
    if not isinstance(model, Mapping):
        return ""
    channels = model.get("channels")
    wide = f" of {'–'.join(map(str, channels))} channels" if isinstance(channels, list) else ""
    return f"{model.get('name')}{wide}" + (f" on images of {size}×{size}" if size else "")


def _training(config: Mapping[str, Any]) -> str:
    training = value_in(config, ("training",))
    if not isinstance(training, Mapping) or not {"optimizer", "lr", "epochs"} <= training.keys():
        return ""
    epochs = training["epochs"]
    return f"{epochs} {'epoch' if epochs == 1 else 'epochs'} a client with {training['optimizer']} {training['lr']:g}"


def _rounds(config: Mapping[str, Any]) -> str:
    rounds = value_in(config, ("rounds",))
    return f"{rounds} rounds" if rounds else ""


_PHRASES = (_network, _rounds, _training)


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def row_notes(panel: Panel) -> list[tuple[str, str]]:
    """What each method of a table does, for who has not read the paper."""
    return [(row, ABOUT[row]) for row in panel.rows if row in ABOUT]


def _wins(panels: Sequence[Panel]) -> tuple[Counter[str], int]:
    """How often each row is best, and in how many columns there is something to compare."""
    wins: Counter[str] = Counter()
    places = 0
    for panel in panels:
        for column in range(len(panel.columns)):
            best = [row for row in panel.rows if (seen := view(panel, row, column)) is not None and seen.leads]
            wins.update(best)
            places += bool(best)
    return wins, places


def _standing(grid: GridRecord, panel: Panel) -> str:
    """Who is ahead on average, over the columns that all rows have: else an easy setting would win."""
    known: dict[str, dict[int, float]] = {}
    for row in panel.rows:
        cells = [(i, cell) for i in range(len(panel.columns)) if (cell := panel.at(row, i)) is not None]
        if ours := {i: cell.accuracy.mean for i, cell in cells if cell.accuracy}:
            known[row] = ours
    shared = set.intersection(*map(set, known.values())) if known else set()
    if len(known) < 2 or not shared:
        return ""
    means = {row: fmean(ours[i] for i in shared) for row, ours in known.items()}
    order = sorted(means, key=lambda row: means[row], reverse=True)
    where = "" if len(panel.columns) == 1 else " on average over the settings"
    if len(shared) < len(panel.columns):
        where = " in the one setting that all have" if len(shared) == 1 else f"{where} that all have"
    first, second = order[:2]
    text = (
        f"{panel.title}: {row_words(grid, first)} reaches {100 * means[first]:.1f} %{where}, "
        f"{row_words(grid, second)} {100 * means[second]:.1f} %"
    )
    if CENTER in means:
        above = [row for row in order if means[row] > means[CENTER]]
        text += (
            f"; {len(above) or 'none'} of the other {len(means) - 1} {'is' if len(above) == 1 else 'are'} above Center"
        )
        text += f" ({100 * means[CENTER]:.1f} %)"
    return f"{text}."


def _against_the_paper(grid: GridRecord) -> str:
    """How far our numbers are from the paper's, of cells that were run in its setting."""
    said = [cell for cell in grid.cells if cell.paper and cell.is_final and cell.accuracy]
    gaps = [
        100 * cell.accuracy.mean - cell.paper[0]
        for cell in said
        if cell.is_table_setting and cell.accuracy and cell.paper
    ]
    other = len(said) - len(gaps)
    why = "since something stands in for what the paper used or their setting was changed"
    if not gaps:
        return f"No cell is compared with the paper, {why}." if other else ""
    near, gap = sum(abs(each) <= 2 for each in gaps), fmean(gaps)
    text = (
        f"Against the paper: {near} of {len(gaps)} cells are within two points of its number, "
        f"on average {abs(gap):.1f} points {'above' if gap > 0 else 'below'} it"
    )
    return f"{text}; {other} more {'is' if other == 1 else 'are'} not compared, {why}." if other else f"{text}."


def _noise(grid: GridRecord, panel: Panel) -> str:
    """What random labels cost each row, smallest loss first."""
    sentences = []
    for column, words in enumerate(panel.column_words):
        seen = {row: found for row in panel.rows if (found := view(panel, row, column)) is not None}
        losses = {row: found.from_clean for row, found in seen.items() if found.from_clean is not None}
        told = [f"{row_words(grid, row)} {signed(losses[row])}" for row in sorted(losses, key=lambda r: -losses[r])]
        if told:
            where = f"{panel.title}, {words}" if len(grid.panels) > 1 else words
            sentences.append(f"{where}, in points from clean labels: {', '.join(told)}.")
    return " ".join(sentences)
