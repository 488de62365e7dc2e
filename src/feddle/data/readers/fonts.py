"""Letters drawn from font files; each font is a client."""

from importlib.resources import files
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import torch
from torch import Tensor

from feddle.data.source import Unusable, contents_hash

FONTS = tuple(files(__package__).joinpath("fonts.txt").read_text(encoding="utf-8").split())  # NAME@VERSION
LETTERS = tuple(ascii_lowercase)
_SIDE, _LETTER = 28, 22  # pixels of an image, and of the longer side of a letter
_DRAWN = 64  # the font size at which a letter is drawn before it is made smaller
_TEST = 5  # every fifth image of a font is for the test


def decode_fonts(folder: Path) -> dict[str, Tensor]:
    """Small and capital letters in each style of each font; the label is the letter."""
    rows: dict[str, list[tuple[Tensor, int, int]]] = {"train": [], "test": []}
    for owner, font in enumerate(_names()):
        drawn = [
            (_draw(path, shown), label, owner)
            for path in _font_files(folder, font)
            for label, letter in enumerate(LETTERS)
            for shown in (letter, letter.upper())
        ]
        for i, row in enumerate(drawn):
            rows["train" if (i + owner) % _TEST else "test"].append(row)
    tensors: dict[str, Tensor] = {}
    for part, held in rows.items():
        images, labels, owners = zip(*held, strict=True)
        tensors |= {f"{part}_images": torch.stack(images), f"{part}_labels": torch.tensor(labels)}
        tensors[f"{part}_owners"] = torch.tensor(owners)
    return tensors


def fonts_hash(folder: Path) -> str:
    """SHA-256 over name, length and bytes of the font files: versions of FreeType may draw a little differently."""
    paths = (path for font in _names() for path in _font_files(folder, font))
    return contents_hash((path.name, path.read_bytes()) for path in paths)


def _names() -> list[str]:
    return [font.partition("@")[0] for font in FONTS]


def _font_files(folder: Path, font: str) -> list[Path]:
    """The files of a font's Latin letters, one per style, in the order of their names."""
    found = sorted((folder / font).rglob(f"{font}-latin-[0-9]*.woff"), key=lambda path: path.name)
    if not found:
        raise Unusable(f"it holds no folder {font} with the font files of @fontsource/{font}")
    return found


def _draw(path: Path, letter: str) -> Tensor:
    """A white letter on black as bytes (1, 28, 28), made as large as fits and centred."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(path), _DRAWN, layout_engine=ImageFont.Layout.BASIC)
    canvas = Image.new("L", (4 * _DRAWN, 4 * _DRAWN))
    ImageDraw.Draw(canvas).text((_DRAWN, _DRAWN), letter, fill=255, font=font)
    box = canvas.getbbox()
    if box is None:
        raise Unusable(f"{path.name} draws nothing for the letter {letter}")
    glyph = canvas.crop(box)
    scale = _LETTER / max(glyph.size)
    glyph = glyph.resize([max(1, round(scale * side)) for side in glyph.size], Image.Resampling.BILINEAR)
    image = Image.new("L", (_SIDE, _SIDE))
    image.paste(glyph, ((_SIDE - glyph.width) // 2, (_SIDE - glyph.height) // 2))
    return torch.from_numpy(np.array(image))[None]
