"""The setting of runs in words, from their configs, and remarks from their results."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

from feddle.records import DATA, Refusal, RunRecord, about_unused, finite
from feddle.report.grid import Panel, value_in
from feddle.report.numbers import listed, ranged

# Each fact is a phrase with the values of config keys, and further parts that are left out if a value is missing.
_FACTS = {
    "data set": ("{data.name}", " ({data.path})", " (classes {data.classes})"),
    "clients": ("{clients.count} clients", " ({clients.per_round} per round)"),
    "partition": ("{data.partition.name} partition", " with α = {data.partition.alpha}"),
    "delay": ("delay σ = {delays.sigma}", " per {delays.per}"),
    "network": ("{model.name}", " with {model.channels} channels", " on images of size {data.image_size}"),
    "rounds": ("{rounds} rounds",),
    "training": ("clients train with {training.optimizer}, lr = {training.lr}, epochs = {training.epochs}",),
    "seed": ("seed {seed}",),
    "attack": ("{attack.name} attack by {attack.share:%} of the clients", " (factor {attack.factor})"),
    "server labels": ("{data.server.label_noise:%} of the server’s labels wrong",),
    "privacy": ("privacy noise z = {privacy.noise_multiplier}",),
}
_KEY = re.compile(r"\{([\w.]+)(:%)?\}")


def setting(runs: Sequence[RunRecord]) -> str:
    """The facts that all runs share, and the names of those that differ."""
    differing = differences(runs)
    shared = [text for key, text in facts(runs[0]).items() if key not in differing] if runs else []
    same = f"Setting: {', '.join(shared)}." if shared else ""
    other = f"The runs differ in {listed(differing)}." if differing else ""
    return " ".join(filter(None, (same, other)))


def simulated_clients(runs: Sequence[RunRecord]) -> str:
    """A note that the clients are simulated, if an unused column might name them; empty otherwise."""
    columns = list(dict.fromkeys(column for run in runs for column in run.data.get("unused", [])))
    return f"The clients are simulated: the data names none, and {about_unused(columns)}." if columns else ""


def differences(runs: Sequence[RunRecord]) -> list[str]:
    """The names of the facts that differ between runs."""
    found = [facts(run) for run in runs]
    keys = dict.fromkeys(key for each in found for key in each)
    return [key for key in keys if len({each.get(key) for each in found}) > 1]


def really_run(panel: Panel, keys: Sequence[str]) -> str:
    """These facts as the configs of a panel's runs have them, which may differ from its headings."""
    found = [facts(run) for run in panel.runs]
    each = [[text for fact in found if (text := fact.get(key))] for key in keys]
    phrases = [listed(texts) for texts in each if texts]
    return f"Run: {', '.join(phrases)}." if phrases else ""


def facts(run: RunRecord) -> dict[str, str]:
    """The setting of a run as phrases. Facts that its config does not have are left out."""
    config, natural = run.config, run.data.get("clients") if run.data.get("names") else None
    if natural is not None and isinstance(config.get("clients"), Mapping):  # of which the config has only a limit
        config = {**config, "clients": {**config["clients"], "count": natural}}
    found = {name: [_filled(part, config) for part in parts] for name, parts in _FACTS.items()}
    return {name: "".join(texts) for name, texts in found.items() if texts[0]}


def _filled(phrase: str, config: Mapping[str, Any]) -> str:
    """A phrase with its values; empty if one of them is missing, or is a share of 0."""
    values = [_text(value_in(config, key.split(".")), key, share) for key, share in _KEY.findall(phrase)]
    rest = iter(values)
    return _KEY.sub(lambda _: next(rest), phrase) if all(values) else ""


def _text(value: object, key: str, share: str) -> str:
    if share:
        return f"{100 * number:g} %" if (number := finite(value)) else ""
    if isinstance(value, list):
        return (", " if key.endswith("classes") else "–").join(map(str, value))
    if isinstance(value, str):
        return PurePath(value).name if key.endswith("path") else value
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else ""


def examples(runs: Sequence[RunRecord]) -> str:
    """The numbers of examples for each purpose; a range if the runs differ, and empty if unknown."""
    uses: Mapping[Literal["train", "guidance", "test"], str] = {
        "train": "training",
        "guidance": "guidance at the server",
        "test": "testing",
    }
    counts = {use: [run.data[key] for run in runs if key in run.data] for key, use in uses.items()}
    phrases = [f"{ranged(found)} for {use}" for use, found in counts.items() if found]
    return f"Examples: {listed(phrases)}." if phrases else ""


def unknown_examples(runs: Sequence[RunRecord]) -> str:
    """Why the numbers of examples are unknown."""
    damaged = any((run.folder / DATA).exists() for run in runs)
    why = (
        f"{DATA} is damaged" if damaged else f"The runs have no {DATA}, which earlier versions of feddle did not write"
    )
    return f"{why}, so the numbers of examples are unknown."


def versions(runs: Sequence[RunRecord]) -> str:
    """A sentence that names the versions of feddle and torch with which the results were computed."""
    named = [f"{package} {listed(found)}" for package, found in packages(runs).items() if found]
    return f"Results computed with {', '.join(named)}." if named else ""


def packages(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The versions of feddle and torch of all results."""
    names = ("feddle", "torch")
    return {name: [str(found) for run in runs if (found := run.result.get(name))] for name in names}


def refused(run: RunRecord) -> Counter[str]:
    """The number of updates that the server refused, by reason; of a run without a result, from its history."""
    return Counter(run.result.get("refused")) | Counter(each["reason"] for each in refusals(run))


def refusals(run: RunRecord) -> list[Refusal]:
    """The updates that the server refused; none for a run of a version that did not record their clients."""
    return [each for line in run.history for each in line.get("refused", [])]


def discards_late(run: RunRecord) -> bool:
    """Whether its method uses only updates of the current round."""
    return value_in(run.config, ("method", "late")) == "discard"


def late_share(run: RunRecord) -> float:
    """The share of the updates that arrived after their own round. A simulation only counts those, and trains none."""
    known = [staleness > 0 for line in run.history for staleness in line.get("staleness", [])]
    untrained = sum(line.get("discarded", 0) for line in run.history)
    return (sum(known) + untrained) / max(len(known) + untrained, 1)


def remarks(run: RunRecord) -> list[str]:
    """The updates that the server refused or discarded, and the privacy that the clients spent."""
    found = []
    if (late := late_share(run)) and discards_late(run):
        found.append(f"{100 * late:.1f} % of the updates that arrived were late and discarded")
    if counts := refused(run):
        found.append("updates refused: " + ", ".join(f"{reason} ({count})" for reason, count in counts.items()))
    if spent := run.result.get("privacy"):
        loss = f"ε = {spent['epsilon']:.3g} at δ = {spent['delta']:g}"
        found.append(f"privacy spent: {loss} by the client with the most updates ({spent['updates']:g})")
    return found
