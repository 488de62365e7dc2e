"""The cost of a run before it starts. The numbers come from `traffic`, `measure` and the method's `Cost`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from feddle.methods.cost import Cost, Setting
from feddle.methods.strategy import cost_of
from feddle.run.measure import Measured, Memory, Speed
from feddle.run.plan import Config
from feddle.run.simulate import AHEAD_BYTES
from feddle.run.traffic import Schedule, Traffic, expected, none
from feddle.run.wall import walk

_FORK = 30_000_000  # bytes of memory that a worker process does not share, without a job
_RECEIVED = 4.0  # products with an update when it is received: copied, checked and measured
_MINUTE = 60.0  # seconds between two checkpoints by default


@dataclass(frozen=True)
class Sizes:
    """The numbers in a model: trainable parameters (d) and running statistics (b), each of four bytes."""

    parameters: int
    buffers: int = 0

    @property
    def message(self) -> int:
        """The bytes of a model or of an update."""
        return 4 * (self.parameters + self.buffers)


@dataclass(frozen=True)
class Held:
    """Clients with data, and the examples: of a client on average, of the server, and for the test."""

    clients: int
    client: float
    server: int
    test: int
    outside: bool = False  # whether the server's examples are of another task


@dataclass(frozen=True)
class Network:
    """What clients and server exchange, and what the server keeps for it."""

    updates: float  # that clients send
    bytes_up: float
    bytes_down: float
    in_flight: float  # jobs at a time, at most
    pinned: float  # versions, at most


@dataclass(frozen=True)
class Space:
    """Bytes of memory and disk. Data, libraries and activations are only in measured numbers."""

    server: float  # vectors of the server
    client: float  # of a client while it trains
    checkpoint: float  # the folder at its largest
    cache_file: float = 0.0  # clients' last updates that do not fit in memory
    run: float | None = None  # all processes of a run on this machine


@dataclass(frozen=True)
class Time:
    """Seconds of a run on this machine, and of its parts on one core."""

    wall: float
    start: float
    clients: float
    server: float
    evaluation: float

    @property
    def cpu(self) -> float:
        """The seconds of all cores together."""
        return self.start + self.clients + self.server + self.evaluation


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run."""

    network: Network
    space: Space
    time: Time | None = None


@dataclass(frozen=True)
class Machine:
    """What runs the clients, and what this process needed to get ready: seconds of CPU, and bytes of memory."""

    workers: int
    cores: int
    start: float
    memory: Memory | None  # after the data was read, and at most while it was read


def setting_of(config: Config, traffic: Traffic, sizes: Sizes, held: Held) -> Setting:
    """The numbers that the cost of a method depends on."""
    return Setting(
        size=sizes.parameters,
        clients=config.clients.count,
        rounds=config.rounds,
        per_round=config.clients.per_round,
        used=traffic.used / config.rounds,
        most=traffic.most_used,
        reported=traffic.reported,
        epochs=config.training.epochs,
        client_examples=held.client,
        server=held.server,
        samples_per_round=config.data.server.samples_per_round,
        test=held.test,
        outside=held.outside,
    )


def expected_traffic(config: Config, sizes: Sizes, held: Held) -> Traffic:
    """The mean traffic of a config without its data; the method says how late an update may be."""
    limit = cost_of(config.method, setting_of(config, none(config.rounds), sizes, held)).max_staleness
    return expected(config.clients.count, config.clients.per_round, config.rounds, config.delays, limit)


def network_of(traffic: Traffic, sizes: Sizes) -> Network:
    """The messages: a model goes to the client for each job, and an update comes back unless the run ends before."""
    up, down = traffic.returned * sizes.message, traffic.dispatched * sizes.message
    return Network(traffic.returned, up, down, traffic.in_flight, traffic.pinned)


def server_vectors(traffic: Traffic, cost: Cost, config: Config) -> float:
    """The vectors in the server's memory: the model, pinned versions, arrivals, and those of the method."""
    versions = 1 + averages_in(config) + max(traffic.pinned, 1)
    return versions + traffic.most_used + cost.kept + cost.working + cost.cached


def client_vectors(optimizer: str) -> int:
    """The vectors of a client: its start, model, gradient and result, and the two moments of Adam."""
    return 6 if optimizer == "adam" else 4


def on_paper(traffic: Traffic, sizes: Sizes, cost: Cost, config: Config) -> Estimate:
    """The estimate without data and measurement. Of two checkpoints, every file is assumed to differ."""
    server = 4 * sizes.parameters * server_vectors(traffic, cost, config)
    pinned = min(2 * traffic.pinned, traffic.rounds)
    saved = 2 * (1 + averages_in(config) + cost.kept) + pinned + 2 * (cost.cached + cost.in_file)
    checkpoint = 0.0 if config.checkpoint.every == 0 else sizes.message * saved
    client = 4 * sizes.parameters * client_vectors(config.training.optimizer)
    file = 4 * sizes.parameters * cost.in_file
    return Estimate(network_of(traffic, sizes), Space(server, client, checkpoint, file))


