"""Classifiers of the transformers library, whole or with peft's adapters, from a folder on this machine."""

import inspect
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from feddle.core.errors import FeddleError, one_line
from feddle.data.source import find_file
from feddle.models.checkpoints import config_of_timm, in_words, read_checkpoint, state_from_timm
from feddle.models.options import ModelOptions
from feddle.models.pretrained import Standardise
from feddle.models.weights import WEIGHTS, FetchedWeights, ModelFolder, named
from feddle.options import Count, Options, Positive, Share, is_none

_QUERY_AND_VALUE = ("q_proj", "v_proj", "query", "value", "q_lin", "v_lin", "q", "v", "qkv", "c_attn")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}  # no download from a hub, and no code from the folder
_LENGTH = 64  # tokens per text
_HALVES = (0.5, 0.5, 0.5)  # mean and deviation that leave images in [−1, 1] as they are


class Adapters(Options):
    """Low-rank adapters (peft): only the adapters and the head are trained, sent and merged."""

    rank: Count = Field(4, description="rank of the product BA that an adapter adds to a weight matrix")
    alpha: Positive = Field(8.0, description="scale of the adapters: the product BA is multiplied by alpha/rank")
    dropout: Share = Field(0.0, description="share of an adapter's inputs that are set to zero in training")
    target_modules: tuple[str, ...] | str | None = Field(
        None,
        description="layers that get an adapter: the ends of their names, or a regular expression; by default the "
        "query and value layers of attention",
    )
    options: dict[str, Any] = Field({}, description="any other fields of peft's `LoraConfig`")


class TransformersOptions(ModelOptions):
    """A classifier of the transformers library; needs `feddle[transformers]`."""

    name: Literal["transformers"] = "transformers"
    path: str = Field(
        description="folder with `config.json` and safetensors (Hugging Face's layout, or timm's for a ViT); a name is "
        "also looked up in `feddle weights list` and in the folder `weights` of the cache"
    )
    lora: Adapters | None = Field(
        None, description="low-rank adapters; by default none, so every layer is trained; `{}` for the default adapters"
    )

    length: Count | None = Field(
        None,
        exclude_if=is_none,
        description="largest number of tokens of a text, the rest is cut off; by default 64; only for text",
    )

    def weights(self) -> FetchedWeights | ModelFolder:
        fetched = any(self.path == source.name and source.config for source in WEIGHTS)
        return named(self.path) if fetched else ModelFolder(self.path)

    def build(self, classes: int, image_size: int, channels: int, *, quiet: bool = False) -> nn.Module:
        source = self.weights()
        source.fetch(quiet=quiet)
        return load_classifier(source.place, classes, self.lora, image_size=image_size, channels=channels)

    def tokens(self, texts: Sequence[str], *, quiet: bool = False) -> Tensor:
        """The token ids (n, length) of texts, from the model's own tokenizer."""
        source = self.weights()
        source.fetch(quiet=quiet)
        return tokenise(source.place, texts, self.longest)

    @property
    def longest(self) -> int:
        """The largest number of tokens of a text."""
        return self.length or _LENGTH


class Classifier(nn.Module):
    """A transformers classifier that takes a batch as one tensor: images (n, C, H, W), or token ids (n, length)."""

    def __init__(self, model: nn.Module, *, inputs: nn.Module | None, padding: int | None, resized: bool) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs  # for images; None for text
        self.padding = padding
        self.extra: dict[str, Any] = {"interpolate_pos_encoding": True} if resized else {}

    def forward(self, batch: Tensor) -> Tensor:
        """A batch to logits (n, classes)."""
        if self.inputs is not None:
            outputs = self.model(pixel_values=self.inputs(batch), **self.extra)
        elif batch.is_floating_point():
            raise FeddleError(f"{type(self.model).__name__} reads text: it takes token ids (n, length), got floats")
        else:
            mask = None if self.padding is None else (batch != self.padding).long()
            outputs = self.model(input_ids=batch, attention_mask=mask)
        logits: Tensor = outputs.logits
        return logits


