"""The options of data, and the `Source` that they select."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, final

from pydantic import BeforeValidator, Field, model_validator

from feddle.core.errors import FeddleError
from feddle.core.importing import is_import_path
from feddle.data.collection import Collection, with_classes
from feddle.data.datasets import named
from feddle.data.imported import ImportedSource
from feddle.data.kinds import KINDS, Kind
from feddle.data.partition import Auto, PartitionOptions
from feddle.data.pictures import Files
from feddle.data.readers.csv import Columns, read_csv
from feddle.data.readers.folder import read_folder
from feddle.data.readers.hf import read_huggingface
from feddle.data.readers.npz import read_npz
from feddle.data.source import Source, expanded, files_hash, place_hash
from feddle.options import Count, CountOrZero, Options, Share, is_none, no_bool

Placed = TypeVar("Placed", "Data", "ServerData")


def _no_yes_or_no(value: Any) -> Any:
    """Refuse true and false, which YAML makes of yes and no."""
    if isinstance(value, bool):
        raise ValueError(f"expected the name or the number of a class, got {value}; put a name such as 'yes' in quotes")
    return value


Class = Annotated[str | Annotated[int, Field(ge=0, strict=True)], BeforeValidator(_no_yes_or_no)]
Classes = Annotated[tuple[Class, ...], Field(min_length=2)]


def _require_place(data: Placed) -> Placed:
    """Your own data has a path; other data sets may have a folder."""
    name, path, folder = data.name, data.path, data.folder
    if name is None and (path or folder):
        raise ValueError("path and folder need the name of their data set; also set name")
    if name is None and data.classes:
        raise ValueError(
            "classes need the name of their data set; also set name, to the clients' data set or another one"
        )
    if name in KINDS and (path is None or folder is not None):
        raise ValueError(f"{name} is your own data; set path to its location; folder is only for official files")
    if is_import_path(name) and folder is not None:
        raise ValueError(f"folder is for official files, but {name} is your own code; set path instead")
    if name not in KINDS and not is_import_path(name) and path is not None:
        raise ValueError(f"path is for your own data, with the name {', '.join(KINDS)}; for {name} use folder")
    return data


class ServerData(Options):
    """The server's data."""

    name: str | None = Field(
        None, description="another data set for the server (out-of-domain); by default the clients' data set"
    )
    path: str | None = Field(None, description="path of the server's data set, if it is your own data; see `data.path`")
    folder: str | None = Field(
        None, description="folder that holds the official files of the server's data set; see `data.folder`"
    )
    columns: Columns = Columns()
    classes: Classes | None = Field(
        None,
        exclude_if=is_none,
        description="names or numbers of the classes at the server, by default all. If `name` is the clients' data "
        "set, other classes than theirs are out-of-domain data, and the default is the clients' classes",
    )
    samples: CountOrZero | None = Field(
        None,
        description="number of images at the server. In-domain they are taken from the test images, and accuracy is "
        "measured on the rest; the default is 1000, or half of a smaller test set. From another data set this is an "
        "upper limit; the default is all of its training images",
    )
    samples_per_round: Count = Field(
        2000,
        description="largest number of the server's images that a round uses, drawn again in each round; `center`, "
        "`fed+ft` and `hfcl` use all of the server's images in every round",
    )
    label_noise: Share = Field(0.0, description="share of the server's labels that are replaced by another class")

    _placed = model_validator(mode="after")(_require_place)


