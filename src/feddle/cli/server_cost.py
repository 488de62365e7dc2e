"""`feddle reproduce server-cost`: what a round costs the server, compared with the paper."""

import json
from pathlib import Path

import click

from feddle.cli.display import print_table
from feddle.core.durable import write_whole
from feddle.report.files import csv_text
from feddle.report.markup import element
from feddle.report.page import commands_section, document, html_table, write_document
from feddle.report.tables import Entry, Row, Table

_HEADS = ("method", "GFLOPs", "paper", "cached MB", "paper")
_KEPT = "costs.json"
NOTE = (
    "The paper’s setting: ViT-B/16 with rank-4 adapters in every linear layer, 1000 clients, 50 updates per round"
    " without delays, atlas and buffer of 100. Methods that train at the server process 10,000 images per round (1000"
    " images, 10 epochs, batches of 32). GFLOPs: counted while each method merges; a multiplication and an addition are"
    " two operations. Matrix products, sums and scalings are counted; normalisation and activations are not. Cached MB:"
    " the whole network and the state of the method between rounds, at its largest. An update has the adapters and the"
    " head (2.4 MB); for CA2FL the paper counts the whole network instead. Feddle holds 100 adapters here; the paper’s"
    " text says 50, its setting 100. FedDF evaluates each teacher once per image and round; the paper’s number fits one"
    " evaluation per epoch. FedBuff keeps the sum of its buffer, not the updates."
)


def show_server_cost(out: Path, *, listing: bool) -> None:
    """Count the methods that have not been counted, print the table, and write it as a page and as CSV."""
    from feddle.grids.cost import METHODS, measure

    if listing:
        click.echo(f"server-cost counts the merges of {', '.join(METHODS)}. It takes a few minutes on one core.")
        return
    kept = out / _KEPT
    known = json.loads(kept.read_text()) if kept.exists() else {}
    out.mkdir(parents=True, exist_ok=True)
    for method in METHODS:
        if method not in known:
            click.echo(f"counting {method}", err=True)
            known[method] = measure(method)
            write_whole(kept, json.dumps(known, indent=1).encode())
    rows = [_texts(known[method]) for method in METHODS]
    print_table(_HEADS, rows)
    write_document(csv_text(list(known.values())), out / "server-cost.csv")
    click.echo(f"Report: {write_document(_page(rows), out / 'report.html')}")


def _texts(cost: dict[str, float]) -> tuple[str, ...]:
    numbers = (cost[key] for key in ("gflops", "paper_gflops", "cache_mb", "paper_cache_mb"))
    return (str(cost["method"]), *(f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in numbers))


def _page(rows: list[tuple[str, ...]]) -> str:
    shown = [Row(method, list(map(Entry, _HEADS[1:], texts))) for method, *texts in rows]
    table = html_table(Table("Method", _HEADS[1:], shown), [NOTE], " cells")
    title = "What a round costs the server"
    header = element("header", element("h1", title), element("p", "Our numbers and the paper’s.", class_="lead"))
    return document(
        title, [header, element("section", table), commands_section([("", "feddle reproduce server-cost")])]
    )
