"""The plan of a run: the content of a config file."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from feddle.clients.attacks import Attack, NoAttack
from feddle.clients.private import Privacy
from feddle.data.options import Data, source_of
from feddle.data.source import Source
from feddle.methods.feddle.method import FeddleOptions
from feddle.methods.options import Method
from feddle.models import Model
from feddle.models.cnn import CnnOptions
from feddle.options import Count, CountOrZero, Decay, Options, choice, is_none
from feddle.runtimes.ray import RayOptions
from feddle.runtimes.simulation import Delays
from feddle.runtimes.workers import LocalOptions
from feddle.server import Checks
from feddle.training.train import Recipe

_MOST_CLIENTS = 200  # for which the last model is measured by default


def _no_name(value: Any) -> Any:
    """Refuse one name where a list of names is expected."""
    if isinstance(value, str):
        raise ValueError(f"expected a list such as [{value}], got {value!r}")
    return value


class Clients(Options):
    """The clients that take part."""

    count: Count = Field(
        500, description="number of clients (J); if the data names its clients, at most this many take part"
    )
    per_round: Count = Field(10, description="number of clients sampled each round (N)")

    @model_validator(mode="after")
    def _enough(self) -> "Clients":
        if self.per_round > self.count:
            raise ValueError(
                f"per_round is {self.per_round}, but count is {self.count}; lower per_round or raise count"
            )
        return self


class Evaluation(Options):
    """When and how the model is measured."""

    every: Count = Field(10, description="rounds between evaluations; the last round is always evaluated")
    clients: CountOrZero | None = Field(
        None,
        exclude_if=is_none,
        description="largest number of clients for which the last model is measured; if there are more, a random "
        "sample is drawn; by default 200; 0: none",
    )

    @property
    def most_clients(self) -> int:
        """The largest number of clients for which the last model is measured."""
        return _MOST_CLIENTS if self.clients is None else self.clients


class DiagnosticsOptions(Options):
    """Extra measurements for the paper's figures and theorems. They do not change the run."""

    every: Count = Field(10, description="rounds between two measurements")
    clients: Annotated[Count, Field(ge=2)] = Field(
        20, description="number of clients trained per measurement, to estimate the true update"
    )


class Plan(Options):
    """Everything about a run except its model, its data and its runtime."""

    seed: int = Field(
        0, ge=0, lt=2**63, strict=True, description="determines initial weights, sampling, delays and partition"
    )
    rounds: Count = Field(200, description="number of rounds (K)")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="`cpu`, `cuda`, `mps`, or `auto`, the best one available"
    )
    clients: Clients = Clients()
    training: Recipe = Recipe()
    evaluation: Evaluation = Evaluation()
    metrics: Annotated[tuple[str, ...] | None, BeforeValidator(_no_name)] = Field(
        None,
        exclude_if=is_none,
        description="further metrics of each evaluation: names in scikit-learn (`f1_macro`, `matthews_corrcoef`, …), "
        "which require `feddle[metrics]`, and import paths `module:name` of custom functions; by default none",
    )
    checks: Checks = Checks()
    method: Method = Field(FeddleOptions(), description="how the server merges updates")
    averaging: Decay | None = Field(
        None,
        description="decay of a moving average of the server's models, which is evaluated and saved; 0: the last "
        "model is evaluated and saved; by default 0.95 with feddle+ and 0 with other methods",
    )

    def is_evaluated(self, number: int) -> bool:
        """Whether the model is evaluated after round `number`."""
        return number % self.evaluation.every == 0 or number == self.rounds

    def method_name(self, strategy: object | None) -> str:
        """The name of the method, or of the class of the `strategy` that replaces it."""
        return self.method.name if strategy is None else type(strategy).__name__


AnyExecutor = LocalOptions | RayOptions
Executor = Annotated[AnyExecutor, Discriminator("name"), choice(None)]


class SimulationPlan(Plan):
    """A plan with simulated clients."""

    workers: Annotated[CountOrZero, Field(le=1024)] | None = Field(
        None,
        description="number of worker processes, by default one per core; 0: clients are trained in the main process; "
        "with `executor: ray`, the number of workers on the cluster, by default as many as fit",
    )
    executor: Executor | None = Field(
        None,
        exclude_if=is_none,
        description="where the workers are: `local`, the default, or `ray`, a cluster; results are the same",
    )
    delays: Delays = Delays()
    diagnostics: DiagnosticsOptions | None = Field(
        None, description="extra measurements; off by default; `diagnostics: {}` turns it on"
    )
    attack: Attack = Field(NoAttack(), description="what malicious clients do")
    privacy: Privacy | None = None

    @model_validator(mode="after")
    def _workers_on_ray(self) -> "SimulationPlan":
        if isinstance(self.executor, RayOptions) and self.workers == 0:
            raise ValueError(
                "workers is 0, but executor is ray; leave out workers, or set it to their number on the cluster"
            )
        return self


class Checkpoints(Options):
    """Checkpoints from which a stopped run continues (`feddle resume`)."""

    every: CountOrZero | None = Field(
        None, description="rounds between checkpoints; by default one per minute, fewer if they take long; 0: none"
    )


class Config(SimulationPlan):
    """A whole run: the content of a config file. `load_config` reads one.

    seed, rounds, device, workers, executor: the seed, the number of rounds, and where the run is computed.
    clients, delays, training: how many clients take part, how late their updates are, and how they train.
    method, averaging, checks: how the server merges updates, and which ones it refuses.
    data, model: the data, and the model that is trained.
    evaluation, metrics, diagnostics: what is measured.
    attack, privacy: what malicious clients do, and the noise of honest clients.
    checkpoint: how often a run is saved.

    docs/configuration.md, or `feddle schema --markdown`, describes every key in these sections.
    """

    data: Data = Data()
    model: Model = Field(CnnOptions(), description="the network that is trained")
    checkpoint: Checkpoints = Checkpoints()

    def sources(self) -> list[Source[Any]]:
        """The sources that a run reads: pretrained weights, and the data of clients and server."""
        data = [source_of(data) for data in (self.data, self.data.server) if data.name is not None]
        weights = self.model.weights()
        return data if weights is None else [weights, *data]
