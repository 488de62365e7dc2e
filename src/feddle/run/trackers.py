"""Telling other tools of a run as it goes on: TensorBoard, MLflow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, assert_never

from feddle.core.errors import FeddleError
from feddle.run.plan import Config

TrackerName = Literal["tensorboard", "mlflow"]
Listener = Callable[[dict[str, Any]], None]


class Tracker(Protocol):
    """What hears of a run; a new one is a class with these two methods and a case in `open_tracker`."""

    def line(self, line: Mapping[str, Any]) -> None:
        """A round is done; `line` is its line of history."""

    def close(self) -> None:
        """There will be no more rounds."""


def open_tracker(name: TrackerName, folder: Path, config: Config) -> Tracker:
    """The tracker of this name for the run in `folder`."""
    match name:
        case "tensorboard":
            return _TensorBoard(folder)
        case "mlflow":
            return _MLflow(folder, config)
        case _:
            assert_never(name)


@contextmanager
def tracking(names: Sequence[TrackerName], folder: Path, config: Config, listener: Listener) -> Iterator[Listener]:
    """A listener that tells these trackers of every round too."""
    trackers = [open_tracker(name, folder, config) for name in names]

    def told(line: dict[str, Any]) -> None:
        for tracker in trackers:
            tracker.line(line)
        listener(line)

    try:
        yield told
    finally:
        for tracker in trackers:
            tracker.close()


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """What a line of history holds that can be drawn over rounds: its numbers, also those one level below."""
    flat: dict[str, Any] = {}
    for key, value in line.items():
        flat |= {f"{key}.{inner}": found for inner, found in value.items()} if isinstance(value, dict) else {key: value}
    return {key: float(v) for key, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}


class _TensorBoard:
    """Event files in RUN/tensorboard; `tensorboard --logdir RUNS` shows them."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise FeddleError("--track tensorboard needs it installed; pip install 'feddle[tensorboard]'") from error
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
    """A run of the experiment `feddle`, where $MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: Path, config: Config) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise FeddleError("--track mlflow needs it installed; pip install 'feddle[mlflow]'") from error
        self._mlflow = mlflow
        try:
            mlflow.set_experiment("feddle")
            mlflow.start_run(run_name=str(folder))
            mlflow.log_dict(config.model_dump(mode="json"), "config.yaml")
            mlflow.log_params({"method": config.method.name, "data": config.data.name, "seed": config.seed})
        except mlflow.exceptions.MlflowException as error:
            reason = " ".join(str(error).split())
            raise FeddleError(f"MLflow refuses ({reason}); set MLFLOW_TRACKING_URI to where it should write") from error

    def line(self, line: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        self._mlflow.log_metrics({k: v for k, v in numbers(line).items() if k != "round"}, step=line["round"])

    def close(self) -> None:
        """See `Tracker`."""
        self._mlflow.end_run()
