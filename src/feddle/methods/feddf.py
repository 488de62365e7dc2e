"""FedDF."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for
from feddle.data.examples import Examples, Relabelled, draw
from feddle.methods.cost import Cost, Setting
from feddle.methods.fedavg import Late, average, in_time, staleness_limit
from feddle.methods.strategy import MethodOptions
from feddle.options import BatchSize, CountOrZero, Positive, ServerEpochs
from feddle.training.distil import NEGLIGIBLE, Average, classified_data, divergence, joint_prediction
from feddle.training.parts import Parts
from feddle.training.train import Recipe, train_by_epoch
from feddle.training.workbench import Workbench


class FedDFOptions(MethodOptions):
    """Average, then distil the clients' joint predictions on the server's data; labels are not used."""

    reads_labels: ClassVar[bool] = False
    name: Literal["feddf"] = "feddf"
    late: Late = "discard"
    lr: Positive = Field(1e-4, description="learning rate of the distillation")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32
    temperature: Positive = Field(1.0, description="temperature of the teachers' and the student's softmax")
    average: Average = Field("logits", description="what is averaged over the teachers: `logits` or `losses`")
    patience: CountOrZero = Field(0, description="stop after this many epochs without a lower loss; 0: never")

    def build(self, parts: Parts) -> "FedDF":
        """The method."""
        recipe = Recipe(lr=self.lr, epochs=self.epochs, batch_size=self.batch_size)
        examples, limit = classified_data(parts, "feddf"), parts.samples_per_round
        return FedDF(self, parts.bench, examples, recipe, limit, parts.seed)

    def cost(self, setting: Setting) -> Cost:
        """Each teacher predicts the examples once."""
        trained, taught = self.epochs * setting.drawn * setting.active, setting.used * setting.drawn
        return Cost(trained=trained, evaluated=taught, working=3, max_staleness=staleness_limit(self.late))


@dataclass(eq=False)
class FedDF:
    """Average the arrivals, then distil their joint knowledge into the average, on the server's data.

    The loss is KL(teachers ‖ student) on softmaxes with a `temperature`. It uses no labels, so the data may be of
    another domain. With `average="logits"` there is one teacher, the softmax of the mean logits. With "losses" the
    losses to each teacher are averaged; this has the same gradient as the loss to their mean softmax. `patience`
    stops the distillation after that many epochs without a lower loss (0: never). A round in which no arrival can be
    used does not change the model.
    """

    options: FedDFOptions
    bench: Workbench
    examples: Examples
    recipe: Recipe
    samples_per_round: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.max_staleness = staleness_limit(self.options.late)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        used = in_time(arrivals, self.options.late)
        if not used:
            return Merged(model)
        chosen = draw(self.examples, self.samples_per_round, seed_for(self.seed, "distil on", round))
        start, seed = average(model, arrivals, self.options.late), seed_for(self.seed, "distil", round)
        return self.distil(start, chosen, self.teach(used, chosen), seed)

    def teach(self, arrivals: Sequence[Arrival], examples: Examples) -> Tensor:
        """The teachers' joint prediction as probabilities (n, classes); one client's model is in memory at a time."""
        models, options = (arrival.model for arrival in arrivals), self.options
        return joint_prediction(self.bench, models, examples, options.temperature, options.average)

    def distil(self, start: Weights, examples: Examples, targets: Tensor, seed: int) -> Merged:
        """Train from `start` to predict the targets (n, classes) of the examples."""
        model, patience = self.bench.model, self.options.patience
        self.bench.layout.write(model, start)
        model.eval()  # keeps the clients' running statistics, and allows a batch of one
        taught, losses = Relabelled(examples, targets), []
        for loss in train_by_epoch(model, taught, self.recipe, seed, self._divergence, negligible=NEGLIGIBLE):
            assert loss is not None, "only training mode skips batches"
            losses.append(loss)
            if patience and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience]):
                break
        notes = {"distillation_loss": losses[-1], "distillation_epochs": len(losses)}
        return Merged(self.bench.layout.read(model), notes)

    def _divergence(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return divergence(outputs, targets, self.options.temperature)