class Data(Options):
    """The clients' data set, and how it is spread over the clients."""

    name: str = Field(
        "fashion-mnist",
        description="name of the data set (see `feddle data list`), for your own data `csv`, `images`, `npz` or "
        "`huggingface`, or the import path `module:Name` of a function that returns the arrays of an .npz file",
    )
    path: str | None = Field(None, description="path of your own data: a file, or a folder of images")
    folder: str | None = Field(None, description="folder that holds the official files; by default they are downloaded")
    columns: Columns = Columns()
    classes: Classes | None = Field(
        None,
        exclude_if=is_none,
        description="names or numbers of the classes to use, by default all; labels are numbered in the given order",
    )
    test_share: Annotated[Share, Field(gt=0, lt=1)] = Field(
        0.2, description="share of the images that become test images, if the data does not say which ones are"
    )
    image_size: int = Field(
        32, ge=8, le=4096, strict=True, description="height and width to which images are resized (bilinear)"
    )
    channels: Annotated[Literal[1, 3], BeforeValidator(no_bool)] = Field(
        3, description="number of channels; with 3, a grey image is repeated in each channel"
    )
    partition: PartitionOptions = Auto()
    augmentation: Literal["none", "crop-flip"] = Field(
        "none",
        description="random changes of the clients' training images: `none`, or `crop-flip` (shift by up to an eighth "
        "of the size, and mirror half of the images)",
    )
    cache_mb: Annotated[CountOrZero, Field(le=1_000_000)] = Field(
        1024,
        description="memory in MiB for decoded or resized images; training images, test images and the server's "
        "images from another data set each have this much",
    )
    label_noise: Share = Field(0.0, description="share of the training labels that are replaced by another class")
    validation: CountOrZero = Field(
        0,
        description="number of training images that are taken from the clients to measure accuracy on, instead of the "
        "test images; for choosing settings",
    )
    server: ServerData = ServerData()

    @property
    def outside(self) -> bool:
        """Whether the server's images come from another data set than the clients', or from other classes of it."""
        server = self.server
        other = (server.name, server.path) != (self.name, self.path) or server.classes not in (None, self.classes)
        return server.name is not None and other

    _placed = model_validator(mode="after")(_require_place)


@final
@dataclass(frozen=True)
class Own:
    """A `Source` of your own data; image files stay on disk until they are used."""

    name: Kind
    place: Path
    columns: Columns

    def missing(self) -> str | None:
        folder = self.name in ("images", "huggingface")
        if self.place.is_dir() if folder else self.place.is_file():  # opening a named pipe would block
            return None
        expected = f"data.name is {self.name}, but there is no {'folder' if folder else 'regular file'} {self.place}"
        return f"{expected} to read the data from; correct data.path, or set data.name to one of {', '.join(KINDS)}"

    def fetch(self, *, quiet: bool = False) -> None:
        """Do nothing: the data cannot be downloaded."""

    def digest(self) -> str:
        """See `Source`; the digest of a table includes the images that it names."""
        return _table_hash(self.place, self.columns) if self.name == "csv" else place_hash(self.place)

    def read(self, *, quiet: bool = False) -> Collection:  # noqa: ARG002 - a Source's arguments
        if reason := self.missing():
            raise FeddleError(reason)
        match self.name:
            case "csv":
                return read_csv(self.place, self.columns)
            case "images":
                return read_folder(self.place)
            case "npz":
                return read_npz(self.place)
            case "huggingface":
                return read_huggingface(self.place, self.columns)


@cache
def _table_hash(path: Path, columns: Columns) -> str:
    """SHA-256 of a table and of the images that it names."""
    read = read_csv(path, columns)
    parts = [part.images for part in (read.train, read.test, read.server) if part is not None]
    named = {files.path(i) for files in parts if isinstance(files, Files) for i in range(len(files))}
    return files_hash(path.resolve().parent, [path.resolve(), *sorted(named)])


def read_data(data: Data | ServerData, *, quiet: bool = False) -> Collection:
    """The data set that options name, with the classes that they choose."""
    collection = source_of(data).read(quiet=quiet)
    option = "data.classes" if isinstance(data, Data) else "data.server.classes"
    return collection if data.classes is None else with_classes(collection, data.classes, option)


def source_of(data: Data | ServerData) -> Source[Collection]:
    """The data set that options name: your own, official files, or one that feddle downloads."""
    assert data.name is not None
    for kind in KINDS:
        if data.name == kind:
            assert data.path is not None
            return Own(kind, expanded(Path(data.path)), data.columns)
    if is_import_path(data.name):
        return ImportedSource(data.name, data.path)
    return named(data.name, None if data.folder is None else Path(data.folder))
