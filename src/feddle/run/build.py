"""From a config to the method that it names."""

from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from feddle.core.atlas import Atlas
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.core.packed import Int8Rows, SparseRows
from feddle.core.rows import FloatRows, Rows
from feddle.core.search import LbfgsSearch, Objective, PaperSearch, Search, SgdSearch
from feddle.data.examples import Examples
from feddle.methods import options as methods
from feddle.methods.ca2fl import CA2FL
from feddle.methods.client_cache import ClientCache
from feddle.methods.convex import ConvexMerging, into_simplex
from feddle.methods.fadas import Amsgrad, Fadas
from feddle.methods.fedasync import FedAsync
from feddle.methods.fedavg import FedAvg
from feddle.methods.fedbuff import FedBuff
from feddle.methods.feddf import Distillation, FedDF
from feddle.methods.feddle.anchors import AdaptiveAnchors, AnchorKind, CalibratedAnchors, RawAnchors
from feddle.methods.feddle.fallback import (
    AdaptiveFallback,
    Fallback,
    FedAsyncFallback,
    FedAvgFallback,
    FedBuffFallback,
    NoFallback,
)
from feddle.methods.feddle.method import Feddle, Witness
from feddle.methods.median import CoordinateMedian
from feddle.methods.server_data import HFCL, Center, FedFT
from feddle.methods.strategy import Strategy
from feddle.run import plan as cfg
from feddle.run.problem import Federation
from feddle.training.objectives import TaskObjective, entropy
from feddle.training.surrogate import Clusters, OwnLabels, Rotations, SurrogateObjective, Targets
from feddle.training.train import Recipe
from feddle.training.workbench import Workbench


@dataclass(frozen=True, eq=False)
class Parts:
    """What strategies are built from."""

    plan: cfg.Plan
    federation: Federation
    layout: Layout
    device: str
    scratch: Path | None  # a folder for what does not fit in memory

    @property
    def bench(self) -> Workbench:
        """The server's model to compute on."""
        return Workbench(self.federation.model, self.layout, self.federation.loss)

    def server_data(self, *, labelled: bool = True) -> Examples:
        """The server's examples; `labelled` if the labels must be those of the clients' task."""
        name, server = self.plan.method.name, self.federation.server
        if server is None:
            raise FeddleError(f"{name} uses the server's data, but there is none; set data.server.samples above 0")
        if labelled and self.federation.out_of_domain:
            raise FeddleError(
                f"{name} needs server data of the clients' own task, but data.server.name is "
                f"{self.federation.out_of_domain}; leave it out, or use feddf"
            )
        return server

    @property
    def server_classes(self) -> int:
        """How many labels the server's examples have: as many as the model tells apart, unless it is said."""
        said, head = self.federation.server_classes, self.layout.head_name
        if said is not None or head is None:
            return said or 0
        return int(self.federation.model.get_submodule(head).out_features)  # type: ignore[arg-type]

    def recipe(self, method: methods.Center | methods.FedFT | methods.FedDF) -> Recipe:
        """Adam as the method's options say."""
        return Recipe("adam", method.lr, method.epochs, method.batch_size)

    def cache(self, limit: float) -> ClientCache:
        """Room for the last update of every client."""
        clients = len(self.federation.sizes) or self.plan.clients.count  # on a network nobody is known beforehand
        return ClientCache(clients, self.layout.size, limit=int(limit * 1e6), folder=self.scratch, device=self.device)


def build_strategy(parts: Parts) -> Strategy:
    """The method that a config names."""
    plan = parts.plan
    match plan.method:
        case methods.FedAvg() as method:
            return FedAvg(method.late)
        case methods.FedBuff() as method:
            return FedBuff(method.buffer_size, method.lr, method.staleness)
        case methods.FedAsync() as method:
            return FedAsync(method.alpha, method.exponent)
        case methods.Ca2fl() as method:
            return CA2FL(parts.cache(method.cache_limit), method.buffer_size, method.lr)
        case methods.Fadas() as method:
            moments = Amsgrad(parts.layout.size, method.beta1, method.beta2, method.epsilon, parts.device)
            return Fadas(moments, method.buffer_size, method.lr, method.delay_threshold)
        case methods.Median() as method:
            return CoordinateMedian(method.lr)
        case methods.Feddle() as method:
            return _build_feddle(method, parts)
        case methods.Center() | methods.FedFT() | methods.Hfcl() | methods.FedDF() | methods.Convex() as method:
            return _build_with_server_data(method, parts)
        case _:
            assert_never(plan.method)


def _build_with_server_data(
    method: methods.Center | methods.FedFT | methods.Hfcl | methods.FedDF | methods.Convex, parts: Parts
) -> Strategy:
    plan, bench = parts.plan, parts.bench
    examples = parts.server_data(labelled=not isinstance(method, methods.FedDF))
    match method:
        case methods.Center():
            return Center(bench, examples, parts.recipe(method), rounds=plan.rounds, seed=plan.seed)
        case methods.FedFT(base=base):
            inner = (
                FedAvg(base.late)
                if isinstance(base, methods.FedAvg)
                else FedBuff(base.buffer_size, base.lr, base.staleness)
            )
            return FedFT(inner, bench, examples, parts.recipe(method), seed=plan.seed)
        case methods.Hfcl():
            return HFCL(bench, examples, Recipe(**plan.training.model_dump()), late=method.late, seed=plan.seed)
        case methods.FedDF():
            how = Distillation(parts.recipe(method), method.temperature, method.average, method.patience)
            limit = parts.federation.samples_per_round
            return FedDF(bench, examples, how, late=method.late, seed=plan.seed, samples_per_round=limit)
        case methods.Convex():
            objective = TaskObjective(bench.model, bench.layout, examples, bench.loss)
            search = PaperSearch(method.lr, method.epochs, method.batch_size, constraint=into_simplex)
            return ConvexMerging(objective, search, seed=plan.seed)
        case _:
            assert_never(method)


