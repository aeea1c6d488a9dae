"""The short tables of the README: few rows of the full tables, with the sizes of the models."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from magna.config.schema import load_recipe
from magna.nn.ensemble import make_model
from magna.paper.cells import CellStore
from magna.paper.published import KNOWLEDGE_GRAPHS
from magna.paper.render import EMPTY, TextTable
from magna.paper.tables import make_table

# Row of the full table → its name in the README, and the recipe that has its size.
NODE_ROWS = {
    "MAGNA, tuned (ours)": ("MAGNA", "cora"),
    "GAT (ours)": ("GAT, tuned by us", "cora-gat"),
    "GRAND": ("GRAND", ""),
}
LINK_ROWS = {
    "MAGNA, tuned: encoder alone (ours)": ("MAGNA encoder", "the encoder of wn18rr"),
    "MAGNA, tuned (ours)": ("MAGNA encoder + ComplEx", "wn18rr"),
    "ComplEx-N3 + relation prediction": ("ComplEx-N3 + relation prediction", ""),
}

HEADLINES = ("headline-nodes", "headline-links")


def headline(name: str, root: Path) -> TextTable:
    """The table `headline-nodes` or `headline-links`."""
    read, sizes = CellStore(results=root / "results").read, _sizes(root)
    if name == "headline-nodes":
        header, rows = make_table("table1", read)
        short = [
            [title, *figures, sizes.get(recipe, EMPTY), source]
            for row, *figures, source in rows
            for title, recipe in [NODE_ROWS.get(row, ("", ""))]
            if title
        ]
        return TextTable(["model", *header[1:-1], "parameters", "source"], short)
    header, rows = make_table("table3", read)
    metrics = [header.index("MRR"), header.index("H@10")]
    by_model: dict[str, list[str]] = {}
    for row in rows:
        if row[1] in LINK_ROWS and row[0] in KNOWLEDGE_GRAPHS.values():
            by_model.setdefault(row[1], []).extend(row[metric] for metric in metrics)
    sources = {row[1]: row[-1] for row in rows if row[0] in KNOWLEDGE_GRAPHS.values()}
    short = [
        [title, *by_model[row], sizes.get(recipe, EMPTY), sources[row]] for row, (title, recipe) in LINK_ROWS.items()
    ]
    heads = [f"{graph} {header[metric]}" for graph in KNOWLEDGE_GRAPHS.values() for metric in metrics]
    return TextTable(["model", *heads, "parameters", "source"], short)


def _sizes(root: Path) -> dict[str, str]:
    """Parameters of each recipe, in words, and of the encoder of `wn18rr` without its second embeddings."""
    with (root / "results" / "recipes.csv").open(newline="", encoding="utf-8") as file:
        sizes = {row["recipe"]: in_words(int(row["parameters"])) for row in csv.DictReader(file)}
    alone = load_recipe("wn18rr").with_settings({"model.skip_channels": 0}, drop_idle=True)
    with torch.device("meta"):
        encoder = make_model(alone.model, num_entities=40_943, num_relations=11)
    return sizes | {"the encoder of wn18rr": in_words(sum(each.numel() for each in encoder.parameters()))}


def in_words(count: int) -> str:
    """A number of parameters with two digits or more.

    >>> in_words(142_643_223), in_words(133_895), in_words(8_500_000)
    ('143 M', '134 k', '8.5 M')
    """
    unit, number = ("M", count / 1e6) if count >= 1e6 else ("k", count / 1e3)
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
