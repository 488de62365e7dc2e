"""What a round costs the server: the GFLOPs of each method's merge, and the MB of the network and its state.

The setting is the paper's: ViT-B/16 with adapters, 1000 clients, 50 updates per round without delays, atlas and buffer
of 100, and the same number of server iterations for every method that trains. Merges are run and their operations
counted. Every count is linear in the number of layers, images and epochs, so small numbers of them are run and the
result is extrapolated, which is exact. Prints our numbers next to the paper's. It takes a few minutes on one core.
"""

import sys
from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from feddle.cli.display import print_table
from feddle.core.layout import Layout, Weights
from feddle.core.messages import Arrival, Job, Update
from feddle.core.state import save
from feddle.data.examples import Images
from feddle.grids.grid import paper
from feddle.methods.feddle.method import Feddle
from feddle.methods.strategy import Strategy, state_of
from feddle.run.plan import Plan
from feddle.run.problem import Problem
from feddle.run.run import build_server
from feddle.training.machine import one_thread

CLIENTS, PER_ROUND, HELD = 1000, 50, 100
SAMPLES, EPOCHS, BATCH = 1000, 10, 32  # at the server; the paper's figures fit 10,000 images per round
CLASSES = 10
WIDTH, HEADS, PATCH, IMAGE, LAYERS = 768, 12, 16, 224, 12
RANK, SCALE = 4, 8.0
METHODS = ("fed+ft", "hfcl", "feddf", "fedavg", "fedasync", "fedbuff", "ca2fl", "feddle")


def measure(method: str, layers: tuple[int, int] = (1, 2)) -> dict[str, Any]:
    """What a round costs the server, as we count it and in the paper: GFLOPs, and the MB of network and method's state.

    The cost is counted with two shallow networks; their difference is the cost of a layer.
    """
    with one_thread():
        low, high = ((_flops(method, depth), _kept(method, depth)) for depth in layers)
    slopes = [(b - a) / (layers[1] - layers[0]) for a, b in zip(low, high, strict=True)]
    flops, kept = (a + (LAYERS - layers[0]) * slope for a, slope in zip(low, slopes, strict=True))
    row = next(each for each in paper()["server_cost"]["rows"] if each["method"] == method)
    paper_costs = {"paper_gflops": row["gflops"], "paper_cache_mb": row["cache_mb"]}
    return {"method": method, "gflops": flops / 1e9, "cache_mb": kept / 1e6, **paper_costs}


def _flops(method: str, layers: int) -> float:
    """FLOPs of a merge as c + n·t + E·b + E·n·a for n images and E epochs, at the paper's n and E."""
    if method not in ("fed+ft", "hfcl", "feddf", "feddle"):
        return _count(method, layers, 1, 1)
    f11, f21, f12, f22 = (_count(method, layers, n, e) for n, e in ((1, 1), (2, 1), (1, 2), (2, 2)))
    image = f22 - f21 - f12 + f11
    teacher, step = f21 - f11 - image, f12 - f11 - image
    rest = f11 - image - teacher - step
    return rest + SAMPLES * teacher + EPOCHS * ceil(SAMPLES / BATCH) * step + EPOCHS * SAMPLES * image


def _count(method: str, layers: int, images: int, epochs: int) -> int:
    """FLOPs of the second merge of a small server, when its atlas is full."""
    strategy, model, _ = _server(method, layers, images, epochs)
    if isinstance(strategy, Feddle):
        for arrival in _arrivals(model, 0):  # anchors of a first round, without a search
            strategy.atlas.insert(arrival.update.job, arrival.update.delta)
    elif method in ("fedbuff", "ca2fl"):
        model = strategy.merge(model, _arrivals(model, 0), 1).weights
    counter = FlopCounterMode(display=False, custom_mapping=_MERGING)
    with counter:
        strategy.merge(model, _arrivals(model, 1), 2)
    return int(counter.get_total_flops())


def _kept(method: str, layers: int) -> float:
    """Bytes of the network and of the method's state, the largest until every client has sent an update."""
    strategy, model, network = _server(method, layers, 1, 1)
    rounds = CLIENTS // PER_ROUND if method in ("fedavg", "fedasync", "fedbuff", "ca2fl") else 2
    most = 0
    for number in range(rounds):
        model = strategy.merge(model, _arrivals(model, number), number + 1).weights
        most = max(most, sum(tensor.nbytes for tensor in save(state_of(strategy)).values()))
    return float(most + sum(p.nbytes for p in network.parameters()))