def _build_feddle(method: methods.Feddle, parts: Parts) -> Feddle:
    plan = parts.plan
    objective = build_objective(method.objective, parts)
    capacity = method.atlas_size or 2 * plan.clients.per_round
    return Feddle(
        objective,
        Atlas(
            capacity,
            parts.layout.size,
            eviction=method.eviction,
            rows=_build_rows(method.storage, capacity, parts),
            device=parts.device,
        ),
        build_search(method.search, outside=bool(parts.federation.out_of_domain)),
        build_fallback(method.fallback),
        anchors=_build_anchors(method, parts),
        normalise=method.normalise,
        regularisation=_regularisation(method, parts),
        seed=plan.seed,
        witness=_build_witness(parts),
    )


def _build_witness(parts: Parts) -> Witness | None:
    """In-domain data beside the out-of-domain data that guides, when diagnostics are asked for."""
    bench, asked, examples = parts.bench, parts.plan.diagnostics, parts.federation.witness
    if asked is None or examples is None:
        return None
    objective = TaskObjective(bench.model, bench.layout, examples, bench.loss, samples_per_round=1000)
    return Witness(objective, asked.every)


def _regularisation(method: methods.Feddle, parts: Parts) -> float:
    if method.regularisation is None:
        return 0.01 if parts.federation.out_of_domain else 0.0
    return method.regularisation


def build_objective(name: methods.Objective | None, parts: Parts) -> Objective:
    """What the server's data asks of the model."""
    bench, outside = parts.bench, parts.federation.out_of_domain
    limit = parts.federation.samples_per_round
    examples = parts.server_data(labelled=False)
    name = name or ("surrogate" if outside else "task")
    match name:
        case "task":
            examples = parts.server_data()
            return TaskObjective(bench.model, bench.layout, examples, bench.loss, samples_per_round=limit)
        case "entropy":
            return TaskObjective(bench.model, bench.layout, examples, entropy, samples_per_round=limit)
        case "surrogate":
            targets: Targets = OwnLabels(parts.server_classes)
        case "rotation":
            targets = Rotations()
        case "clusters":
            targets = Clusters(parts.server_classes)
        case _:
            assert_never(name)
    return SurrogateObjective(bench.model, bench.layout, examples, targets, samples_per_round=limit)


def _build_rows(storage: methods.AnyStorage, capacity: int, parts: Parts) -> Rows:
    if isinstance(storage, methods.FloatStorage):
        return FloatRows.empty(capacity, parts.layout.size, parts.device)
    if parts.device != "cpu":
        raise FeddleError(f"method.storage: {storage.name} works on the cpu, but the device is {parts.device}")
    match storage:
        case methods.Int8Storage():
            return Int8Rows.empty(capacity, parts.layout.size)
        case methods.SparseStorage(density=density):
            return SparseRows.empty(capacity, parts.layout.size, density)
        case _:
            assert_never(storage)


def _build_anchors(method: methods.Feddle, parts: Parts) -> AnchorKind:
    match method.anchors:
        case methods.RawAnchors():
            return RawAnchors()
        case methods.CalibratedAnchors(cache_limit=limit):
            return CalibratedAnchors(parts.cache(limit))
        case methods.AdaptiveAnchors() as how:
            return AdaptiveAnchors(Amsgrad(parts.layout.size, 0.0, how.beta2, how.epsilon, parts.device))
        case _:
            assert_never(method.anchors)


def build_search(search: methods.AnySearch, *, outside: bool) -> Search:
    """The search that a config names."""
    match search:
        case methods.PaperSearch():
            return PaperSearch(search.lr, search.epochs, search.batch_size)
        case methods.AnnealedSearch():
            return PaperSearch(search.lr, search.epochs, search.batch_size, anneal=True)
        case methods.LbfgsSearch():
            return LbfgsSearch(search.iterations)
        case methods.SgdSearch():
            step = search.step or ("theorem-2" if outside else "lemma-1")
            return SgdSearch(step, search.epochs, search.batch_size)
        case _:
            assert_never(search)


def build_fallback(fallback: methods.AnyFallback) -> Fallback:
    """The fallback that a config names."""
    match fallback:
        case methods.FedBuffFallback():
            return FedBuffFallback(fallback.lr, fallback.staleness, fallback.buffer_size)
        case methods.FedAvgFallback():
            return FedAvgFallback()
        case methods.FedAsyncFallback():
            return FedAsyncFallback(fallback.alpha, fallback.exponent)
        case methods.AdaptiveFallback():
            return AdaptiveFallback(fallback.threshold)
        case methods.NoFallback():
            return NoFallback()
        case _:
            assert_never(fallback)
