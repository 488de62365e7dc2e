"""What a run is made of: the content of a config file."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from feddle.clients.attacks import Attack, NoAttack
from feddle.clients.private import Privacy
from feddle.data.kinds import KINDS
from feddle.methods.feddle.method import FeddleOptions
from feddle.methods.options import Method
from feddle.models.options import Cnn, Model
from feddle.options import Count, Positive, Share, Strict, choice, no_bool
from feddle.run.diagnostics import DiagnosticsOptions
from feddle.runtimes.simulation import Delays
from feddle.server import Checks
from feddle.training.train import Recipe


class Clients(Strict):
    """Who takes part."""

    count: Count = Field(
        500, description="number of clients (J); if the data names its clients, the largest number that takes part"
    )
    per_round: Count = Field(10, description="number of clients sampled each round (N)")

    @model_validator(mode="after")
    def _enough(self) -> "Clients":
        if self.per_round > self.count:
            raise ValueError(f"per_round is {self.per_round}, but there are only {self.count} clients (count)")
        return self


class Dirichlet(Strict):
    """Each class is spread over the clients in Dirichlet(α) proportions."""

    name: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[Positive, Field(le=1e6)] = Field(0.1, description="α: 0.1 is very uneven, 100 nearly even")


class Even(Strict):
    """Every client has the same number of examples, drawn at random."""

    name: Literal["even"] = "even"


class Natural(Strict):
    """Every client has what is its own, by what the data says; `clients.count` are drawn if there are more."""

    name: Literal["natural"] = "natural"


class Auto(Strict):
    """`natural` where the data says which client an image belongs to, else `dirichlet` with its defaults."""

    name: Literal["auto"] = "auto"


AnyPartition = Auto | Dirichlet | Even | Natural
Partition = Annotated[AnyPartition, Discriminator("name"), choice("dirichlet")]


class Columns(Strict):
    """What the columns of a CSV file or a Hugging Face dataset are called; by default one of the usual names."""

    image: str | None = Field(None, description="the image, or its path; usually `path` or `image`")
    label: str | None = Field(None, description="the class; usually `label`")
    client: str | None = Field(None, description="whose it is; usually `client`; it may be missing")
    split: str | None = Field(None, description="`train`, `test` or `server`; usually `split`; it may be missing")


def require_place(name: str | None, path: str | None, folder: str | None) -> None:
    """Data of your own has a path, any other may have a folder."""
    if name in KINDS and path is None:
        raise ValueError(f"{name} is data of your own; say where it is with path")
    if name in KINDS and folder is not None:
        raise ValueError(f"folder is for official files; where your own data ({name}) is, path says")
    if name not in KINDS and path is not None:
        raise ValueError(f"path is for data of your own, with the name {', '.join(KINDS)}; for {name} use folder")


class ServerData(Strict):
    """What the server holds."""

    name: str | None = Field(
        None, description="another data set (out-of-domain: its training images); by default the clients' own"
    )
    path: str | None = Field(None, description="as `data.path`, where `name` is data of your own")
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
    samples_per_round: Count = Field(2000, description="of these, how many a round uses at most, drawn anew each time")
    label_noise: Share = Field(0.0, description="share of the server's labels replaced by another class")

    @model_validator(mode="after")
    def _placed(self) -> "ServerData":
        if self.name is None and (self.path or self.folder):
            raise ValueError("path and folder belong to another data set; say which one with name")
        require_place(self.name, self.path, self.folder)
        return self


class Data(Strict):
    """The clients' data set and how it is spread."""

    name: str = Field(
        "fashion-mnist",
        description="see `feddle data list`; for data of your own `csv`, `images`, `npz`, `huggingface`",
    )
    path: str | None = Field(None, description="where data of your own is: a file, or a folder of images")
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
    partition: Partition = Auto()
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

    @model_validator(mode="after")
    def _placed(self) -> "Data":
        require_place(self.name, self.path, self.folder)
        return self


class Evaluation(Strict):
    """When accuracy is measured."""

    every: Count = Field(10, description="rounds between evaluations; the last round is always one")


class Plan(Strict):
    """Everything about a run except its model, its data, and where its clients are."""

    seed: int = Field(
        0, ge=0, lt=2**63, strict=True, description="determines initial weights, sampling, delays and partition"
    )
    rounds: Count = Field(200, description="number of rounds (K)")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="`auto`, `cpu`, `cuda` or `mps`")
    clients: Clients = Clients()
    training: Recipe = Recipe()
    evaluation: Evaluation = Evaluation()
    checks: Checks = Checks()
    method: Method = FeddleOptions()


class SimulationPlan(Plan):
    """A plan whose clients are simulated."""

    workers: int | None = Field(
        None,
        ge=0,
        le=1024,
        strict=True,
        description="number of processes that train ahead, by default one per core; 0: train in the main process",
    )
    delays: Delays = Delays()
    diagnostics: DiagnosticsOptions | None = Field(None, description="extra measurements; off by default, `{}`: on")
    attack: Attack = NoAttack()
    privacy: Privacy | None = None


class Checkpoints(Strict):
    """What a stopped run continues from (`feddle resume`)."""

    every: int | None = Field(
        None,
        ge=0,
        le=100_000_000,
        strict=True,
        description="rounds between checkpoints; by default one a minute, fewer if they take long; 0: none",
    )


class Config(SimulationPlan):
    """A whole run: the content of a config file."""

    data: Data = Data()
    model: Model = Cnn()
    checkpoint: Checkpoints = Checkpoints()
