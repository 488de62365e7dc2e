"""Counting the examples of a run: for training, guidance and testing, and by client and class."""

import torch

from feddle.data.examples import classes_of
from feddle.records import DataRecord, json_digest
from feddle.run.problem import Problem

_MOST_CLIENTS = 60  # whose classes are counted
_MOST_CLASSES = 100


def census(problem: Problem) -> DataRecord:
    """The numbers of examples for each purpose. Unknown numbers are left out."""
    labels = None if problem.test is None else classes_of(problem.test)
    own = {"sizes": problem.sizes.tolist(), "test": None if labels is None else labels.tolist()}
    found: DataRecord = {
        "guidance": 0 if problem.server is None else len(problem.server),
        "digest": problem.digest or json_digest(own),
    }
    if problem.server_from_test:
        found["guidance_from_test"] = True
    if problem.unused:
        found["unused"] = list(problem.unused)
    if problem.test is not None:
        found["test"] = len(problem.test)
    if labels is not None:
        found["guess"] = int(labels.bincount().max()) / len(labels)
    if len(problem.sizes):
        found |= {"train": int(problem.sizes.sum()), "clients": len(problem.eligible), **_by_client(problem)}
    return found


def _by_client(problem: Problem) -> DataRecord:
    """The classes of at most `_MOST_CLIENTS` clients, evenly spaced if there are more."""
    count = len(problem.eligible)
    places = torch.linspace(0, count - 1, min(count, _MOST_CLIENTS)).round().long()
    shown = problem.eligible[places].tolist()
    labels = [classes_of(problem.clients[client]) for client in shown]
    known = [each for each in labels if each is not None]
    if len(known) < len(shown):
        return {}
    classes = max(len(problem.classes), 1 + max(int(each.max()) for each in known))
    if classes > _MOST_CLASSES:
        return {}
    return {
        "shown": shown,
        "names": [problem.client_names[client] for client in shown] if problem.client_names else [],
        "classes": list(problem.classes) if len(problem.classes) == classes else [],
        "counts": [each.bincount(minlength=classes).tolist() for each in known],
    }
