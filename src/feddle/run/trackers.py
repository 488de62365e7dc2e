"""Reporting a run to other tools while it runs: TensorBoard, MLflow, Weights & Biases."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from feddle.core.errors import FeddleError
from feddle.records import finite
from feddle.run.plan import Config
from feddle.run.run import Line, Listener

TrackerName = Literal["tensorboard", "mlflow", "wandb"]


@contextmanager
def tracking(names: Sequence[TrackerName], folder: Path, config: Config, listener: Listener) -> Iterator[Listener]:
    """A listener that also reports every round to these tools. Each tool has a function below that opens it."""
    tools = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
    listeners = []
    with ExitStack() as stack:
        for name in names:
            try:
                listeners.append(stack.enter_context(tools[name](folder, config)))
            except ImportError as error:
                raise FeddleError(f"--track {name} requires {name}; pip install 'feddle[{name}]'") from error

        def report(line: Line) -> None:
            for each in (*listeners, listener):
                each(line)

        yield report


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a line of history except its round, including those in nested mappings, one level deep."""
    parts = {key: value for key, value in line.items() if isinstance(value, dict)}
    nested = {f"{key}.{inner}": value for key, part in parts.items() for inner, value in part.items()}
    found = {key: finite(value) for key, value in {**line, **nested}.items() if key != "round"}
    return {key: value for key, value in found.items() if value is not None}


@contextmanager
def _tensorboard(folder: Path, config: Config) -> Iterator[Listener]:  # noqa: ARG001
    """Write event files to RUN/tensorboard; `tensorboard --logdir RUNS` shows them."""
    from tensorboard.summary import Writer

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
    import mlflow

    try:
        mlflow.set_experiment("feddle")
        run = mlflow.start_run(run_name=str(folder))
        mlflow.log_dict(config.model_dump(mode="json"), "config.yaml")
        mlflow.log_params({"method": config.method.name, "data": config.data.name, "seed": config.seed})
    except mlflow.exceptions.MlflowException as error:
        reason = " ".join(str(error).split())
        raise FeddleError(f"MLflow reported an error: {reason}; check MLFLOW_TRACKING_URI") from error
    with run:
        yield lambda line: mlflow.log_metrics(numbers(line), step=line["round"])


@contextmanager
def _wandb(folder: Path, config: Config) -> Iterator[Listener]:
    """Write a run of the project `feddle` to Weights & Biases; $WANDB_MODE=offline keeps it in $WANDB_DIR."""
    import wandb

    try:
        settings = wandb.Settings(console="off")  # it would capture the progress bars
        run = wandb.init(project="feddle", name=str(folder), config=config.model_dump(mode="json"), settings=settings)
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise FeddleError(f"W&B reported an error: {reason}; run `wandb login` or set WANDB_MODE=offline") from error
    with run:
        yield lambda line: run.log(numbers(line), step=line["round"])
