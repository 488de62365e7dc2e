"""How a run is shown in Python: as text, as a table and as a curve."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feddle.core.errors import FeddleError
from feddle.core.metrics import main_metric, metric_named, reached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from feddle.run.run import Run

Lines = Sequence[Mapping[str, Any]]


def described(run: "Run[Any]") -> dict[str, str]:
    """The main facts of a run, as texts."""
    done, rounds, result = len(run.history), run.plan.rounds, run.result
    metric = metric_named(result["metric"])
    facts = {"method": run.method, "rounds": str(rounds) if done == rounds else f"{done} of {rounds}"}
    for name, words in ((metric.name, metric.words.lower()), (f"last_{metric.name}", f"last {metric.words.lower()}")):
        facts |= {} if result.get(name) is None else {words: metric.shown(result[name])}
    facts |= {"clients": str(len(run.problem.sizes)), "seconds": f"{run.seconds:.1f}"}
    return facts if run.folder is None else {**facts, "folder": str(run.folder)}


def as_frame(history: Lines) -> "DataFrame":
    """The history as a DataFrame with one row per round."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise FeddleError("frame() needs pandas; pip install pandas, or use run.history") from error
    return DataFrame(list(history)).set_index("round") if history else DataFrame()


def plot_history(history: Lines, label: str, axes: "Axes | None" = None) -> "Axes":
    """The main metric over rounds; the clients' training loss if there is no evaluation."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise FeddleError("plot() needs matplotlib; pip install 'feddle[figures]'") from error
    metric = main_metric(history)
    field, words = (metric.name, metric.words.lower()) if any(map(reached, history)) else ("loss", "loss")
    points = [(line["round"], line[field]) for line in history if line.get(field) is not None]
    if axes is None:
        axes = pyplot.subplots()[1]
    axes.plot([at for at, _ in points], [value for _, value in points], marker=".", label=label)
    axes.set(xlabel="round", ylabel=words)
    axes.legend()
    return axes


def is_stalled(history: Lines, patience: int) -> bool:
    """Whether none of the last `patience` evaluations is better by the main metric than the best one before them."""
    metric = main_metric(history)
    found = [line[metric.name] for line in history if metric.name in line]
    before = metric.best(found[:-patience])
    return before is not None and not any(metric.better(value, before) for value in found[-patience:])