def load_classifier(
    folder: Path, classes: int, adapters: Adapters | None = None, *, image_size: int | None = None, channels: int = 3
) -> Classifier:
    """The classifier in a folder, with a new head; with adapters, everything except them and the head is frozen.

    The folder holds config.json and safetensors, in Hugging Face's layout or, for a ViT, in timm's.
    """
    transformers = _import("transformers")
    settings = _read_table(folder / "config.json")
    try:
        with _silent(transformers):
            model, loading = _load(transformers, folder, settings, classes)
    except Exception as error:  # a damaged file makes the library raise errors of many kinds
        failed = f"transformers cannot load the model in {folder} ({in_words(error)})"
        raise FeddleError(f"{failed}; save it again with transformers, or set model.path to another folder") from error
    fresh = _check(model, loading, folder)
    if adapters is not None:
        _add_adapters(model, adapters, fresh, folder)
    if type(model.config) not in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING:
        return Classifier(model, inputs=None, padding=getattr(model.config, "pad_token_id", None), resized=False)
    expected = getattr(model.config, "num_channels", 3)
    if channels != expected:
        raise FeddleError(f"the model in {folder} takes {expected} channels, got {channels}; set data.channels")
    resizable = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    resized = resizable and image_size not in (None, getattr(model.config, "image_size", None))
    inputs = Standardise(*_mean_and_deviation(folder, channels))
    return Classifier(model, inputs=inputs, padding=None, resized=resized)


def tokenise(folder: Path, texts: Sequence[str], length: int) -> Tensor:
    """Token ids (n, at most `length`) of texts by the tokenizer in a folder; shorter texts are padded."""
    transformers = _import("transformers")
    try:
        with _silent(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_LOCAL)
            most = min(length, tokenizer.model_max_length)
            made = tokenizer(list(texts), padding=True, truncation=True, max_length=most, return_tensors="pt")
    except Exception as error:  # a damaged file makes the library raise errors of many kinds
        failed = f"transformers cannot tokenise text with the model in {folder} ({in_words(error)})"
        raise FeddleError(f"{failed}; set model.path to a text model that was saved with its tokenizer") from error
    ids: Tensor = made["input_ids"]
    return ids


def _load(transformers: Any, folder: Path, settings: Mapping[str, Any], classes: int) -> tuple[Any, Any]:
    """A transformers classifier with the folder's weights and a fresh head; and transformers' report on the loading."""
    if "architecture" in settings and "model_type" not in settings:  # timm's names
        state = read_checkpoint(find_file(folder, "model.safetensors"))
        config = transformers.ViTConfig(**config_of_timm(state, settings), num_labels=classes)
        kind, place, weights = transformers.ViTForImageClassification, None, state_from_timm(state)
    else:
        config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL, num_labels=classes)
        images = type(config) in transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
        name = "ImageClassification" if images else "SequenceClassification"
        kind, place, weights = getattr(transformers, f"AutoModelFor{name}"), folder, None
    model, loading = kind.from_pretrained(
        place,
        config=config,
        state_dict=weights,
        ignore_mismatched_sizes=True,  # of the head; `_check` checks the rest
        output_loading_info=True,
        dtype=torch.float32,
        use_safetensors=True,  # never a pickle
        **_LOCAL,
    )
    for _, module in _outside_base(model):  # a head that came with the weights is of another task
        model._init_weights(module)
    return model, loading


def _check(model: Any, loading: Mapping[str, Any], folder: Path) -> set[str]:
    """Refuse weights that do not fit. Returns the names of missing weights that are allowed: those of a pooler."""
    base = f"{model.base_model_prefix}."
    if not any(name.startswith(base) for name, _ in model.named_parameters()):
        raise FeddleError(f"the model in {folder} cannot be separated from its head: it has no part called {base[:-1]}")
    # the mask token is only for pretraining
    missing = {n for n in loading["missing_keys"] if n.startswith(base) and not n.endswith("mask_token")}
    fresh = {n for n in missing if ".pooler." in n}
    wrong = sorted((missing - fresh) | {n for n, *_ in loading["mismatched_keys"] if n.startswith(base)})
    if wrong:
        reason = f"{wrong[0]} is missing or has the wrong shape"
        raise FeddleError(f"the weights in {folder} do not fit its config.json: {reason}; save the model again")
    return fresh


