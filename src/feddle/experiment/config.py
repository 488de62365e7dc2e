"""What a run is made of: frozen configs that refuse unknown keys."""

import difflib
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, model_validator


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value}")
    return value


# bounds are there to catch slips: an exponent too many ends in one line, not in an overflow hours later
Positive = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=1e100)]
NonNegative = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1e6)]
Share = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000_000, strict=True)]
Staleness = Annotated[Literal["sqrt", "constant"], Field(description="s(τ): `sqrt` is 1/√(1+τ), `constant` is 1")]


class Strict(BaseModel):
    """Frozen, and an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    if owners := _methods_with(str(key), cls):
                        raise ValueError(f"{str(key)!r} is an option of {', '.join(owners)}, not of {cls.named()}")
                    near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(cls.model_fields)}"
                    raise ValueError(f"unknown key {str(key)!r}; {hint}")
        return data

    @classmethod
    def named(cls) -> str:
        """The name that this choice goes by, if it is one."""
        field = cls.model_fields.get("name")
        return str(field.default) if field else ""


def choice(default: str) -> BeforeValidator:
    """One of several parts, told apart by `name`.

    A bare name stands for that part with its defaults (`method: fedbuff`); options without a name are `default`'s.
    """

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        return {"name": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(named)


class Clients(Strict):
    """Who takes part."""

    count: Count = Field(500, description="J, all clients")
    per_round: Count = Field(10, description="N, the clients sampled each round")

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


AnyPartition = Dirichlet | Even
Partition = Annotated[AnyPartition, Discriminator("name"), choice("dirichlet")]


class ServerData(Strict):
    """What the server holds."""

    name: str | None = Field(
        None, description="another data set (out-of-domain: its training images); by default the clients' own"
    )
    samples: int = Field(
        1000, ge=0, strict=True, description="its images; in-domain, from the test set, and the rest measures accuracy"
    )


class Data(Strict):
    """The clients' data set and how it is spread."""

    name: str = Field("fashion-mnist", description="see `feddle data list`")
    folder: str | None = Field(None, description="where the official files are, if not to be fetched")
    image_size: int = Field(32, ge=8, strict=True, description="images are resized to this, bilinear")
    channels: Annotated[Literal[1, 3], BeforeValidator(_no_bool)] = Field(
        3, description="3: grey images are repeated, so that one model takes any set"
    )
    partition: Partition = Dirichlet()
    label_noise: Share = Field(0.0, description="share of the training labels replaced by another class")
    server: ServerData = ServerData()


class Cnn(Strict):
    """The paper's CNN: three convolutions, two linear layers."""

    name: Literal["cnn"] = "cnn"
    channels: Annotated[tuple[Count, ...], Field(min_length=1)] = Field((32, 64, 64), description="of the convolutions")
    hidden: Count = Field(512, description="width of the first linear layer")
    padding: bool = Field(True, description="whether convolutions keep the image's size")
    pools: int = Field(3, ge=0, strict=True, description="2×2 pooling follows this many of the convolutions")


class Training(Strict):
    """What a client does with a job."""

    optimizer: Literal["adam", "sgd"] = Field("adam", description="`adam` or `sgd`, fresh for each job")
    lr: Positive = Field(1e-3, description="learning rate")
    epochs: Count = Field(5, description="passes over the client's data")
    batch_size: Count = 32
    weight_decay: NonNegative = 0.0


class Delays(Strict):
    """Half-normal delays, in rounds."""

    sigma: NonNegative = Field(5.0, description="σ of ⌊|Normal(0, σ)|⌋; 0: every update is back in its own round")
    per: Literal["client", "job"] = Field(
        "client", description="`client`: slow clients stay slow; `job`: drawn anew each time"
    )


class Evaluation(Strict):
    """When accuracy is measured."""

    every: Count = Field(10, description="rounds between evaluations; the last round is always one")


Late = Annotated[
    Literal["discard", "average_models", "add_deltas"],
    Field(description="what becomes of late updates: `discard`, `average_models` or `add_deltas`"),
]


class FedAvg(Strict):
    """Average what is back in time, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"
    late: Late = "discard"


class FedBuff(Strict):
    """Collect a buffer of updates and add their mean, stale ones weighted down."""

    name: Literal["fedbuff"] = "fedbuff"
    buffer_size: Count = Field(10, description="B, the updates that make a step")
    lr: Positive = Field(1.0, description="η, the server's learning rate")
    staleness: Staleness = "sqrt"


class FedAsync(Strict):
    """Mix each client's whole model in as it arrives, late ones less."""

    name: Literal["fedasync"] = "fedasync"
    alpha: Annotated[float, Field(gt=0, le=1)] = Field(0.4, description="α of the mixing weight α(1+τ)^(−a)")
    exponent: NonNegative = Field(0.5, description="a of the mixing weight")


CacheLimit = Annotated[
    Positive, Field(description="MB that the clients' last updates may take; beyond it they go to a file")
]


class Ca2fl(Strict):
    """FedBuff with each update calibrated by the client's last one."""

    name: Literal["ca2fl"] = "ca2fl"
    buffer_size: Count = Field(10, description="B, the updates that make a step")
    lr: Positive = Field(1.0, description="η, the server's learning rate")
    cache_limit: CacheLimit = 2000.0


class Fadas(Strict):
    """AMSGrad at the server over buffered updates, with smaller steps for late buffers."""

    name: Literal["fadas"] = "fadas"
    buffer_size: Count = Field(10, description="B, the updates that make a step")
    lr: Positive = Field(1e-3, description="η, the server's learning rate")
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    epsilon: Positive = 1e-8
    delay_threshold: int = Field(
        10, ge=1, strict=True, description="beyond this staleness in the buffer, η is divided by it"
    )


