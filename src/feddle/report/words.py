"""The report's sentences."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from feddle.report.records import Record, finite, value_in
from feddle.report.summary import Summary, percent, points_between


def headline(summaries: Sequence[Summary]) -> str:
    """Who leads, in a few words; the summaries come best first."""
    known = [each for each in summaries if each.accuracy is not None]
    if not known:
        return "No evaluation yet"
    if len(known) == 1:
        return f"{known[0].record.label} reaches {percent(known[0].accuracy)}"
    level = [each for each in known if _gap(known[0], each) == 0]
    if len(level) == len(known) and len(known) > 2:
        return f"All {len(known)} runs are level"
    if len(level) > 1:
        return f"{shortlist([each.record.label for each in level])} are level"
    return f"{known[0].record.label} leads by {_gap(known[0], known[1]):.1f} points"


def standing(summaries: Sequence[Summary]) -> str:
    """The result in a sentence or two: the first, the second, the last, and what is not final."""
    known = [each for each in summaries if each.accuracy is not None]
    if not known:
        return "None of the runs has been evaluated so far."
    sentence = _lead(known)
    missing = [each.record.label for each in summaries if each.accuracy is None]
    if missing:
        sentence += f" No evaluation yet: {shortlist(missing)}."
    open_runs = [each.record.label for each in known if each.status]
    if open_runs:
        sentence += f" Not run to the end, so not final: {shortlist(open_runs)}."
    return sentence


def setting(records: Sequence[Record]) -> str:
    """What all runs have in common, and in what they differ."""
    all_facts = [facts(record) for record in records]
    shared = [text for key, text in all_facts[0].items() if key not in differences(records)]
    sentence = f"Setting: {', '.join(shared)}." if shared else ""
    differing = differences(records)
    if differing:
        sentence += f" The runs differ in {shortlist(differing)}; each row of the table names its own."
    return sentence.strip()


def differences(records: Sequence[Record]) -> list[str]:
    """The names of the facts that are not the same in all runs."""
    all_facts = [facts(record) for record in records]
    keys = list(dict.fromkeys(key for each in all_facts for key in each))
    return [key for key in keys if len({each.get(key) for each in all_facts}) > 1]


def facts(record: Record) -> dict[str, str]:
    """What the config says of the setting, each fact as a phrase; what it does not say is left out."""
    config = record.config
    sigma, per = _value(config, "delays", "sigma"), _value(config, "delays", "per")
    phrases = {
        "data set": _data_set(config),
        "clients": _clients(config),
        "partition": _partition(config),
        "delay": _phrase("delay σ = {}", sigma) + (f" per {per}" if sigma and per else ""),
        "rounds": _phrase("{} rounds", _value(config, "rounds")),
        "seed": _phrase("seed {}", _value(config, "seed")),
        "attack": _attack(config),
        "server labels": _share("{} of the server’s labels wrong", config, "data", "server", "label_noise"),
        "privacy": _phrase("privacy noise z = {}", _value(config, "privacy", "noise_multiplier")),
    }
    return {key: phrase for key, phrase in phrases.items() if phrase}


def versions(records: Sequence[Record]) -> str:
    """The versions of feddle and torch that wrote the results."""
    named = []
    for package in ("feddle", "torch"):
        found = {str(record.result[package]): None for record in records if record.result.get(package)}
        if found:
            named.append(f"{package} {shortlist(list(found))}")
    return f"Results written by {', '.join(named)}." if named else ""


def remarks(record: Record) -> list[str]:
    """What else is to be said of a run: the updates that its server refused, the privacy that its clients spent."""
    return [text for text in (refusals(record), privacy_spent(record)) if text]


def privacy_spent(record: Record) -> str:
    """ε of the client that spent the most, or nothing."""
    spent = record.result.get("privacy")
    if not isinstance(spent, dict):
        return ""
    epsilon, delta, updates = (finite(spent.get(key)) for key in ("epsilon", "delta", "updates"))
    if epsilon is None or delta is None or updates is None:
        return ""
    return f"privacy spent: ε = {epsilon:.3g} at δ = {delta:g} by the client with the most updates ({updates:g})"


def refusals(record: Record) -> str:
    """How many updates the server refused and why, or nothing."""
    refused = record.result.get("refused")
    if not isinstance(refused, dict) or not refused:
        return ""
    reasons = ", ".join(f"{reason} ({count})" for reason, count in refused.items())
    return f"updates refused: {reasons}"


def _lead(known: Sequence[Summary]) -> str:
    first = known[0]
    if len(known) == 1:
        best, last_one = percent(first.accuracy), percent(first.last)
        return f"The best of its last five evaluations is {best}, the last one {last_one}."
    second, last = known[1], known[-1]
    gap = _gap(first, second)
    if gap == 0:
        level = [each.record.label for each in known if _gap(first, each) == 0]
        sentence = f"{shortlist(level)} end level at {percent(first.accuracy)}"
    else:
        sentence = (
            f"{first.record.label} reaches {percent(first.accuracy)}, {_points(gap)} ahead of"
            f" {second.record.label} at {percent(second.accuracy)}"
        )
    if len(known) > 2 and _gap(second, last) > 0:
        sentence += f"; {last.record.label} comes last at {percent(last.accuracy)}"
    return f"{sentence}."


def _gap(high: Summary, low: Summary) -> float:
    assert high.accuracy is not None
    assert low.accuracy is not None
    return points_between(high.accuracy, low.accuracy)


def _points(gap: float) -> str:
    return f"{gap:.1f} percentage {'point' if gap == 1 else 'points'}"


def _clients(config: dict[str, Any]) -> str:
    per_round = _value(config, "clients", "per_round")
    phrase = _phrase("{} clients", _value(config, "clients", "count"))
    return f"{phrase} ({per_round} a round)" if phrase and per_round else phrase


def _partition(config: dict[str, Any]) -> str:
    name, alpha = (_value(config, "data", "partition", key) for key in ("name", "alpha"))
    if alpha:
        return f"{(name or 'Dirichlet').replace('dirichlet', 'Dirichlet')} α = {alpha}"
    return "" if name == "auto" else _phrase("{} partition", name)


def _data_set(config: dict[str, Any]) -> str:
    """The name of the data set; data of one's own goes by the name of its file or folder."""
    path = _value(config, "data", "path")
    return PurePath(path).name if path else _value(config, "data", "name")


def _attack(config: dict[str, Any]) -> str:
    name, factor = (_value(config, "attack", key) for key in ("name", "factor"))
    phrase = f"{name} attack" + (f" ×{factor}" if factor not in ("", "1") else "")
    return _share(phrase + " by {} of the clients", config, "attack", "share") if name else ""


def _share(pattern: str, config: dict[str, Any], *keys: str) -> str:
    """A phrase about a share, empty where the share is missing or 0."""
    share = finite(value_in(config, keys))
    return pattern.format(f"{100 * share:g} %") if share else ""


def _value(config: dict[str, Any], *keys: str) -> str:
    """The text of a plain value inside nested sections, empty where it is missing."""
    value = value_in(config, keys)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _phrase(pattern: str, value: str) -> str:
    return pattern.format(value) if value else ""


def shortlist(words: Sequence[str]) -> str:
    """Words as people list them: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
