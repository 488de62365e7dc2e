"""Training on a node; every job starts a new process, so this module imports little."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F

from feddle.core.errors import FeddleError
from feddle.core.layout import Layout, Weights
from feddle.core.seeds import seed_for
from feddle.data.examples import Data, as_examples
from feddle.runtimes.flower.wire import read_order, update_message
from feddle.training.machine import one_thread
from feddle.training.train import Loss, train_client


def client_app(
    model: Callable[[], nn.Module], data: Callable[[Context], Data], loss: Loss = F.cross_entropy
) -> ClientApp:
    """A ClientApp that trains `model()` on `data(context)` with the settings that the server sends."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return train_job(message, model(), data(context), loss)

    return app


def train_job(message: Message, model: nn.Module, data: Data, loss: Loss = F.cross_entropy) -> Message:
    """Train a job and return the reply; call it in the `@app.train()` of a custom ClientApp."""
    order, layout = read_order(message), Layout.of(model)
    if layout.digest != order.digest:
        raise FeddleError(
            f"this client's model differs from the server's (its layout is {layout.digest[:12]}…, the server's is "
            f"{order.digest[:12]}…); run the same app with the same model on both"
        )
    examples = as_examples(data)
    if not len(examples):
        raise FeddleError("this client has no examples to train on; give it data, or remove the node")
    device = next(model.parameters()).device
    start = Weights(order.start.vector.to(device), order.start.buffers.to(device))
    seed = seed_for(order.seed, "train", order.job.client, order.job.number)
    with one_thread():
        update = train_client(model, layout, start, examples, order.recipe, order.job, seed, loss)
    return update_message(update, message)
