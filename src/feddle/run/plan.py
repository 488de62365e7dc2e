"""What a run is made of: the content of a config file."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from feddle.clients.options import Attack, Checks, NoAttack, Privacy
from feddle.data.options import Data, source_of
from feddle.data.source import Source
from feddle.methods.options import Feddle, Method
from feddle.models import Model
from feddle.models.cnn import CnnOptions
from feddle.options import Count, NonNegative, Positive, Strict


class Clients(Strict):
    """Who takes part."""

    count: Count = Field(500, description="J, all clients; at most so many where the data has clients of its own")
    per_round: Count = Field(10, description="N, the clients sampled each round")

    @model_validator(mode="after")
    def _enough(self) -> "Clients":
        if self.per_round > self.count:
            raise ValueError(f"per_round is {self.per_round}, but there are only {self.count} clients (count)")
        return self


class Training(Strict):
    """What a client does with a job."""

    optimizer: Literal["adam", "sgd"] = Field("adam", description="`adam` or `sgd`, fresh for each job")
    lr: Positive = Field(1e-3, description="learning rate")
    epochs: Count = Field(5, description="passes over the client's data")
    batch_size: Count = 32
    weight_decay: NonNegative = 0.0
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="`float32`, or `bfloat16` for the passes through the model (autocast); weights stay float32",
    )


class Delays(Strict):
    """Half-normal delays, in rounds."""

    sigma: NonNegative = Field(5.0, description="σ of ⌊|Normal(0, σ)|⌋; 0: every update is back in its own round")
    per: Literal["client", "job"] = Field(
        "client", description="`client`: slow clients stay slow; `job`: drawn again for each job"
    )


class Evaluation(Strict):
    """When accuracy is measured."""

    every: Count = Field(10, description="rounds between evaluations; the last round is always one")


class Diagnostics(Strict):
    """What the paper's figures and theorems speak of, written into the history; it does not change the run."""

    every: Count = Field(10, description="rounds between two looks")
    clients: Annotated[Count, Field(ge=2)] = Field(
        20, description="clients that are trained for a look, as an estimate of the true update"
    )


class Plan(Strict):
    """Everything about a run but its model and data."""

    seed: int = Field(
        0, ge=0, lt=2**63, strict=True, description="sets initial weights, sampling, delays and partition"
    )
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
    diagnostics: Diagnostics | None = Field(None, description="extra measurements, by default none; `{}` for some")
    checks: Checks = Checks()
    attack: Attack = NoAttack()
    privacy: Privacy | None = None
    method: Method = Feddle()


class Checkpoints(Strict):
    """Checkpoints from which a stopped run continues (`feddle resume`)."""

    every: int | None = Field(
        None,
        ge=0,
        le=100_000_000,
        strict=True,
        description="rounds between checkpoints; by default one a minute, fewer if they take long; 0: none",
    )


class Config(Plan):
    """A run, whole: the content of a config file."""

    data: Data = Data()
    model: Model = CnnOptions()
    checkpoint: Checkpoints = Checkpoints()

    def sources(self) -> list[Source[Any]]:
        """What a run reads: pretrained weights, and the data of clients and server."""
        data = [source_of(data) for data in (self.data, self.data.server) if data.name is not None]
        weights = self.model.weights()
        return data if weights is None else [weights, *data]
