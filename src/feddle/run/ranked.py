"""A run whose search several processes share, as torchrun starts them: rank 0 runs it, and the others follow."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from feddle.core.errors import FeddleError, StoppedError
from feddle.core.launched import count_here, has_agent, is_first_to_follow
from feddle.core.layout import Layout
from feddle.core.ranks import EndError, LostRankError, Ranks
from feddle.records import json_digest
from feddle.run.plan import Config, SimulationPlan
from feddle.run.problem import Problem, build_problem
from feddle.run.run import build_server, resolve_device
from feddle.training.machine import one_thread
from feddle.training.ranked import Member, SharedObjective, follow
from feddle.version import __version__


@contextmanager
def all_ranks() -> Iterator[Ranks | None]:
    """The ranks of this run, None without torchrun. When this process ends or fails, the others end too."""
    if count_here() == 1:
        yield None
        return
    ranks = Ranks.join()
    try:
        with _leading(ranks) if ranks.rank == 0 else _following(ranks):
            yield ranks
    finally:
        ranks.leave()


@contextmanager
def _leading(ranks: Ranks) -> Iterator[None]:
    """At rank 0: end the others. torchrun asks a rank to end (SIGTERM) when another one has failed."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; torchrun kills what does not end
        raise StoppedError("another rank has ended, or torchrun was stopped (SIGTERM)")

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the error is being reported to the user
        ranks.end(2, str(error))
        raise
    ranks.end(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _following(ranks: Ranks) -> Iterator[None]:
    """At the other ranks: end silently with rank 0, or report an error of this rank to it.

    If rank 0 was killed, one of the others reports that. torchrun asks them to end (SIGTERM) at the same time.
    """

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise LostRankError("torchrun has stopped this rank")

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which then ends the others
    if has_agent():
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except EndError as end:
        raise SystemExit(end.code) from None
    except LostRankError as error:
        if has_agent() and is_first_to_follow():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun waits for 30 seconds before it kills
            if not ranks.rank_0_reports():
                remedy = "its last checkpoint remains; to continue: feddle resume with the folder of the run"
                raise StoppedError(
                    f"rank 0 has ended without a message: it was killed, or is lost; {remedy}"
                ) from error
        raise SystemExit(2) from None
    except (FeddleError, OSError, MemoryError) as error:
        if not ranks.agreed:
            ranks.end(2, str(error))
        else:
            raise FeddleError(f"rank {ranks.rank}: {str(error) or type(error).__name__}") from error
        raise SystemExit(2) from None


def follow_config(config: Config, ranks: Ranks) -> None:
    """At the other ranks: build the same model and data as rank 0, and serve its searches."""
    member = _member(config, ranks)
    with one_thread():
        follow(member)


def _member(config: Config, ranks: Ranks) -> Member:
    """What this rank holds. The clients' data is freed when this returns."""
    problem = build_problem(config, quiet=True)
    layout, device = Layout.of(problem.model), resolve_device(config.device)
    server = build_server(config, problem, layout, device, scratch=Path(tempfile.gettempdir()), ranks=ranks)
    objective = server.strategy.objective  # type: ignore[attr-defined]  # only methods that search come here
    assert isinstance(objective, SharedObjective)
    ranks.agree(digests(config, problem, layout))
    return objective.member


def digests(plan: SimulationPlan, problem: Problem, layout: Layout) -> dict[str, str]:
    """What must be the same at all ranks. The number of workers may differ."""
    return {
        "feddle": __version__,
        "torch": torch.__version__,
        "config": json_digest(plan.model_dump(mode="json", exclude={"workers"})),
        "model": layout.digest,
        "data": problem.digest or "",
    }
