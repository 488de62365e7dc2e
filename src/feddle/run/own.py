"""A config for your own data, made from its path."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from feddle.data.collection import Texts
from feddle.data.examples import Examples
from feddle.data.kinds import kind_of
from feddle.data.options import Data, read_data
from feddle.data.partition import is_natural
from feddle.records import about_unused
from feddle.run.load import parse_config, read_yaml
from feddle.run.plan import Config
from feddle.run.problem import OwnedExamples, build_problem

IMAGES_PER_CLIENT = 50  # if neither the data nor the user defines the clients
MOST_CLIENTS, PER_ROUND = 500, 10


def config_for(data: Path, file: Path | None, overrides: Sequence[str]) -> tuple[Config, str]:
    """The config in `file` with its data replaced, or a config that suits the data; and one line about the data."""
    tree = {} if file is None else read_yaml(file)
    source = str(file or data)
    config = parse_config(_with_data(tree, data), overrides, source=source)
    clients, line = _look(config.data)
    if file is None:
        suited = {"method": "feddle+", "clients": {"count": clients, "per_round": min(PER_ROUND, clients)}}
        config = parse_config(_with_data(suited, data), overrides, source=source)
    return config, line


class OpenedData(NamedTuple):
    """Data for `simulate`: the data of each client and of the server, the test data, and the names of the classes."""

    clients: Sequence[Examples]
    server: Examples | None
    test: Examples | None
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        counts = {
            "clients": len(self.clients),
            **{n: len(getattr(self, n) or ()) for n in ("server", "test", "classes")},
        }
        return f"OpenedData({', '.join(f'{name}: {count}' for name, count in counts.items())})"


def open_data(path: Path | str, *, clients: int | None = None, seed: int = 0, **data: Any) -> OpenedData:
    """Your own data for `simulate`: `clients`, `server`, `test` and `classes`.

    path: a CSV file with the columns path, label and client, an .npz file, a folder of images, or a Hugging Face
        dataset on disk, as for `feddle run --data`.
    clients: largest number of clients; by default all that the data names, or a number that suits the data.
    seed: determines which images are for testing, which are the server's, and the partition.
    data: keys of the section `data` of a config: `image_size`, `channels`, `partition`, `server`, `test_share`, ….

    Inputs are images (channels, image_size, image_size) of floats in [−1, 1].
    """
    tree = _with_data({"seed": seed, "data": data}, Path(path))
    count = clients or _look(parse_config(tree, source="open_data").data)[0]
    config = parse_config({**tree, "clients": {"count": count, "per_round": 1}}, source="open_data")
    problem = build_problem(config, nn.Identity(), quiet=True)
    test, owners = problem.test, problem.test_owners
    if test is not None and owners is not None:
        test = OwnedExamples(test, owners, problem.client_names)
    return OpenedData(problem.clients, problem.server, test, problem.classes)


def _with_data(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """The tree with the data's kind and absolute path, so that the run can be resumed from any folder."""
    said = tree.get("data")
    rest = {key: value for key, value in said.items() if key != "folder"} if isinstance(said, dict) else {}
    return {**tree, "data": {**rest, "name": kind_of(path), "path": str(path.resolve())}}


def _look(data: Data) -> tuple[int, str]:
    """The number of clients in the data, or else a suitable number; and one line about the content of the data."""
    collection = read_data(data)
    train, test = collection.train, collection.test
    count = len(train) + (0 if test is None else len(test))
    what = "texts" if isinstance(train.images, Texts) else "images"
    held = f"{count:,} {what} of {collection.classes} classes"
    if train.owners is not None and is_natural(data.partition, collection):
        clients = len(set(train.owners.tolist()))
        return clients, f"{collection.name}: {held}, {clients:,} clients in the data"
    clients = max(2, min(MOST_CLIENTS, len(train) // IMAGES_PER_CLIENT))
    line = f"{collection.name}: {held}, no clients in the data, so they are simulated"
    unused = about_unused(collection.unused) if train.owners is None else ""
    return clients, f"{line}; {unused}" if unused else line
