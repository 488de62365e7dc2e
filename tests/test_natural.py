"""Data sets with natural clients: letters by font, and speeches by president."""

import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import features
from rich.console import Console

from feddle.core.errors import FeddleError
from feddle.data import datasets
from feddle.data.collection import Texts
from feddle.data.fetch import origins
from feddle.data.fetch.fetching import tensors_hash
from feddle.data.fetch.origins import Packages
from feddle.data.readers import fonts, speeches
from feddle.data.source import Unusable

QUIET = Console(quiet=True)


def speech(folder: Path, year: int, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{year}_{name}.json").write_text(json.dumps({"year": year, "name": name, "party": "none", "text": text}))


def sentences(count: int, word: str) -> str:
    return " ".join(f"Sentence {i} about {word} has exactly eight words." for i in range(count))


def test_a_president_is_a_client_and_the_half_century_the_label(tmp_path: Path) -> None:
    # Ada spoke in 1840 and 1851, Bob in 2021. Every fifth sentence of a president is for the test: 0 and 5 of Ada's
    # six, 0 of Bob's three. A heading of two words is left out.
    speech(tmp_path, 1840, "Ada", sentences(3, "peace") + " Foreign Affairs.")
    speech(tmp_path, 1851, "Ada", sentences(3, "trade"))
    speech(tmp_path, 2021, "Bob", sentences(3, "health"))
    found = speeches.decode_speeches(tmp_path)
    assert found["train_labels"].tolist() == [0, 0, 1, 1, 3, 3]
    assert found["train_owners"].tolist() == [0, 0, 0, 0, 1, 1]
    assert found["test_labels"].tolist() == [0, 1, 3]
    lines = found["test_texts"].numpy().tobytes().decode().split("\n")
    assert lines[0] == "Sentence 0 about peace has exactly eight words."
    assert len(lines) == 3


def test_a_president_has_at_most_400_sentences_spread_over_the_speeches(tmp_path: Path) -> None:
    speech(tmp_path, 1900, "Ada", sentences(800, "peace"))
    speech(tmp_path, 1901, "Bob", sentences(10, "trade"))
    found = speeches.decode_speeches(tmp_path)
    assert found["train_owners"].bincount().tolist() == [320, 8]
    assert found["test_texts"].numpy().tobytes().decode().split("\n")[79].startswith("Sentence 790 ")


@pytest.mark.parametrize("content", ["{}", "[]", '{"name": "Ada", "year": "soon", "text": ""}'])
def test_a_broken_speech_is_unusable(tmp_path: Path, content: str) -> None:
    with pytest.raises(Unusable, match="no speeches"):
        speeches.decode_speeches(tmp_path)
    (tmp_path / "1790_ada.json").write_text(content)
    with pytest.raises(Unusable, match=r"1790_ada\.json should hold the name, year and text"):
        speeches.decode_speeches(tmp_path)


def test_text_is_read_from_the_cache_with_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speech(tmp_path / "files", 1840, "Ada", sentences(6, "café"))
    speech(tmp_path / "files", 1951, "Bob", sentences(6, "trade"))
    source = datasets.named("speeches", tmp_path / "files")
    assert isinstance(source, datasets.FetchedData)
    sha256 = tensors_hash(source.ordered(speeches.decode_speeches(tmp_path / "files")))
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "cache"))
    source = replace(source, sha256=sha256)
    for _ in range(2):  # fetched, then cached
        found = source.read(quiet=True)
        assert isinstance(found.train.images, Texts)
        assert found.train.images.texts[0] == "Sentence 1 about café has exactly eight words."
        assert found.train.owners is not None
        assert found.train.owners.tolist() == [0] * 4 + [1] * 4
        shutil.rmtree(tmp_path / "files", ignore_errors=True)
        (tmp_path / "files").mkdir()


def test_a_letter_is_drawn_large_and_in_the_middle(tmp_path: Path) -> None:
    from PIL import ImageFont

    if not features.check("freetype2"):
        pytest.skip("needs Pillow with FreeType; to enable: pip install pillow")
    built_in = ImageFont.load_default(20)  # Pillow's own font, as bytes
    assert isinstance(built_in, ImageFont.FreeTypeFont)
    file = tmp_path / "own.ttf"
    file.write_bytes(built_in.font_bytes)
    for letter in "iMx":
        image = fonts._draw(file, letter)
        assert (image.dtype, image.shape) == (torch.uint8, (1, 28, 28))
        rows, columns = (image[0].amax(side).nonzero().flatten() for side in (1, 0))
        assert max(len(rows), len(columns)) in (21, 22)  # the first and last row may be nearly black
        assert all(abs(int(side.min()) - (27 - int(side.max()))) <= 1 for side in (rows, columns))
    with pytest.raises(Unusable, match="draws nothing"):
        fonts._draw(file, " ")


def test_each_font_is_pinned_once_and_its_files_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [font.partition("@") for font in fonts.FONTS]
    assert len({name for name, _, _ in names}) == len(names) == 253
    assert all(version.count(".") == 2 for _, _, version in names)
    monkeypatch.setattr(fonts, "FONTS", ("ada@1.0.0", "bob@1.0.0"))
    with pytest.raises(Unusable, match="no folder ada with the font files of @fontsource/ada"):
        fonts.fonts_hash(tmp_path)
    for name in ("ada", "bob"):
        (tmp_path / name / "files").mkdir(parents=True)
        for style in ("latin-400-normal", "latin-ext-400-normal", "latin-400-italic"):
            (tmp_path / name / "files" / f"{name}-{style}.woff").write_text(style)
    before = fonts.fonts_hash(tmp_path)
    (tmp_path / "bob" / "files" / "bob-latin-ext-400-normal.woff").write_text("not used")
    assert fonts.fonts_hash(tmp_path) == before
    (tmp_path / "bob" / "files" / "bob-latin-400-italic.woff").write_text("used")
    assert fonts.fonts_hash(tmp_path) != before


def test_many_packages_are_collected_in_one_folder_and_one_failure_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []

    def npm(command: list[str], folder: Path) -> None:
        packages = [word for word in command if word.startswith("@")]
        requested.extend(packages)
        if "@scope/bad@1.0.0" in packages:
            raise Unusable("npm: 404 Not Found")
        for package in packages:
            scope, title, version = package[1:].replace("@", "/").split("/")
            with tarfile.open(folder / f"{scope}-{title}-{version}.tgz", "w:gz") as archive:
                archive.addfile(tarfile.TarInfo(f"package/{title}.woff"))

    monkeypatch.setattr(origins, "run", npm)
    (tmp_path / "good").mkdir()
    many = tuple(f"@scope/f{i}@1.0.{i}" for i in range(40))
    found = Packages(many, 1).collect("letters", tmp_path / "good", QUIET)
    assert all((found / f"f{i}" / "package" / f"f{i}.woff").is_file() for i in range(40))
    assert sorted(requested) == sorted(many)
    (tmp_path / "worse").mkdir()
    with pytest.raises(Unusable, match="404"):
        Packages(("@scope/bad@1.0.0", *many * 20), 1).collect("letters", tmp_path / "worse", QUIET)
    assert len(requested) < 40 + 1 + 800  # the others were not all downloaded


def test_a_folder_without_the_fonts_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDLE_DATA", str(tmp_path / "cache"))
    source = datasets.named("letters-by-font", tmp_path)
    assert isinstance(source, datasets.FetchedData)
    source = replace(source, origins=())
    with pytest.raises(FeddleError, match=r"no source of letters-by-font answered: the folder .*holds no folder"):
        source.read(quiet=True)
