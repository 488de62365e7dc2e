"""Selecting classes of a data set by name or number, for the clients and for the server."""

from pathlib import Path
from typing import Any

import pytest
import torch

from command import run_feddle
from feddle.core.errors import FeddleError
from feddle.data.collection import Collection, Labelled, with_classes
from feddle.data.options import Data
from feddle.grids.cells import config_hash
from feddle.reading import read_run
from feddle.report.setting import facts
from feddle.run.load import parse_config
from feddle.run.problem import build_collection, build_problem
from feddle.run.simulate import simulated
from test_report import make_run
from tiny import TINY, tiny

EVEN, ODD = [0, 2, 4, 6, 8], [1, 3, 5, 7, 9]


def pets(*labels: int, names: tuple[str, ...] = ("bird", "cat", "dog")) -> Collection:
    """Images of one pixel, which is the index of the image. Every second image is a test image."""
    images, numbers = torch.arange(len(labels)).view(-1, 1, 1, 1), torch.tensor(labels)
    halves = [Labelled(images[i::2], numbers[i::2], owners=torch.arange(len(labels))[i::2]) for i in (0, 1)]
    return Collection("pets", halves[0], halves[1], len(names), names=names)


def digits(server: dict[str, Any] | None = None, **changes: Any) -> Any:
    return {**TINY["data"], **changes, "server": server or {"samples": 40}}


def test_labels_are_numbered_in_the_given_order() -> None:
    # training images 0, 2, 4, 6 have the labels bird, dog, cat, dog; dog becomes 0 and bird 1
    found = with_classes(pets(0, 1, 2, 1, 1, 1, 2, 1), ["dog", 0], "data.classes")
    assert isinstance(found.train.images, torch.Tensor)
    assert found.train.images.flatten().tolist() == [0, 2, 6]
    assert found.train.labels.tolist() == [1, 0, 0]
    assert found.train.owners is not None
    assert found.train.owners.tolist() == [0, 2, 6]
    assert (found.classes, found.names) == (2, ("dog", "bird"))
    assert found.test is None  # all test images are cats, so a share of the training images is held out later


def test_a_number_is_a_name_if_all_names_are_numbers() -> None:
    found = with_classes(pets(0, 0, 1, 1, 2, 2, names=("1", "2", "30")), [30, 1], "data.classes")
    assert found.names == ("30", "1")
    assert found.train.labels.tolist() == [1, 0]
    with pytest.raises(FeddleError, match="no class 0"):
        with_classes(pets(0, 0, 1, 1, 2, 2, names=("1", "2", "30")), [0, 1], "data.classes")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["dgo", "cat"], "data.classes: pets has no class 'dgo': did you mean 'dog'? Its classes are bird, cat, dog"),
        (["cat", 3], "data.classes: pets has no class 3: Its classes are bird, cat, dog"),
        (["cat", 1], "data.classes names the class 1 twice; remove one of them"),
    ],
)
def test_the_error_for_a_wrong_class_is_one_line(chosen: list[str | int], message: str) -> None:
    with pytest.raises(FeddleError) as error:
        with_classes(pets(0, 0, 1, 1, 2, 2), chosen, "data.classes")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"classes": ["yes", True]}, "got True; put a name such as 'yes' in quotes"),
        ({"classes": ["one"]}, "at least 2"),
        ({"classes": [1.5, 2]}, "data.classes"),
        ({"server": {"classes": [1, 2]}}, "data.server: classes need the name of their data set"),
    ],
)
def test_the_error_for_a_wrong_config_is_one_line(data: dict[str, Any], message: str) -> None:
    with pytest.raises(FeddleError) as error:
        parse_config({"data": data})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_named_data_set_has_a_name_for_each_class() -> None:
    from feddle.data.datasets import FETCHED

    for source in FETCHED:
        assert len(source.contents.names) in (0, source.contents.num_classes)
    names = {source.name: source.contents.names for source in FETCHED}
    assert all(names[name] for name in ("fashion-mnist", "cifar-10", "chest-xray"))


def test_server_data_is_out_of_domain_if_its_name_or_its_classes_differ() -> None:
    def outside(**server: Any) -> bool:
        return Data.model_validate({"name": "digits", "classes": EVEN, "server": server}).outside

    assert not outside()
    assert not outside(name="digits")
    assert not outside(name="digits", classes=EVEN)
    assert outside(name="digits", classes=ODD)
    assert outside(name="mnist", classes=EVEN)


def test_a_config_contains_classes_only_if_they_are_set() -> None:
    assert "classes" not in tiny().data.model_dump()
    assert "classes" not in tiny().data.server.model_dump()
    chosen = tiny(data=digits({"name": "digits", "classes": ODD}, classes=["1", 2]))
    assert config_hash(chosen) != config_hash(tiny())
    assert parse_config(chosen.model_dump(mode="json")) == chosen


def test_the_setting_of_a_run_names_the_classes(tmp_path: Path) -> None:
    config = tiny(data=digits(classes=[1, 2])).model_dump(mode="json")
    assert facts(read_run(make_run(tmp_path / "run", config=config)))["data set"] == "digits (classes 1, 2)"


def test_the_server_can_use_other_classes_than_the_clients() -> None:
    config = tiny(data=digits({"name": "digits", "classes": ODD}, classes=EVEN), diagnostics={"every": 2, "clients": 2})
    problem = build_problem(config)
    whole, even = build_collection(tiny()), build_collection(config)
    assert len(even.train) == sum(int((whole.train.labels == label).sum()) for label in EVEN)
    assert problem.server is not None
    assert (problem.out_of_domain, problem.server_classes) == ("digits", 5)
    assert len(problem.server) == len(whole.train) - len(even.train)
    assert set(problem.server.take(torch.arange(len(problem.server)))[1].tolist()) == {0, 1, 2, 3, 4}
    run = simulated(config, problem)
    run.go()
    assert any("signal_cosine" in line for line in run.history)


def test_the_command_line_names_the_unknown_class(tmp_path: Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text("data: {name: digits, classes: [1, ten]}\n")
    result = run_feddle("run", config, "--out", out)
    assert result.code == 2
    assert "data.classes: digits has no class 'ten'" in result.err
    assert not out.exists()
