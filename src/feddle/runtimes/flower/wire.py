"""The messages: arrays and plain values; their size and format are checked before they are read."""

from dataclasses import asdict, dataclass
from io import BytesIO
from operator import index
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from feddle.core.errors import FeddleError
from feddle.core.layout import Weights
from feddle.core.messages import Job, Update
from feddle.training.train import Recipe

_NUMPY = "numpy.ndarray"  # Flower's name for the .npy format
_HEADERS = 4096  # bytes that a message may have besides the numbers of the model, for the headers of its arrays
_LONGEST_TEXT = 200


class UnreadableError(FeddleError):
    """A reply without a readable update; its text is the reason under which it is counted."""


@dataclass(frozen=True, eq=False)
class Order:
    """A job for a client: the model that it starts from, and how to train it."""

    job: Job
    start: Weights
    digest: str
    recipe: Recipe
    seed: int


def order_message(order: Order, node: int, ttl: float) -> Message:
    """The message that sends an order to a node."""
    facts = {**asdict(order.job), "digest": order.digest, "seed": order.seed, **order.recipe.model_dump()}
    model = {"vector": _array(order.start.vector), "buffers": _array(order.start.buffers)}
    content = RecordDict({"model": ArrayRecord(model), "order": ConfigRecord(facts)})
    return Message(content, dst_node_id=node, message_type=MessageType.TRAIN, ttl=ttl)


def read_order(message: Message) -> Order:
    """The order in a message from the server."""
    try:
        model = message.content.array_records["model"]
        facts: dict[str, Any] = dict(message.content.config_records["order"])
        client, number, version, seed = (index(facts.pop(name)) for name in ("client", "number", "version", "seed"))
        digest = str(facts.pop("digest"))
        start = Weights(*(_tensor(model[name]) for name in ("vector", "buffers")))
        return Order(Job(client, number, version), start, digest, Recipe.model_validate(facts), seed)
    except (KeyError, TypeError, ValueError) as error:
        raise FeddleError(
            f"expected an order from a feddle server, got {type(error).__name__}: {error}; "
            "run the same version of feddle on the server and on the clients"
        ) from error


def update_message(update: Update, order: Message) -> Message:
    """The reply that carries an update."""
    arrays = {"delta": _array(update.delta), "buffers": _array(update.buffers)}
    facts = MetricRecord({"examples": update.num_examples, **update.metrics})
    layout = ConfigRecord({"digest": update.digest})
    return Message(RecordDict({"update": ArrayRecord(arrays), "facts": facts, "layout": layout}), reply_to=order)


def read_update(message: Message, job: Job, model: Weights) -> Update:
    """The update in the reply to a job: not larger than the model, but its values are not checked yet.

    The job is not read from the reply: the server knows which job it sent to which node.
    """
    parts = [message.content.get(name) for name in ("update", "facts", "layout")]
    if len(message.content) != 3 or [type(part) for part in parts] != [ArrayRecord, MetricRecord, ConfigRecord]:
        raise UnreadableError("no update")
    arrays, facts, layout = cast("tuple[ArrayRecord, MetricRecord, ConfigRecord]", parts)
    if set(arrays) != {"delta", "buffers"} or set(layout) != {"digest"} or len(facts) > 2:
        raise UnreadableError("no update")
    if sum(len(array.data) for array in arrays.values()) > model.num_bytes + _HEADERS:
        raise UnreadableError("too large")
    try:
        delta, buffers = (_tensor(arrays[name]).to(model.vector.device) for name in ("delta", "buffers"))
    except ValueError as error:
        raise UnreadableError("no array of numbers") from error
    metrics: dict[str, Any] = dict(facts)
    examples = metrics.pop("examples", None)
    digest = str(layout["digest"])[:_LONGEST_TEXT]
    return Update(job, delta, buffers, examples, metrics, digest)


def _array(tensor: Tensor) -> Array:
    return Array(tensor.detach().cpu().contiguous().numpy())


def _tensor(array: Array) -> Tensor:
    """The vector of floats in an array.

    Flower's own reader allocates whatever size the header claims. Here the header must fit the bytes that arrived.
    """
    if array.stype != _NUMPY:
        raise ValueError(f"expected a numpy array, got {array.stype[:_LONGEST_TEXT]!r}")
    stream = BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("expected .npy format 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # numpy parses the header as Python: TypeError, TokenError, MemoryError and more
        raise ValueError("unreadable header") from error
    if dtype != np.float32 or len(shape) != 1 or 4 * shape[0] != len(array.data) - stream.tell():
        raise ValueError(f"expected a whole vector of float32, got {dtype} of shape {shape}")
    return torch.tensor(np.frombuffer(array.data, np.float32, offset=stream.tell()))
