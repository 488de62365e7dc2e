"""Reporting a run to other tools while it runs: TensorBoard, MLflow."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from feddle.core.errors import FeddleError
from feddle.run.plan import Config
from feddle.run.run import Line, Listener

TrackerName = Literal["tensorboard", "mlflow"]


@contextmanager
def tracking(names: Sequence[TrackerName], folder: Path, config: Config, listener: Listener) -> Iterator[Listener]:
    """A listener that also reports every round to these tools. Each tool has a function below that opens it."""
    with ExitStack() as stack:
        opened = {"tensorboard": _tensorboard, "mlflow": _mlflow}
        listeners = [stack.enter_context(opened[name](folder, config)) for name in names]

        def report(line: Line) -> None:
            for each in (*listeners, listener):
                each(line)

        yield report


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a line of history except its round, including those in nested mappings, one level deep."""
    flat: dict[str, Any] = {}
    for key, value in line.items():
        flat |= {f"{key}.{inner}": found for inner, found in value.items()} if isinstance(value, dict) else {key: value}
    found = {key: float(v) for key, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {key: value for key, value in found.items() if key != "round"}


@contextmanager
def _tensorboard(folder: Path, config: Config) -> Iterator[Listener]:  # noqa: ARG001
    """Write event files to RUN/tensorboard; `tensorboard --logdir RUNS` shows them."""
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise FeddleError("--track tensorboard requires tensorboard; pip install 'feddle[tensorboard]'") from error
    with ExitStack() as stack:

        @cache
        def writer() -> Any:  # opened with the first round, because a run starts in an empty folder
            return stack.enter_context(closing(Writer(str(folder / "tensorboard"))))

        def report(line: Line) -> None:
            for key, value in numbers(line).items():
                writer().add_scalar(key, value, step=line["round"])

        yield report


@contextmanager
def _mlflow(folder: Path, config: Config) -> Iterator[Listener]:
    """Write a run of the experiment `feddle` to $MLFLOW_TRACKING_URI."""
    try:
        import mlflow
    except ImportError as error:
        raise FeddleError("--track mlflow requires mlflow; pip install 'feddle[mlflow]'") from error
    try:
        mlflow.set_experiment("feddle")
        mlflow.start_run(run_name=str(folder))
        mlflow.log_dict(config.model_dump(mode="json"), "config.yaml")
        mlflow.log_params({"method": config.method.name, "data": config.data.name, "seed": config.seed})
    except mlflow.exceptions.MlflowException as error:
        reason = " ".join(str(error).split())
        raise FeddleError(f"MLflow reported an error: {reason}; check MLFLOW_TRACKING_URI") from error
    try:
        yield lambda line: mlflow.log_metrics(numbers(line), step=line["round"])
    finally:
        mlflow.end_run()