class Center(Strict):
    """Train on the server's data alone; no client takes part."""

    name: Literal["center"] = "center"
    lr: Positive = Field(1e-3, description="learning rate")
    epochs: Count = Field(50, description="passes over the server's data in the whole run")
    batch_size: Count = 32


class FedFT(Strict):
    """Merge, then fine-tune on the server's data, every round."""

    name: Literal["fed+ft"] = "fed+ft"
    base: Annotated[FedAvg | FedBuff, Discriminator("name"), choice("fedavg")] = FedAvg()
    lr: Positive = Field(1e-4, description="learning rate of the fine-tuning")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


class Hfcl(Strict):
    """The server trains as one more client and is averaged in."""

    name: Literal["hfcl"] = "hfcl"
    late: Late = "discard"


class FedDF(Strict):
    """Average, then distil the clients' joint predictions on the server's data, without its labels."""

    name: Literal["feddf"] = "feddf"
    late: Late = "discard"
    lr: Positive = Field(1e-4, description="learning rate of the distillation")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32
    temperature: Positive = Field(1.0, description="of the teachers' and the student's softmax")
    average: Literal["logits", "losses"] = Field("logits", description="what is averaged over the teachers")
    patience: int = Field(0, ge=0, strict=True, description="stop after so many epochs without a lower loss; 0: never")


class Convex(Strict):
    """Search the convex hull of the current and the reported models on the server's data."""

    name: Literal["convex"] = "convex"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


class Median(Strict):
    """The coordinate-wise median of the arrivals, for clients that may be poisoned."""

    name: Literal["median"] = "median"
    lr: Positive = Field(1.0, description="η, the server's learning rate")


class FedBuffFallback(Strict):
    """FedBuff's step with the arrivals as its buffer."""

    name: Literal["fedbuff"] = "fedbuff"
    lr: Positive = Field(1.0, description="η")
    staleness: Staleness = "sqrt"


class FedAvgFallback(Strict):
    """The arrivals' mean, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"


class FedAsyncFallback(Strict):
    """Mixing one arrival after the other."""

    name: Literal["fedasync"] = "fedasync"
    alpha: Annotated[float, Field(gt=0, le=1)] = Field(0.4, description="α of the mixing weight α(1+τ)^(−a)")
    exponent: NonNegative = Field(0.5, description="a of the mixing weight")


class NoFallback(Strict):
    """Start from the current model."""

    name: Literal["none"] = "none"


class PaperSearch(Strict):
    """Adam over mini-batches of the server's data."""

    name: Literal["paper"] = "paper"
    lr: Positive = Field(1e-3, description="learning rate of the coefficients")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


AnyFallback = FedBuffFallback | FedAvgFallback | FedAsyncFallback | NoFallback
Fallback = Annotated[AnyFallback, Discriminator("name"), choice("fedbuff")]


class AnnealedSearch(Strict):
    """Adam over mini-batches with a learning rate that falls to zero over the search."""

    name: Literal["annealed"] = "annealed"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients at the start")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


class LbfgsSearch(Strict):
    """L-BFGS with a line search over all of the server's data at once."""

    name: Literal["lbfgs"] = "lbfgs"
    iterations: Count = Field(5, description="steps each round, of about one pass over the server's data each")


AnySearch = PaperSearch | AnnealedSearch | LbfgsSearch
Search = Annotated[AnySearch, Discriminator("name"), choice("paper")]


class Feddle(Strict):
    """Search the merging coefficients of an atlas of updates on the server's data."""

    name: Literal["feddle"] = "feddle"
    atlas_size: Count | None = Field(None, description="M, the anchors at most; by default 2 × clients.per_round")
    eviction: Literal["importance", "fifo"] = Field(
        "importance", description="which anchor a full atlas gives up: `importance` the smallest |ĉ|, `fifo` the oldest"
    )
    anchors: Literal["raw", "calibrated", "adaptive"] = Field(
        "raw", description="`raw` updates, `calibrated` as CA2FL does, or `adaptive` as FADAS does"
    )
    cache_limit: CacheLimit = 2000.0
    normalise: bool = Field(True, description="scale the anchors to their median norm")
    fallback: Fallback = FedBuffFallback()
    regularisation: NonNegative = Field(0.0, description="λ, which holds the search near the fallback")
    search: Search = PaperSearch()


AnyMethod = Feddle | FedBuff | FedAvg | FedAsync | Ca2fl | Fadas | Center | FedFT | Hfcl | FedDF | Convex | Median


def _methods_with(key: str, asking: type[Strict]) -> list[str]:
    """The other methods that have an option of this name, if a method is asking."""
    members = get_args(AnyMethod)
    return [m.named() for m in members if key in m.model_fields] if asking in members else []


Method = Annotated[AnyMethod, Discriminator("name"), choice("feddle")]


class Plan(Strict):
    """Everything about a run but its model and data."""

    seed: int = Field(0, ge=0, strict=True, description="sets initial weights, sampling, delays and partition")
    rounds: Count = Field(200, description="K")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="`auto`, `cpu`, `cuda` or `mps`")
    workers: int | None = Field(
        None,
        ge=0,
        le=1024,
        strict=True,
        description="processes that train ahead, by default one a core; 0: none but this one",
    )
    clients: Clients = Clients()
    training: Training = Training()
    delays: Delays = Delays()
    evaluation: Evaluation = Evaluation()
    method: Method = Feddle()


class Config(Plan):
    """A run, whole: the content of a config file."""

    data: Data = Data()
    model: Annotated[Cnn, choice("cnn")] = Cnn()
