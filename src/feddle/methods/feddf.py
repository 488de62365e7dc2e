"""FedDF."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from feddle.core.batches import mini_batches
from feddle.core.layout import Weights
from feddle.core.messages import Arrival, Merged
from feddle.core.seeds import seed_for, torch_generator
from feddle.data.examples import Examples, draw
from feddle.methods.fedavg import Late, average, in_time, staleness_limit
from feddle.methods.strategy import BatchSize, MethodOptions, ServerEpochs
from feddle.options import Positive
from feddle.training.parts import Parts
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench

Average = Literal["logits", "losses"]


class FedDFOptions(MethodOptions):
    """Average, then distil the clients' joint predictions on the server's data, without its labels."""

    name: Literal["feddf"] = "feddf"
    late: Late = "discard"
    lr: Positive = Field(1e-4, description="learning rate of the distillation")
    epochs: ServerEpochs = 1
    batch_size: BatchSize = 32
    temperature: Positive = Field(1.0, description="temperature of the teachers' and the student's softmax")
    average: Average = Field("logits", description="what is averaged over the teachers: `logits` or `losses`")
    patience: int = Field(
        0,
        ge=0,
        le=100_000_000,
        strict=True,
        description="stop after this many epochs without a lower loss; 0: never",
    )

    def build(self, parts: Parts) -> "FedDF":
        """The method."""
        recipe = Recipe(lr=self.lr, epochs=self.epochs, batch_size=self.batch_size)
        how = Distillation(recipe, self.temperature, self.average, self.patience)
        examples, limit = parts.server_data(labelled=False), parts.samples_per_round
        return FedDF(parts.bench, examples, how, late=self.late, seed=parts.seed, samples_per_round=limit)


@dataclass(frozen=True)
class Distillation:
    """How to distil: the `temperature` of the softmax, what is averaged over the teachers, and when to stop early.

    `logits`: one teacher, the softmax of the mean logits. `losses`: the mean of the losses to each teacher, whose
    gradient is that of the loss to the mean of their softmaxes. `patience`: stop after that many epochs without a lower
    loss; 0: never.
    """

    recipe: Recipe
    temperature: float = 1.0
    average: Average = "logits"
    patience: int = 0


class FedDF:
    """Average the arrivals, then distil what they know together into the average, on the server's data.

    The loss is KL(teachers ‖ student) on softmaxes; no labels are used, so the data may be of another domain. A round
    without a usable arrival leaves the model as it is.
    """

    def __init__(
        self,
        bench: Workbench,
        examples: Examples,
        distillation: Distillation,
        *,
        late: Late = "discard",
        seed: int,
        samples_per_round: int | None = None,
    ) -> None:
        self.bench = bench
        self.examples = examples
        self.distillation = distillation
        self.late: Late = late
        self.seed = seed
        self.samples_per_round = samples_per_round
        self.max_staleness = staleness_limit(late)

    def merge(self, model: Weights, arrivals: Sequence[Arrival], round: int) -> Merged:
        """See `Strategy`."""
        used = in_time(arrivals, self.late)
        if not used:
            return Merged(model)
        chosen = draw(self.examples, self.samples_per_round, seed_for(self.seed, "distil on", round))
        start, seed = average(model, arrivals, self.late), seed_for(self.seed, "distil", round)
        return self._distil(start, chosen, self.teach(used, chosen), seed)

    def teach(self, arrivals: Sequence[Arrival], examples: Examples) -> Tensor:
        """The teachers' joint prediction (n, classes), as probabilities; one client's model is in memory at a time."""
        how = self.distillation
        total: Tensor | None = None
        for arrival in arrivals:
            client = Weights(arrival.start.vector + arrival.update.delta, arrival.update.buffers)
            logits = self.bench.logits(client, examples) / how.temperature
            output = logits if how.average == "logits" else logits.softmax(1)
            total = output if total is None else total + output
        assert total is not None
        mean = total / len(arrivals)
        return mean.softmax(1) if how.average == "logits" else mean

    def _distil(self, start: Weights, examples: Examples, targets: Tensor, seed: int) -> Merged:
        how, model = self.distillation, self.bench.model
        self.bench.layout.write(model, start)
        # eval mode: running statistics stay the clients', and a batch of one is no special case
        model.eval()
        optimizer = how.recipe.make_optimizer(model)
        generator = torch_generator(seed)
        best, waited, losses = float("inf"), 0, []
        for _ in range(how.recipe.epochs):
            total = 0.0
            for index in mini_batches(len(examples), how.recipe.batch_size, generator):
                inputs = examples.take(index)[0].to(targets.device)
                model.zero_grad(set_to_none=True)
                student = (model(inputs) / how.temperature).log_softmax(1)
                # T² keeps the gradient's size whatever the temperature
                loss = how.temperature**2 * F.kl_div(student, targets[index], reduction="batchmean")
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.item() * len(index)
            losses.append(total / len(examples))
            waited = 0 if losses[-1] < best else waited + 1
            best = min(best, losses[-1])
            if how.patience and waited >= how.patience:
                break
        notes = {"distillation_loss": losses[-1], "distillation_epochs": len(losses)}
        return Merged(self.bench.layout.read(model), notes)
