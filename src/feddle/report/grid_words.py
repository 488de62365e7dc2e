"""What a grid shows, in sentences; and whether its results belong together."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from feddle.report.grid_table import CENTER, view
from feddle.report.grids import GridRecord, Panel, row_words
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
    sentences = [text for panel in grid.panels[:6] if (text := _standing(grid, panel))]
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


def row_notes(panel: Panel) -> list[tuple[str, str]]:
    """What each method of a table does, for who has not read the paper."""
    return [(row, ABOUT[row]) for row in panel.rows if row in ABOUT]


def warnings(grid: GridRecord) -> list[str]:
    """Why results of this grid may not belong together, or not to its title."""
    runs = [(cell, run) for cell in grid.cells for run in cell.runs]
    found = []
    if changed := list(dict.fromkeys(text for cell, _ in runs for text in cell.facts.get("changed") or ())):
        found.append(f"Not the table’s own setting, whatever its heads say: run with {', '.join(changed)}.")
    sources = list(dict.fromkeys(source for _, run in runs for source in run.sources))
    if len(sources) > 1:
        found.append(f"The results were made by different states of feddle’s source: {shortlist(_some(sources))}.")
    for package in ("feddle", "torch"):
        versions = list(dict.fromkeys(str(v) for _, run in runs if (v := run.record.result.get(package))))
        if len(versions) > 1:
            found.append(f"The results were made with different versions of {package}: {shortlist(versions)}.")
    if other := [cell.name for cell, run in runs if cell.differs(run)]:
        found.append(f"Made with another config than the grid’s last command asks for: {shortlist(_some(other))}.")
    if unknown := [cell.name for cell, run in runs if not run.made and not run.summary.status]:
        found.append(
            f"Without a record of config and data, so perhaps of another setting: {shortlist(_some(unknown))}."
        )
    hashes: dict[str, set[str]] = {}
    for _, run in runs:
        for name, value in dict(run.made.get("data") or {}).items():
            hashes.setdefault(name, set()).add(value)
    if differing := [name for name, values in hashes.items() if len(values) > 1]:
        found.append(f"Made with different contents of the data set {shortlist(differing)}.")
    if len({run.made["model"] for _, run in runs if run.made.get("model")}) > 1:
        found.append("Made with different contents of the model’s folder.")
    seeds = {cell.name: {run.seed for run in cell.runs} for cell in grid.cells if cell.runs}
    if len({frozenset(each) for each in seeds.values()}) > 1:
        found.append("The cells do not all have the same seeds.")
    return found


def _some(names: Sequence[str], most: int = 4) -> list[str]:
    names = list(dict.fromkeys(names))
    return names if len(names) <= most else [*names[:most], f"{len(names) - most} more"]


def _wins(panels: Sequence[Panel]) -> tuple[Counter[str], int]:
    """How often each row is best, and in how many columns there is something to compare."""
    wins: Counter[str] = Counter()
    places = 0
    for panel in panels:
        for column in range(len(panel.columns)):
            best = [row for row in panel.rows if (seen := view(panel, row, column)) is not None and seen.best]
            wins.update(best)
            places += bool(best)
    return wins, places


def _standing(grid: GridRecord, panel: Panel) -> str:
    means = {
        row: fmean(cell.accuracy.mean for cell in cells if cell.accuracy)
        for row in panel.rows
        if (cells := [c for i in range(len(panel.columns)) if (c := panel.at(row, i)) is not None and c.accuracy])
    }
    if len(means) < 2:
        return ""
    order = sorted(means, key=lambda row: means[row], reverse=True)
    where = "" if len(panel.columns) == 1 else " on average over the settings"
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
    pairs = [
        (100 * cell.accuracy.mean - cell.paper[0], cell.facts.get("substitute"))
        for cell in grid.cells
        if cell.paper and cell.is_final and cell.accuracy
    ]
    if not pairs:
        return ""
    gap = fmean(difference for difference, _ in pairs)
    near = sum(abs(difference) <= 2 for difference, _ in pairs)
    direction = "above" if gap > 0 else "below"
    return (
        f"Against the paper: {near} of {len(pairs)} cells are within two points of its number, "
        f"on average {abs(gap):.1f} points {direction} it."
    )