def _server(method: str, layers: int, images: int, epochs: int) -> tuple[Strategy, Weights, nn.Module]:
    training = {"epochs": epochs, "batch_size": BATCH}
    options: dict[str, Any] = {"name": method}
    if method in ("fed+ft", "feddf"):
        options |= training
    if method in ("fedbuff", "ca2fl"):
        options["buffer_size"] = HELD
    if method == "feddle":
        options |= {"atlas_size": HELD, "search": {"name": "paper", **training}}
    clients = {"count": CLIENTS, "per_round": PER_ROUND}
    plan = Plan.model_validate({"clients": clients, "training": training, "method": options})
    network = ViT(CLASSES, layers)
    pixels = torch.zeros(images, 3, IMAGE, IMAGE, dtype=torch.uint8)
    data = Images(pixels, torch.zeros(images, dtype=torch.long), 3)
    problem = Problem(network, [], torch.ones(CLIENTS, dtype=torch.long), data, None)
    server = build_server(plan, problem, Layout.of(network), "cpu")
    return server.strategy, server.model, network


def _arrivals(model: Weights, number: int) -> list[Arrival]:
    """The updates of a round, none late. Clients take turns."""
    generator = torch.Generator().manual_seed(number)
    first = number * PER_ROUND % CLIENTS
    arrivals = []
    for client in range(first, first + PER_ROUND):
        # large, so that the teachers of FedDF differ: a student that equals them takes no step, and none is counted
        delta = 1e-2 * torch.randn(len(model.vector), generator=generator)
        arrivals.append(Arrival(Update(Job(client, 0, 0), delta, model.buffers, 50), 0, model))
    return arrivals


def _elementwise(*_: Any, out_shape: Sequence[int], **__: Any) -> int:
    return prod(out_shape)


def _product(*shapes: Any, **_: Any) -> int:
    """Of a matrix or vector with a vector; in `addmv` the vector to add comes first."""
    return 2 * max(prod(shape) for shape in shapes if isinstance(shape, torch.Size))


# torch counts matrix products; merging also needs sums, scalings and products with vectors
_aten = torch.ops.aten
_MERGING: dict[Any, Callable[..., int]] = {
    **dict.fromkeys(
        (_aten.add, _aten.add_, _aten.sub, _aten.sub_, _aten.mul, _aten.mul_, _aten.div, _aten.div_), _elementwise
    ),
    **dict.fromkeys((_aten.mv, _aten.dot, _aten.addmv, _aten.addmv_), _product),
}


class Adapted(nn.Module):
    """A frozen linear layer plus the product of two small trainable matrices."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Features (…, inputs) to (…, outputs)."""
        outputs: Tensor = self.frozen(inputs) + SCALE / RANK * self.up(self.down(inputs))
        return outputs


class Block(nn.Module):
    """Attention and two wider layers, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH).requires_grad_(False) for _ in range(2))
        self.qkv, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.wide, self.narrow = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, t, WIDTH) to tokens of the same shape."""
        count, length, _ = tokens.shape
        packed = self.qkv(self.norm1(tokens)).view(count, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(count, length, WIDTH)
        tokens = tokens + self.out(mixed)
        outputs: Tensor = tokens + self.narrow(F.gelu(self.wide(self.norm2(tokens))))
        return outputs


class ViT(nn.Module):
    """ViT-B/16 with low-rank adapters in every linear layer and a trainable head; its weights are random."""

    def __init__(self, classes: int, layers: int = LAYERS) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH).requires_grad_(False)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH), requires_grad=False)
        self.places = nn.Parameter(torch.zeros(1, (IMAGE // PATCH) ** 2 + 1, WIDTH), requires_grad=False)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, 224, 224) to logits (n, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], 1) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def texts(cost: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    numbers = (cost[key] for key in ("gflops", "paper_gflops", "cache_mb", "paper_cache_mb"))
    return (cost["method"], *(f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in numbers))


def main() -> None:
    """Count the merges of every method and print the table."""
    rows = []
    for method in METHODS:
        print(f"counting {method}", file=sys.stderr)
        rows.append(texts(measure(method)))
    print_table(("method", "GFLOPs", "paper", "cached MB", "paper"), rows)


if __name__ == "__main__":
    main()
