"""The options of data, and the `Source` that they name."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from feddle.data.collection import Collection
from feddle.data.datasets import named
from feddle.data.kinds import KINDS
from feddle.data.own import Own
from feddle.data.partition import Auto, PartitionOptions
from feddle.data.places import expanded
from feddle.data.readers.csv import Columns
from feddle.data.source import Source
from feddle.options import Count, Options, Share, no_bool


def _require_place(name: str | None, path: str | None, folder: str | None) -> None:
    """Your own data has a path; other data sets may have a folder."""
    if name in KINDS and path is None:
        raise ValueError(f"{name} is your own data; say where it is with path")
    if name in KINDS and folder is not None:
        raise ValueError(f"folder is for official files; for your own data ({name}) use path")
    if name not in KINDS and path is not None:
        raise ValueError(f"path is for your own data, with the name {', '.join(KINDS)}; for {name} use folder")


class ServerData(Options):
    """The server's data."""

    name: str | None = Field(
        None, description="another data set (out-of-domain: its training images); by default the clients' own"
    )
    path: str | None = Field(None, description="as `data.path`, where `name` is your own data")
    folder: str | None = Field(None, description="as `data.folder`, for the other data set")
    columns: Columns = Columns()
    samples: int | None = Field(
        None,
        ge=0,
        le=100_000_000,
        strict=True,
        description="its images, of another data set at most so many; in-domain they come from the test set, and the "
        "rest measures accuracy; by default 1000 or half of a smaller test set, or all training images of another data "
        "set",
    )
    samples_per_round: Count = Field(
        2000, description="number of these that a round uses at most, drawn again each round"
    )
    label_noise: Share = Field(0.0, description="share of the server's labels replaced by another class")

    @model_validator(mode="after")
    def _placed(self) -> "ServerData":
        if self.name is None and (self.path or self.folder):
            raise ValueError("path and folder belong to another data set; say which one with name")
        _require_place(self.name, self.path, self.folder)
        return self


class Data(Options):
    """The clients' data set and how it is spread."""

    name: str = Field(
        "fashion-mnist",
        description="see `feddle data list`; for your own data `csv`, `images`, `npz`, `huggingface`",
    )
    path: str | None = Field(None, description="where your own data is: a file, or a folder of images")
    folder: str | None = Field(None, description="where the official files are, if not to be fetched")
    columns: Columns = Columns()
    test_share: Annotated[Share, Field(gt=0, lt=1)] = Field(
        0.2,
        description="share of the images held out, where the data names no test images; the server's come from these",
    )
    image_size: int = Field(32, ge=8, le=4096, strict=True, description="images are resized to this, bilinear")
    channels: Annotated[Literal[1, 3], BeforeValidator(no_bool)] = Field(
        3, description="3: grey images are repeated, so that one model takes any set"
    )
    partition: PartitionOptions = Auto()
    augmentation: Literal["none", "crop-flip"] = Field(
        "none",
        description="of clients' training images: `none`, or `crop-flip` (shifted by up to an eighth, mirrored or not)",
    )
    cache_mb: int = Field(
        1024,
        ge=0,
        le=1_000_000,
        strict=True,
        description="MiB of decoded or resized images to keep, for training, test and other server images each",
    )
    label_noise: Share = Field(0.0, description="share of the training labels replaced by another class")
    validation: int = Field(
        0,
        ge=0,
        le=100_000_000,
        strict=True,
        description="number of training images taken from the clients to measure accuracy on, instead of the test "
        "images; for choosing settings",
    )
    server: ServerData = ServerData()

    @property
    def outside(self) -> bool:
        """Whether the server's images come from another data set than the clients'."""
        server = self.server
        return server.name is not None and (server.name, server.path) != (self.name, self.path)

    @model_validator(mode="after")
    def _placed(self) -> "Data":
        _require_place(self.name, self.path, self.folder)
        return self


def source_of(data: Data | ServerData) -> Source[Collection]:
    """The data set that options name: your own, official files that you bring, or one that feddle fetches."""
    assert data.name is not None
    for kind in KINDS:
        if data.name == kind:
            assert data.path is not None
            return Own(kind, expanded(Path(data.path)), data.columns)
    return named(data.name, None if data.folder is None else Path(data.folder))
