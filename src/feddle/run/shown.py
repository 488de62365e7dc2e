"""A run for people who use Python: words, a table and a curve."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feddle.core.errors import FeddleError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from feddle.run.run import Run

Lines = Sequence[Mapping[str, Any]]


def described(run: "Run[Any]") -> dict[str, str]:
    """The main facts of a run, as texts."""
    done, rounds, accuracy = len(run.history), run.plan.rounds, run.result["accuracy"]
    facts = {"method": run.method, "rounds": str(rounds) if done == rounds else f"{done} of {rounds}"}
    if accuracy is not None:
        facts |= {"accuracy": f"{accuracy:.1%}", "last accuracy": f"{run.result['last_accuracy']:.1%}"}
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
    """Accuracy over rounds; the clients' training loss if accuracy was not measured."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise FeddleError("plot() needs matplotlib; pip install 'feddle[figures]'") from error
    field = "accuracy" if any("accuracy" in line for line in history) else "loss"
    points = [(line["round"], line[field]) for line in history if line.get(field) is not None]
    if axes is None:
        axes = pyplot.subplots()[1]
    axes.plot([at for at, _ in points], [value for _, value in points], marker=".", label=label)
    axes.set(xlabel="round", ylabel=field)
    axes.legend()
    return axes


def is_stalled(history: Lines, patience: int) -> bool:
    """Whether the last `patience` evaluations were all no better than one before them.

    Better is a higher accuracy, or a lower test loss if there is no accuracy.
    """
    found = [line.get("accuracy", -line["test_loss"]) for line in history if "test_loss" in line]
    return len(found) > patience and max(found[-patience:]) <= max(found[:-patience])
