"""Reporting a run to other tools while it runs: TensorBoard, MLflow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from feddle.core.errors import FeddleError
from feddle.run.plan import Config

TrackerName = Literal["tensorboard", "mlflow"]
Listener = Callable[[dict[str, Any]], None]


class Tracker(Protocol):
    """Receives the history of a run. To add one, write a class with these two methods and a line in `open_tracker`."""

    def line(self, line: Mapping[str, Any]) -> None:
        """Report a round; `line` is its line of history."""

    def close(self) -> None:
        """Finish: there are no more rounds."""


def open_tracker(name: TrackerName, folder: Path, config: Config) -> Tracker:
    """The tracker of this name for the run in `folder`."""
    return _TensorBoard(folder) if name == "tensorboard" else _MLflow(folder, config)


@contextmanager
def tracking(names: Sequence[TrackerName], folder: Path, config: Config, listener: Listener) -> Iterator[Listener]:
    """A listener that also reports every round to these trackers."""
    with ExitStack() as stack:
        trackers = [stack.enter_context(closing(open_tracker(name, folder, config))) for name in names]

        def report(line: dict[str, Any]) -> None:
            for tracker in trackers:
                tracker.line(line)
            listener(line)

        yield report


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a line of history, including those in nested mappings, one level deep."""
    flat: dict[str, Any] = {}
    for key, value in line.items():
        flat |= {f"{key}.{inner}": found for inner, found in value.items()} if isinstance(value, dict) else {key: value}
    return {key: float(v) for key, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}


class _TensorBoard:
    """Writes event files to RUN/tensorboard; `tensorboard --logdir RUNS` shows them."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise FeddleError("--track tensorboard requires tensorboard; pip install 'feddle[tensorboard]'") from error
        self._writer = Writer(str(folder / "tensorboard"))

    def line(self, line: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        for key, value in numbers(line).items():
            if key != "round":
                self._writer.add_scalar(key, value, step=line["round"])

    def close(self) -> None:
        """See `Tracker`."""
        self._writer.close()


class _MLflow:
    """Writes a run of the experiment `feddle` to $MLFLOW_TRACKING_URI."""

    def __init__(self, folder: Path, config: Config) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise FeddleError("--track mlflow requires mlflow; pip install 'feddle[mlflow]'") from error
        self._mlflow = mlflow
        try:
            mlflow.set_experiment("feddle")
            mlflow.start_run(run_name=str(folder))
            mlflow.log_dict(config.model_dump(mode="json"), "config.yaml")
            mlflow.log_params({"method": config.method.name, "data": config.data.name, "seed": config.seed})
        except mlflow.exceptions.MlflowException as error:
            reason = " ".join(str(error).split())
            raise FeddleError(f"MLflow reported an error: {reason}; check MLFLOW_TRACKING_URI") from error

    def line(self, line: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        self._mlflow.log_metrics({k: v for k, v in numbers(line).items() if k != "round"}, step=line["round"])

    def close(self) -> None:
        """See `Tracker`."""
        self._mlflow.end_run()
