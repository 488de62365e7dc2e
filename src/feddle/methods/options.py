"""The options of every method."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from feddle.options import Count, NonNegative, Positive, Strict, choice, no_bool

Staleness = Annotated[Literal["sqrt", "constant"], Field(description="s(τ): `sqrt` is 1/√(1+τ), `constant` is 1")]


Decay = Annotated[float, BeforeValidator(no_bool), Field(ge=0, lt=1)]
Mixing = Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1)]


class MethodConfig(Strict):
    """A method: an option that only another one has is refused by its name."""


Late = Annotated[
    Literal["discard", "average_models", "add_deltas"],
    Field(description="what becomes of late updates: `discard`, `average_models` or `add_deltas`"),
]


class FedAvg(MethodConfig):
    """Average what is back in time, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"
    late: Late = "discard"


class FedBuff(MethodConfig):
    """Collect a buffer of updates and add their mean, stale ones weighted down."""

    name: Literal["fedbuff"] = "fedbuff"
    buffer_size: Count = Field(10, description="B, the updates that make a step")
    lr: Positive = Field(1.0, description="η, the server's learning rate")
    staleness: Staleness = "sqrt"


class FedAsync(MethodConfig):
    """Mix each client's whole model in as it arrives, late ones less."""

    name: Literal["fedasync"] = "fedasync"
    alpha: Mixing = Field(0.4, description="α of the mixing weight α(1+τ)^(−a)")
    exponent: NonNegative = Field(0.5, description="a of the mixing weight")


CacheLimit = Annotated[
    Positive, Field(description="MB that the clients' last updates may take; beyond it they go to a file")
]


class Ca2fl(MethodConfig):
    """FedBuff with each update calibrated by the client's last one."""

    name: Literal["ca2fl"] = "ca2fl"
    buffer_size: Count = Field(10, description="B, the updates that make a step")
    lr: Positive = Field(1.0, description="η, the server's learning rate")
    cache_limit: CacheLimit = 2000.0


class Fadas(MethodConfig):
    """AMSGrad at the server over buffered updates, with smaller steps for late buffers."""

    name: Literal["fadas"] = "fadas"
    buffer_size: Count = Field(10, description="B, the updates that make a step")
    lr: Positive = Field(1e-3, description="η, the server's learning rate")
    beta1: Decay = Field(0.9, description="of the first moment")
    beta2: Decay = Field(0.99, description="of the second moment")
    epsilon: Positive = 1e-8
    delay_threshold: Count = Field(10, description="beyond this staleness in the buffer, η is divided by it")


class Center(MethodConfig):
    """Train on the server's data alone; no client takes part."""

    name: Literal["center"] = "center"
    lr: Positive = Field(1e-3, description="learning rate")
    epochs: Count = Field(50, description="passes over the server's data in the whole run")
    batch_size: Count = 32


class FedFT(MethodConfig):
    """Merge, then fine-tune on the server's data, every round."""

    name: Literal["fed+ft"] = "fed+ft"
    base: Annotated[FedAvg | FedBuff, Discriminator("name"), choice("fedavg")] = FedAvg()
    lr: Positive = Field(1e-4, description="learning rate of the fine-tuning")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


class Hfcl(MethodConfig):
    """The server trains as one more client and is averaged in."""

    name: Literal["hfcl"] = "hfcl"
    late: Late = "discard"


class FedDF(MethodConfig):
    """Average, then distil the clients' joint predictions on the server's data, without its labels."""

    name: Literal["feddf"] = "feddf"
    late: Late = "discard"
    lr: Positive = Field(1e-4, description="learning rate of the distillation")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32
    temperature: Positive = Field(1.0, description="of the teachers' and the student's softmax")
    average: Literal["logits", "losses"] = Field("logits", description="what is averaged over the teachers")
    patience: int = Field(
        0, ge=0, le=100_000_000, strict=True, description="stop after so many epochs without a lower loss; 0: never"
    )


class Convex(MethodConfig):
    """Search the convex hull of the current and the reported models on the server's data."""

    name: Literal["convex"] = "convex"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


class Median(MethodConfig):
    """The coordinate-wise median of the arrivals, for clients that may be poisoned."""

    name: Literal["median"] = "median"
    lr: Positive = Field(1.0, description="η, the server's learning rate")


class FedBuffFallback(Strict):
    """FedBuff's step with the arrivals as its buffer."""

    name: Literal["fedbuff"] = "fedbuff"
    lr: Positive = Field(1.0, description="η")
    staleness: Staleness = "sqrt"
    buffer_size: Count = Field(
        1, description="with fewer arrivals than this the step is shorter, as if the others had sent nothing"
    )


