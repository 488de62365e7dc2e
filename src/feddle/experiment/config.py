"""What a run is made of: frozen configs that refuse unknown keys."""

import difflib
from typing import Annotated, Any, Literal

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
                    near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(cls.model_fields)}"
                    raise ValueError(f"unknown key {str(key)!r}; {hint}")
        return data


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

    samples: int = Field(
        1000, ge=0, strict=True, description="images taken from the test set; the rest measures accuracy"
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


class FedAvg(Strict):
    """Average what is back in time, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"
    late: Literal["discard", "average_models", "add_deltas"] = Field(
        "discard", description="what becomes of late updates: `discard`, `average_models` or `add_deltas`"
    )


class FedBuff(Strict):
    """Collect a buffer of updates and add their mean, stale ones weighted down."""

    name: Literal["fedbuff"] = "fedbuff"
    buffer_size: Count = Field(10, description="B, the updates that make a step")
    lr: Positive = Field(1.0, description="η, the server's learning rate")
    staleness: Staleness = "sqrt"


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
    normalise: bool = Field(True, description="scale the anchors to their median norm")
    fallback: Fallback = FedBuffFallback()
    regularisation: NonNegative = Field(0.0, description="λ, which holds the search near the fallback")
    search: Search = PaperSearch()


AnyMethod = Feddle | FedBuff | FedAvg
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
