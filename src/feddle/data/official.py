"""Data sets whose official files the user supplies, since they may not be redistributed or are too large to fetch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection
from feddle.data.fetch.hashes import place_hash
from feddle.data.places import cache_folder, expanded
from feddle.data.readers.cifar import read_cifar100
from feddle.data.readers.files import Unusable
from feddle.data.readers.folder import read_imagenet
from feddle.data.readers.isic import read_isic
from feddle.data.readers.leaf import read_celeba, read_femnist


@final
@dataclass(frozen=True)
class OfficialData:
    """A `Source` of official files in a folder, by default the one of its name in the cache folder."""

    name: str
    title: str
    counts: tuple[str, str, str, str]  # image, training images, test images and classes, in words
    get: str  # which files to download, and from where
    put: str  # what to put into the folder
    reader: Callable[[Path], Collection]
    folder: Path | None = None

    @property
    def place(self) -> Path:
        """See `Source`."""
        if self.folder is None:
            return cache_folder() / self.name
        folder = expanded(self.folder)
        return folder / self.name if (folder / self.name).is_dir() else folder

    def is_here(self) -> bool:
        """Whether the folder exists."""
        return self.place.is_dir()

    @property
    def facts(self) -> tuple[str, ...]:
        """The columns of `feddle data list` as text: image shape, training images, test images, classes, download."""
        return *self.counts, "your own files"

    def missing(self) -> str | None:
        """See `Source`."""
        if self.is_here():
            return None
        return f"the data set {self.name} is not here: it cannot be fetched, and there is no folder {self.place}"

    def fetch(self, *, quiet: bool = False) -> None:
        """Do nothing: the files cannot be downloaded."""

    def digest(self) -> str:
        """See `Source`."""
        return place_hash(self.place)

    def read(self, *, quiet: bool = False) -> Collection:  # noqa: ARG002 - a Source's arguments
        """See `Source`."""
        try:
            if not self.is_here():
                raise Unusable("there is no such folder")
            return self.reader(self.place)
        except Unusable as reason:
            raise FeddleError(
                f"{self.name} cannot be downloaded, and {self.place} cannot be used ({reason}): get {self.get}; "
                f"put {self.put} there, or set data.folder to the folder that holds them"
            ) from reason


_LEAF = "https://github.com/TalwalkarLab/leaf"
OFFICIAL = (
    OfficialData(
        "cifar-100",
        "CIFAR-100: colour photos, 100 fine classes spread over the clients, 20 superclasses to learn",
        ("3×32×32", "50,000", "10,000", "20"),
        "cifar-100-binary.tar.gz (the binary version) from https://www.cs.toronto.edu/~kriz/cifar.html",
        "that archive",
        read_cifar100,
    ),
    OfficialData(
        "femnist",
        "FEMNIST: handwritten characters, one client per person; the first 40 classes",
        ("1×28×28", "all", "a share", "40"),
        f"LEAF from {_LEAF} and run `./preprocess.sh` in its data/femnist",
        "the folder all_data, or train and test, of its data/femnist/data",
        read_femnist,
    ),
    OfficialData(
        "celeba",
        "CelebA: faces, one client per person; smiling or not",
        ("3×218×178", "all", "a share", "2"),
        f"LEAF from {_LEAF}, the files that its data/celeba/README.md names, and run `./preprocess.sh` there",
        "the folders all_data (or train and test) and raw/img_align_celeba of its data/celeba/data",
        read_celeba,
    ),
    OfficialData(
        "isic-2019",
        "ISIC 2019: photos of skin lesions, eight diagnoses",
        ("3×any size", "25,331", "a share", "8"),
        "ISIC_2019_Training_Input.zip and ISIC_2019_Training_GroundTruth.csv from "
        "https://challenge.isic-archive.com/data/#2019",
        "the unpacked folder ISIC_2019_Training_Input and that CSV file",
        read_isic,
    ),
    OfficialData(
        "imagenet",
        "ImageNet: photos of a thousand kinds of things",
        ("3×any size", "1,281,167", "50,000", "1000"),
        "ILSVRC2012_img_train.tar from https://image-net.org/download-images and unpack it, each class in a folder",
        "train/WNID/*.JPEG (and val/WNID/*.JPEG; without it, a share of train is the test set)",
        read_imagenet,
    ),
)
