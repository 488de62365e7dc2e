"""Text from a table: which column is text, tokens from the model's own tokenizer, and errors."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets as hf
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from command import run_feddle
from feddle.core.errors import FeddleError
from feddle.data.collection import Collection, Texts
from feddle.data.options import Data, read_data
from feddle.models.transformers import tokenise
from feddle.run.folder import run_config
from feddle.run.load import parse_config
from feddle.run.plan import Config
from feddle.run.problem import build_problem
from feddle.run.simulate import simulated
from feddle.run.trained import predict

WORDS = ("[PAD]", "[UNK]", "the", "sun", "rain", "shines", "falls", "today", "warm", "cold")
ROWS = [("the sun shines", "good", "a"), ("rain falls", "bad", "a"), ("warm today", "good", "b"), ("cold", "bad", "b")]


def text_model(folder: Path) -> Path:
    """A tiny BERT with a tokenizer of a few words, saved by transformers."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, **sizes)).save_pretrained(folder)  # type: ignore[no-untyped-call]
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106 - a token of text
    words.pre_tokenizer = Whitespace()
    options = {"unk_token": "[UNK]", "pad_token": "[PAD]", "model_max_length": 8}
    PreTrainedTokenizerFast(tokenizer_object=words, **options).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def write(path: Path, rows: Sequence[Sequence[str]], header: str = "text,label,client") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


def opened(path: Path, name: str = "csv", **columns: str) -> Collection:
    return read_data(Data.model_validate({"name": name, "path": str(path), "columns": columns}))


def config_of(path: Path, model: Path | None, **data: Any) -> Config:
    tree: dict[str, Any] = {
        "rounds": 8,
        "workers": 0,
        "clients": {"count": 4, "per_round": 2},
        "data": {"name": "csv", "path": str(path), **data},
        "training": {"lr": 0.03, "epochs": 4, "batch_size": 8},
        "delays": {"sigma": 0.0},
        "method": {"name": "fedbuff", "buffer_size": 2},
    }
    if model is not None:
        tree["model"] = {"name": "transformers", "path": str(model), "lora": {"rank": 2}}
    return parse_config(tree)


def test_tokens_are_those_of_the_models_tokenizer(tmp_path: Path) -> None:
    # the = 2, sun = 3, shines = 5; snow is unknown (1); shorter texts are padded with 0
    folder = text_model(tmp_path / "model")
    assert tokenise(folder, ["the sun shines", "snow"], 5).tolist() == [[2, 3, 5], [1, 0, 0]]
    assert tokenise(folder, ["the sun shines", "snow"], 2).tolist() == [[2, 3], [1, 0]]
    assert tokenise(folder, ["sun " * 20], 50).shape == (1, 8)  # the model has no more positions


def test_a_table_with_a_text_column_is_text(tmp_path: Path) -> None:
    found = opened(write(tmp_path / "mine.csv", ROWS))
    assert isinstance(found.train.images, Texts)
    assert found.train.images.texts == tuple(text for text, *_ in ROWS)
    assert (found.train.labels.tolist(), found.names) == ([1, 0, 1, 0], ("bad", "good"))
    assert found.train.owners is not None
    assert found.train.owners.tolist() == [0, 0, 1, 1]


def test_an_image_column_takes_precedence_unless_the_text_column_is_named(tmp_path: Path) -> None:
    rows = [(f"{i}.png", *row) for i, row in enumerate(ROWS)]
    path = write(tmp_path / "mine.csv", rows, "path,text,label,client")
    with pytest.raises(FeddleError, match=r"no image file .*0\.png"):
        opened(path)
    assert isinstance(opened(path, text="text").train.images, Texts)
    named = write(tmp_path / "other.csv", ROWS, "words,label,client")
    with pytest.raises(FeddleError, match=r"no column path or image .* has words, label, client"):
        opened(named)
    assert isinstance(opened(named, text="words").train.images, Texts)


def test_a_hugging_face_dataset_of_text(tmp_path: Path) -> None:
    columns = dict(zip(("text", "label", "client"), zip(*ROWS, strict=True), strict=True))
    hf.Dataset.from_dict({name: list(values) for name, values in columns.items()}).save_to_disk(tmp_path / "mine")
    found = opened(tmp_path / "mine", "huggingface")
    assert isinstance(found.train.images, Texts)
    assert found.train.images.texts == columns["text"]


def test_a_line_without_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FeddleError, match="line 3 has no text"):
        opened(write(tmp_path / "mine.csv", [ROWS[0], ("", "bad", "a"), *ROWS[2:]]))


def test_mistakes_are_reported_in_one_line(tmp_path: Path) -> None:
    path, model = write(tmp_path / "mine.csv", ROWS * 10), text_model(tmp_path / "model")
    with pytest.raises(FeddleError, match=r"mine.csv holds text, but the model is cnn; set model.name to transformers"):
        build_problem(config_of(path, None))
    with pytest.raises(FeddleError, match=r"data\.augmentation is for images"):
        build_problem(config_of(path, model, augmentation="crop-flip"))
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(FeddleError, match=r"cannot tokenise text with the model in .*; set model.path") as error:
        build_problem(config_of(path, model))
    assert "\n" not in str(error.value)


def test_a_classifier_with_adapters_learns_from_a_table(tmp_path: Path) -> None:
    rows = [(text, label, f"client {i % 4}") for i, (text, label, _) in enumerate(ROWS * 30)]
    config = config_of(write(tmp_path / "mine.csv", rows), text_model(tmp_path / "model"))
    problem = build_problem(config)
    inputs, _ = problem.clients[0].take(torch.arange(3))
    assert (inputs.dtype, inputs.shape) == (torch.int64, (3, 3))
    run = simulated(config, problem)
    run.go()
    assert run.history[-1]["accuracy"] > 0.9


def test_the_command_line_runs_a_table_of_text(tmp_path: Path) -> None:
    path, model = write(tmp_path / "mine.csv", ROWS * 10), text_model(tmp_path / "model")
    model_options = ("-o", "model.name=transformers", "-o", f"model.path={model}", "-o", "model.lora={}")
    short = ("-o", "rounds=2", "-o", "workers=0", "-o", "training.epochs=1")
    result = run_feddle("run", "--data", path, *model_options, *short, "--out", tmp_path / "run")
    assert result.code == 0, result.text
    assert "40 texts of 2 classes, 2 clients in the data" in result.text
    assert (tmp_path / "run" / "result.json").is_file()


def test_predictions_for_a_table_of_texts(tmp_path: Path) -> None:
    model = text_model(tmp_path / "model")
    table = write(tmp_path / "table.csv", [row for row in ROWS for _ in range(10)])
    run_config(config_of(table, model), tmp_path / "run", quiet=True)
    new = write(tmp_path / "new.csv", [["the sun shines", "x"], ["rain falls", "y"]], header="sentence,note")
    found = predict(tmp_path / "run", new)
    assert [(each.image, each.class_name) for each in found] == [("the sun shines", "good"), ("rain falls", "bad")]
    bad = write(tmp_path / "bad.csv", [["x"]], header="words")
    result = run_feddle("predict", tmp_path / "run", bad)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"feddle: {bad} has no column text or sentence; it has words; rename the column of the texts\n"
    assert run_feddle("predict", tmp_path / "run", tmp_path).err.startswith(f"feddle: there is no file {tmp_path}; the")
