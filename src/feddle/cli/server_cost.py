"""`feddle reproduce server-cost`: what a round costs the server, ours beside the paper's."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import click
from rich import table as terminal
from rich.console import Console

from feddle.core.durable import write_whole
from feddle.report.markup import element
from feddle.report.page import document, html_table, write_document
from feddle.report.tables import Entry, Row, Table

_HEADS = ("method", "GFLOPs", "paper", "cached MB", "paper")
_KEPT = "costs.json"
NOTE = (
    "The paper’s setting: ViT-B/16 with rank-4 adapters in every linear layer, 1000 clients, 50 a round and all "
    "in time, atlas and buffer of 100; methods that train at the server go over 10,000 images a round (1000 "
    "images, 10 epochs, batches of 32). GFLOPs: counted while each method merges; a multiplication and an "
    "addition are two. Products of matrices are counted everywhere, sums and scalings of tensors too, "
    "normalisation and activations not. Cached: the whole network and what the method keeps between rounds, the "
    "most after any round once every client has reported; updates are adapters and head (2.4 MB), never the "
    "whole network, which the paper counts for CA2FL. Its Feddle holds 50 adapters in the text and 100 in the "
    "setting; ours 100. FedDF asks each teacher once a round for each image; the paper’s number fits once an "
    "epoch. FedBuff keeps the sum of its buffer, not the updates in it."
)


def show_server_cost(out: Path, *, listing: bool) -> None:
    """Count what has not been counted yet, print the table, write it as a page and as CSV."""
    from feddle.grids.cost import METHODS, measure

    if listing:
        click.echo(
            "server-cost: counts the merge of " + ", ".join(METHODS) + "; a few minutes on one core, feddf the longest"
        )
        return
    kept = out / _KEPT
    known = json.loads(kept.read_text()) if kept.exists() else {}
    out.mkdir(parents=True, exist_ok=True)
    for method in METHODS:
        if method not in known:
            click.echo(f"counting {method}", err=True)
            known[method] = asdict(measure(method))
            write_whole(kept, json.dumps(known, indent=1).encode())
    rows = [_texts(known[method]) for method in METHODS]
    table = terminal.Table(*_HEADS, box=None)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    with (out / "server-cost.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(next(iter(known.values()))))
        writer.writeheader()
        writer.writerows(known.values())
    click.echo(f"Report: {write_document(_page(rows), out / 'report.html')}")


def _texts(cost: dict[str, float]) -> tuple[str, ...]:
    numbers = (cost[key] for key in ("gflops", "paper_gflops", "cache_mb", "paper_cache_mb"))
    return (str(cost["method"]), *(f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in numbers))


def _page(rows: list[tuple[str, ...]]) -> str:
    title, heads = _HEADS[0].capitalize(), _HEADS[1:]
    shown = [Row(method, list(map(Entry, heads, texts))) for method, *texts in rows]
    table = html_table(Table(title, heads, shown), [NOTE], " cells")
    title = "What a round costs the server"
    again = element("ul", element("li", element("code", "feddle reproduce server-cost")), class_="commands")
    return document(
        title,
        [
            element("header", element("h1", title), element("p", "Ours beside the paper’s.", class_="lead")),
            element("section", table),
            element("section", element("h2", "Run again"), again),
        ],
    )