def _outside_base(model: Any) -> list[tuple[str, nn.Module]]:
    base = f"{model.base_model_prefix}."
    return [(name, module) for name, module in model.named_modules() if name and not f"{name}.".startswith(base)]


def _add_adapters(model: Any, adapters: Adapters, fresh: set[str], folder: Path) -> None:
    """Freeze the model and add adapters; the head and weights that were missing stay trainable."""
    peft = _import("peft")
    targets = adapters.target_modules if adapters.target_modules is not None else _query_and_value(model, folder)
    # the head is trained itself
    options = {"exclude_modules": [name for name, _ in _outside_base(model)], **adapters.options}
    widest = max(max(parameter.shape, default=0) for parameter in model.parameters())
    if adapters.rank > widest:
        above = f"model.lora.rank is {adapters.rank}, above the {widest} numbers of the widest layer in {folder}"
        raise FeddleError(f"{above}; a rank from 1 to 64 is usual")
    try:
        config = peft.LoraConfig(
            r=adapters.rank,
            lora_alpha=adapters.alpha,
            lora_dropout=adapters.dropout,
            target_modules=targets if isinstance(targets, str) else list(targets),
            **options,
        )
        peft.inject_adapter_in_model(config, model)
    except Exception as error:  # peft accepts any option, and detects an invalid value late
        wrong = f"model.lora does not fit the model in {folder} ({in_words(error)})"
        raise FeddleError(f"{wrong}; correct its target_modules or options") from error
    base = f"{model.base_model_prefix}."
    for name, parameter in model.named_parameters():
        if not name.startswith(base) or name.replace(".base_layer", "") in fresh:
            parameter.requires_grad_(True)


def _query_and_value(model: nn.Module, folder: Path) -> list[str]:
    """The names of attention's query and value layers in this model."""
    ends = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found = [name for name in _QUERY_AND_VALUE if name in ends]
    if not found:
        others = ", ".join(sorted(ends)[:4])
        raise FeddleError(f"{folder} has no layers query and value; set model.lora.target_modules, such as {others}")
    return found


def _mean_and_deviation(folder: Path, channels: int) -> list[Sequence[float]]:
    """The statistics of the images that the weights were trained on; ViT's if the folder has none."""
    files = folder / "preprocessor_config.json", folder / "config.json"
    file = next(file for file in files if file.is_file())
    settings = _read_table(file)
    inner = settings.get("pretrained_cfg")  # in timm's layout
    settings = inner if isinstance(inner, dict) else settings
    statistics = []
    for key, least in (("mean", -math.inf), ("std", 0.0)):
        values = settings.get(f"image_{key}", settings.get(key)) or _HALVES
        listed = isinstance(values, list | tuple) and len(values) in (1, channels)
        if not listed or not all(type(v) in (int, float) and least < v < math.inf for v in values):
            wrong = f"image_{key} should be a list of {channels} numbers{' above 0' if least == 0 else ''}"
            raise FeddleError(f"{file}: {wrong}, got {one_line(str(values), 60)}; correct it, or save the model again")
        statistics.append(values)
    return statistics


def _read_table(file: Path) -> dict[str, Any]:
    """The settings in a JSON file."""
    if not file.is_file():
        raise FeddleError(f"there is no {file}; set model.path to a folder that transformers saved")
    try:
        settings = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise FeddleError(f"{file} is not valid JSON: {error}; save the model again") from error
    if not isinstance(settings, dict):
        raise FeddleError(f"{file} must hold a table of settings, got {type(settings).__name__}; save the model again")
    return settings


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise FeddleError(f"model: transformers needs {name}; pip install 'feddle[transformers]'") from error


@contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Hide the progress bars, reports and warnings of the library; `_check` checks what matters in them."""
    logging = transformers.utils.logging
    with warnings.catch_warnings(action="ignore"), ExitStack() as restored:
        restored.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            restored.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