def averages_in(config: Config) -> bool:
    """Whether the server keeps a moving average of its models."""
    return bool(config.method.averages if config.averaging is None else config.averaging)


def round_seconds(cost: Cost, setting: Setting, speed: Speed) -> float:
    """The CPU time of a merge at the server, on average."""
    products = cost.products + _RECEIVED * setting.used
    return cost.trained * speed.trained() + cost.evaluated * speed.evaluated + products * speed.product


def diagnosis_seconds(config: Config, setting: Setting, speed: Speed) -> float:
    """The CPU time of one measurement of the diagnostics.

    Clients train; then the gradient on a client's data is computed once for each of them and twice for each arrival.
    Without data of the clients' task, two passes and a search are repeated on 1000 examples of it.
    """
    if config.diagnostics is None:
        return 0.0
    chosen = config.diagnostics.clients
    passes = chosen * (config.training.epochs + 1) + 2 * setting.used
    other = 3000 if setting.outside else 0
    return (passes * setting.client_examples + other) * speed.trained()


def time_of(
    schedule: Schedule, sizes: Sequence[int], setting: Setting, cost: Cost, config: Config, speed: Speed, on: Machine
) -> tuple[Time, int]:
    """The time of a run, and the largest number of finished updates that wait for their arrival."""
    jobs = [speed.job_of(sizes[job.client], config.training) for job in schedule.jobs]
    merge, test = round_seconds(cost, setting, speed), setting.test * speed.evaluated
    extra, every = diagnosis_seconds(config, setting, speed), config.diagnostics.every if config.diagnostics else 0
    rounds = range(1, config.rounds + 1)
    tests = [test * config.is_evaluated(number) for number in rounds]
    checks = [extra if every and number % every == 0 else 0.0 for number in rounds]
    server = [merge + tested + checked for tested, checked in zip(tests, checks, strict=True)]
    ahead = max(2 * on.workers, AHEAD_BYTES // (4 * setting.size))
    walked = walk(schedule.jobs, jobs, server, workers=on.workers, cores=on.cores, ahead=ahead)
    total = merge * config.rounds + sum(checks)
    return Time(on.start + walked.seconds, on.start, sum(jobs), total, sum(tests)), walked.waiting


def of_run(
    schedule: Schedule,
    examples: Sequence[int],
    setting: Setting,
    cost: Cost,
    config: Config,
    sizes: Sizes,
    measured: Measured,
    on: Machine,
) -> Estimate:
    """The estimate of a run on this machine."""
    time, waiting = time_of(schedule, examples, setting, cost, config, measured.speed, on)
    vector = 4 * sizes.parameters
    server = vector * server_vectors(schedule.traffic, cost, config)
    growth = measured.training or 0
    client = vector * 2 + growth
    run = None
    if on.memory is not None:
        shared = on.workers * (2 * sizes.message + _FORK + growth) + waiting * sizes.message
        own = max(measured.evaluation or 0, growth if cost.trained or not on.workers else 0)
        run = float(max(on.memory.peak, on.memory.now + server + own) + shared)
    checkpoint = largest_checkpoint(schedule, cost, config, sizes, time)
    return Estimate(
        network_of(schedule.traffic, sizes),
        Space(server, client, checkpoint, vector * cost.in_file, run),
        time,
    )


def checkpoint_rounds(config: Config, time: Time) -> list[int]:
    """The rounds after which a checkpoint is written."""
    every = config.checkpoint.every
    if every is None:
        every = round(_MINUTE / max((time.wall - time.start) / config.rounds, 1e-9)) + 1
    return list(range(every, config.rounds, every)) if every else []


def largest_checkpoint(schedule: Schedule, cost: Cost, config: Config, sizes: Sizes, time: Time) -> float:
    """The bytes of the folder while a checkpoint replaces another: the files of both. Equal files count once."""
    rounds = checkpoint_rounds(config, time)
    if not rounds:
        return 0.0
    vectors, pinned = 1 + averages_in(config) + cost.kept, schedule.pinned
    clients = [_reporters(schedule, round) if cost.cached or cost.in_file else set() for round in rounds]
    one = len(pinned[rounds[-1] - 1]) + vectors + len(clients[-1])
    both = [
        len(pinned[a - 1] | pinned[b - 1]) + 2 * vectors + len(late) + len(early & _reporters(schedule, b, since=a))
        for (a, b), (early, late) in zip(pairwise(rounds), pairwise(clients), strict=True)
    ]
    return sizes.message * max([one, *both])


def _reporters(schedule: Schedule, until: int, *, since: int = 0) -> set[int]:
    """The clients whose updates are used in rounds from `since` on and before `until`."""
    return {job.client for job in schedule.jobs if since <= job.due < until}