class FedAvgFallback(Strict):
    """The arrivals' mean, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"


class FedAsyncFallback(Strict):
    """Mixing one arrival after the other."""

    name: Literal["fedasync"] = "fedasync"
    alpha: Mixing = Field(0.4, description="α of the mixing weight α(1+τ)^(−a)")
    exponent: NonNegative = Field(0.5, description="a of the mixing weight")


class AdaptiveFallback(Strict):
    """FedAvg's step in rounds whose arrivals are fresh, FedBuff's in others."""

    name: Literal["adaptive"] = "adaptive"
    threshold: NonNegative = Field(1.0, description="the mean staleness of a round's arrivals up to which it is FedAvg")


class NoFallback(Strict):
    """Start from the current model."""

    name: Literal["none"] = "none"


class PaperSearch(Strict):
    """Adam over mini-batches of the server's data."""

    name: Literal["paper"] = "paper"
    lr: Positive = Field(1e-3, description="learning rate of the coefficients")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


AnyFallback = FedBuffFallback | FedAvgFallback | FedAsyncFallback | AdaptiveFallback | NoFallback
Fallback = Annotated[AnyFallback, Discriminator("name"), choice("fedbuff")]


class AnnealedSearch(Strict):
    """Adam over mini-batches with a learning rate that falls to zero over the search."""

    name: Literal["annealed"] = "annealed"
    lr: Positive = Field(1e-2, description="learning rate of the coefficients at the start")
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


class SgdSearch(Strict):
    """SGD with the step sizes of the paper's theory; L is estimated from differences of gradients."""

    name: Literal["sgd"] = "sgd"
    step: Literal["lemma-1", "theorem-2"] | None = Field(
        None,
        description="`lemma-1` is 1/(L Σ‖ā‖²), `theorem-2` is min(1/(2LT‖Δ‖²), 1/(2LT‖Δ‖)) with T steps; by default "
        "the first in-domain, the second out of it",
    )
    epochs: Count = Field(1, description="passes over the server's data each round")
    batch_size: Count = 32


class LbfgsSearch(Strict):
    """L-BFGS with a line search over all of the server's data at once."""

    name: Literal["lbfgs"] = "lbfgs"
    iterations: Count = Field(5, description="steps each round, of about one pass over the server's data each")


AnySearch = PaperSearch | AnnealedSearch | LbfgsSearch | SgdSearch
Search = Annotated[AnySearch, Discriminator("name"), choice("paper")]


class RawAnchors(Strict):
    """The updates as they are."""

    name: Literal["raw"] = "raw"


class CalibratedAnchors(Strict):
    """Updates calibrated by the clients' last ones, as CA2FL does."""

    name: Literal["calibrated"] = "calibrated"
    cache_limit: CacheLimit = 2000.0


class AdaptiveAnchors(Strict):
    """Updates preconditioned by AMSGrad's moments, as FADAS does."""

    name: Literal["adaptive"] = "adaptive"
    beta2: Decay = Field(0.99, description="of the second moment")
    epsilon: Positive = 1e-8


AnyAnchors = RawAnchors | CalibratedAnchors | AdaptiveAnchors
Anchors = Annotated[AnyAnchors, Discriminator("name"), choice("raw")]


class FloatStorage(Strict):
    """Four bytes a number, nothing lost."""

    name: Literal["float32"] = "float32"


class Int8Storage(Strict):
    """One byte a number and a scale a row."""

    name: Literal["int8"] = "int8"


class SparseStorage(Strict):
    """The largest numbers of each anchor with their places, eight bytes each."""

    name: Literal["sparse"] = "sparse"
    density: float = Field(0.1, gt=0, le=1, strict=True, description="the share of an anchor's numbers that is kept")


AnyStorage = FloatStorage | Int8Storage | SparseStorage
Storage = Annotated[AnyStorage, Discriminator("name"), choice("float32")]


Objective = Annotated[
    Literal["task", "surrogate", "rotation", "clusters", "entropy"],
    Field(
        description="what the server's data asks of the model: `task` the clients' own loss; through a fresh linear "
        "head `surrogate` the labels of the server's data, `rotation` quarter turns, `clusters` of the model's own "
        "representations; `entropy` sure predictions. The last three need no labels. By default `task` on in-domain "
        "data, `surrogate` on another set"
    ),
]


class Feddle(MethodConfig):
    """Search the merging coefficients of an atlas of updates on the server's data."""

    name: Literal["feddle"] = "feddle"
    atlas_size: Count | None = Field(None, description="M, the anchors at most; by default 2 × clients.per_round")
    eviction: Literal["importance", "fifo"] = Field(
        "importance", description="which anchor a full atlas gives up: `importance` the smallest |ĉ|, `fifo` the oldest"
    )
    anchors: Anchors = RawAnchors()
    storage: Storage = FloatStorage()
    normalise: bool = Field(True, description="scale the anchors to their median norm")
    fallback: Fallback = FedBuffFallback()
    objective: Objective | None = None
    regularisation: NonNegative | None = Field(
        None, description="λ, which holds the search near the fallback; by default 0 in-domain, 0.01 out of it"
    )
    search: Search = PaperSearch()


AnyMethod = Feddle | FedBuff | FedAvg | FedAsync | Ca2fl | Fadas | Center | FedFT | Hfcl | FedDF | Convex | Median


Method = Annotated[AnyMethod, Discriminator("name"), choice("feddle")]
