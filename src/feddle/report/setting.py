"""The setting of runs in words, from their configs, and remarks from their results."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from feddle.records import RunRecord, finite
from feddle.report.grid import Panel, value_in
from feddle.report.numbers import listed


def setting(runs: Sequence[RunRecord]) -> str:
    """What all runs have in common, and in what they differ."""
    differing = differences(runs)
    shared = [text for key, text in facts(runs[0].config).items() if key not in differing] if runs else []
    sentence = f"Setting: {', '.join(shared)}." if shared else ""
    if differing:
        sentence += f" The runs differ in {listed(differing)}."
    return sentence.strip()


def differences(runs: Sequence[RunRecord]) -> list[str]:
    """The names of the facts that are not the same in all runs."""
    found = [facts(run.config) for run in runs]
    keys = dict.fromkeys(key for each in found for key in each)
    return [key for key in keys if len({each.get(key) for each in found}) > 1]


def really_run(panel: Panel, keys: Sequence[str]) -> str:
    """What the configs of a panel's runs say about these facts, whatever its heads say."""
    found = [facts(run.config) for run in panel.runs]
    each = [[text for fact in found if (text := fact.get(key))] for key in keys]
    phrases = [listed(texts) for texts in each if texts]
    return f"Run: {', '.join(phrases)}." if phrases else ""


def facts(config: Mapping[str, Any]) -> dict[str, str]:
    """The setting of a run as phrases; what its config does not say is left out."""
    sigma, per = _value(config, "delays", "sigma"), _value(config, "delays", "per")
    path, data = _value(config, "data", "path"), _value(config, "data", "name")
    phrases = {
        "data set": PurePath(path).name if path else data,
        "clients": _clients(config),
        "partition": _partition(config),
        "delay": _phrase("delay σ = {}", sigma) + (f" per {per}" if sigma and per else ""),
        "network": _network(config),
        "rounds": _phrase("{} rounds", _value(config, "rounds")),
        "training": _training(config),
        "seed": _phrase("seed {}", _value(config, "seed")),
        "attack": _attack(config),
        "server labels": _share("{} of the server’s labels wrong", config, "data", "server", "label_noise"),
        "privacy": _phrase("privacy noise z = {}", _value(config, "privacy", "noise_multiplier")),
    }
    return {key: phrase for key, phrase in phrases.items() if phrase}


def versions(runs: Sequence[RunRecord]) -> str:
    """The versions of feddle and torch that wrote the results."""
    found = {
        "feddle": [run.result["feddle"] for run in runs if run.result.get("feddle")],
        "torch": [run.result["torch"] for run in runs if run.result.get("torch")],
    }
    named = [f"{package} {listed(each)}" for package, each in found.items() if each]
    return f"Results written by {', '.join(named)}." if named else ""


def remarks(run: RunRecord) -> list[str]:
    """The updates that the server of a run refused, and the privacy that its clients spent."""
    found = []
    if refused := run.result.get("refused"):
        found.append("updates refused: " + ", ".join(f"{reason} ({count})" for reason, count in refused.items()))
    spent = run.result.get("privacy")
    if spent:
        epsilon, delta, updates = spent["epsilon"], spent["delta"], spent["updates"]
        found.append(
            f"privacy spent: ε = {epsilon:.3g} at δ = {delta:g} by the client with the most updates ({updates:g})"
        )
    return found


def _clients(config: Mapping[str, Any]) -> str:
    per_round = _value(config, "clients", "per_round")
    phrase = _phrase("{} clients", _value(config, "clients", "count"))
    return f"{phrase} ({per_round} a round)" if phrase and per_round else phrase


def _partition(config: Mapping[str, Any]) -> str:
    name, alpha = (_value(config, "data", "partition", key) for key in ("name", "alpha"))
    if alpha:
        return f"{(name or 'Dirichlet').replace('dirichlet', 'Dirichlet')} α = {alpha}"
    return "" if name == "auto" else _phrase("{} partition", name)


def _network(config: Mapping[str, Any]) -> str:
    name, size = _value(config, "model", "name"), _value(config, "data", "image_size")
    channels = value_in(config, ("model", "channels"))
    wide = f" of {'–'.join(map(str, channels))} channels" if isinstance(channels, list) else ""
    return f"{name}{wide}" + _phrase(f" on images of {size}×{size}", size) if name else ""


def _training(config: Mapping[str, Any]) -> str:
    optimizer, lr, epochs = (_value(config, "training", key) for key in ("optimizer", "lr", "epochs"))
    word = "epoch" if epochs == "1" else "epochs"
    return f"{epochs} {word} a client with {optimizer} {lr}" if optimizer and lr and epochs else ""


def _attack(config: Mapping[str, Any]) -> str:
    name, factor = (_value(config, "attack", key) for key in ("name", "factor"))
    phrase = f"{name} attack" + (f" ×{factor}" if factor not in ("", "1") else "")
    return _share(phrase + " by {} of the clients", config, "attack", "share") if name else ""


def _share(pattern: str, config: Mapping[str, Any], *keys: str) -> str:
    """A phrase about a share; empty if the share is missing or 0."""
    share = finite(value_in(config, keys))
    return pattern.format(f"{100 * share:g} %") if share else ""


def _value(config: Mapping[str, Any], *keys: str) -> str:
    """The text of a plain value inside nested sections; empty if it is missing."""
    value = value_in(config, keys)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _phrase(pattern: str, value: str) -> str:
    return pattern.format(value) if value else ""
