"""Cells of each table of the paper, made from the recipes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from magna.config.schema import Config, load_recipe, recipe_names
from magna.errors import ArgumentError
from magna.paper.published import CITATION_GRAPHS, KNOWLEDGE_GRAPHS
from magna.paper.rows import (
    AUTHORS_RECIPES,
    SPLIT_RECIPES,
    SWITCHES,
    TABLE_2_RECIPES,
    TABLE_6_RECIPES,
    authors_row,
)

NUM_SPLITS = 10
QUICK_SPLITS = 2


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a recipe, with or without changes, on one split of its data, over several seeds."""

    table: str  # the table that trains it; others may show it too
    dataset: str
    row: str
    config: Config
    changes: tuple[str, ...] = ()
    point: str = ""  # of docs/explanation/switches.md
    split: int | None = None  # number of the random split, None for the public one

    @property
    def path(self) -> str:
        """File of the cell below the folder of its table."""
        return cell_path(self.table, self.dataset, self.row, self.split)


def cell_path(table: str, dataset: str, row: str, split: int | None) -> str:
    """File of a cell while it is trained.

    >>> cell_path("random-splits", "cora", "Diff-GCN", 3)
    'random-splits/cora/diff-gcn/split-3.json'
    """
    # GRAND+ is not GRAND.
    name = re.sub(r"[^a-z0-9.]+", "-", re.sub(r"(?<=\w)\+", "-plus", row.lower())).strip("-")
    return f"{table}/{dataset}/{name}" + ("" if split is None else f"/split-{split}") + ".json"


# Row → recipe of a data set, and changes of it.
TABLE_1_RECIPES = {
    "MAGNA, tuned": "{}",
    "MAGNA, ensemble": "{}-ensemble",
    "MAGNA, paper": "{}-paper",
    "MAGNA, official": "{}-official",
    "GAT": "{}-gat",
    "Diff-GCN": "{}-diff-gcn",
    "GAT, ensemble": "{}-gat model.members=8",
    "Diff-GCN, ensemble": "{}-diff-gcn model.members=8",
}
# "DistMult" is the decoder alone. A data set without such a recipe has no such row.
TABLE_3_RECIPES = {
    "MAGNA, tuned": "{}",
    "MAGNA, paper": "{}-paper",
    "MAGNA, official": "{}-official",
    "MAGNA, official without its bug": "{}-official model.relation_source=relations",
    "DistMult": "{}-distmult",
}
SWEPT_HOPS = (1, 2, 3, 4, 6, 8, 10)  # Fig. 4c
SWEPT_ALPHAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)  # Fig. 4d
SWEPT_MODELS = ("tuned", "paper's blocks")

# The four ablations of the paper's Table 1.
ABLATED_PARTS = {
    "No LayerNorm": ("model.norm=none", "model.final_norm=none"),
    "No Diffusion": ("model.diffusion=false",),
    "No Feed-Forward": ("model.feed_forward=false",),
    "No (LayerNorm + Feed-Forward)": ("model.norm=none", "model.final_norm=none", "model.feed_forward=false"),
}

# Changes after which link prediction must lose its gain.
CONTROLS = {
    "No propagation": ("model.K=0",),
    "Random graph": ("data.control=random-graph",),
    "One hop of attention": ("model.diffusion=false",),
    "No relation types": ("data.control=no-types",),
    "Encoder with DistMult": ("model.decoder=distmult", "model.skip_channels=0"),
}


def table2_cells(dataset: str) -> Iterator[Cell]:
    for cell in _of_recipes("table2", TABLE_2_RECIPES, dataset.removeprefix("ogbn-")):
        yield replace(cell, dataset=dataset)


def table6_cells(dataset: str) -> Iterator[Cell]:
    """The variants, after the models of Table 1 that they vary."""
    plain = {row: TABLE_1_RECIPES[row] for row in ("MAGNA, tuned", "Diff-GCN", "GAT")}
    yield from _of_recipes("table1", plain, dataset)
    yield from _of_recipes("table6", TABLE_6_RECIPES, dataset)


def base(dataset: str, table: str = "table1") -> Cell:
    """The tuned recipe: a row of Table 1 or 3, and the base of ablations, switches and controls."""
    return Cell(table, dataset, "MAGNA, tuned", load_recipe(dataset))


def ablations_cells(dataset: str) -> Iterator[Cell]:
    start = base(dataset)
    yield start
    yield from ablated(start, "ablations", ABLATED_PARTS)


def table3_cells(dataset: str) -> Iterator[Cell]:
    """The recipes of a knowledge graph, and the tuned one under each control."""
    yield from _of_recipes("table3", TABLE_3_RECIPES, dataset)
    yield from ablated(base(dataset, "table3"), "table3", CONTROLS)


def switches_cells(dataset: str) -> Iterator[Cell]:
    start = base(dataset)
    yield start
    for point, text in SWITCHES:
        with suppress(ArgumentError):  # the change needs another setting
            cell = changed(start, "switches", text, tuple(text.split()))
            if not same_training(cell.config, start.config):
                yield replace(cell, point=point)


def random_splits_cells(dataset: str) -> Iterator[Cell]:
    for cell in _of_recipes("random-splits", SPLIT_RECIPES, dataset):
        for split in range(NUM_SPLITS):
            on_split = cell.config.with_values(["data.split=random", f"data.split_seed={split}"])
            yield replace(cell, config=on_split, changes=("data.split=random",), split=split)


def sweep_cells(table: str, key: str, values: Sequence[float], dataset: str) -> Iterator[Cell]:
    """The tuned recipe and the paper's blocks at width 64, each with every value of one setting."""
    narrow = ("model.hidden_channels=64",)
    for row, recipe, changes in zip(SWEPT_MODELS, (dataset, f"{dataset}-paper"), ((), narrow), strict=True):
        start = Cell(table, dataset, row, load_recipe(recipe))
        for value in values:
            yield changed(start, table, sweep_row(row, key, value), (*changes, f"{key}={value}"))


def sweep_row(model: str, key: str, value: float) -> str:
    """Row of one value of a setting.

    >>> sweep_row("tuned", "model.K", 3)
    'tuned, K=3'
    """
    return f"{model}, {key.partition('.')[2]}={value}"


def _of_recipes(table: str, recipes: Mapping[str, str], dataset: str) -> Iterator[Cell]:
    """A cell for each recipe that the data set has."""
    for row, text in recipes.items():
        recipe, *changes = text.format(dataset).split()
        if recipe in recipe_names():
            yield Cell(table, dataset, row, load_recipe(recipe).with_values(changes), tuple(changes))


def ablated(start: Cell, table: str, parts: Mapping[str, tuple[str, ...]]) -> Iterator[Cell]:
    """The cell without each part; a part that the recipe lacks is left out, alone and among others."""
    cells = [start]
    for row, changes in parts.items():
        cell = changed(start, table, row, changes)
        if not any(same_training(cell.config, other.config) for other in cells):
            cells.append(cell)
            yield cell


def changed(cell: Cell, table: str, row: str, changes: tuple[str, ...]) -> Cell:
    """The cell with some settings replaced."""
    return replace(cell, table=table, row=row, config=cell.config.with_values(changes), changes=changes)


def same_training(one: Config, other: Config) -> bool:
    """True if two configs train the same model in the same way."""
    return all(getattr(one, part) == getattr(other, part) for part in ("data", "model", "task", "train"))


class Experiment(NamedTuple):
    """A table of the paper: its cells by data set, and the report seeds of each cell."""

    cells: Callable[[str], Iterator[Cell]]
    datasets: tuple[str, ...] = CITATION_GRAPHS
    also: tuple[str, ...] = ()  # data sets that the paper does not have, trained on request only
    seeds: int = 20
    # The quick form trains two of the rows on one data set, until validation has not risen for a while.
    quick: tuple[str, ...] = ("train.patience=25",)
    quick_rows: tuple[str, ...] = ()
    quick_datasets: tuple[str, ...] = ("cora",)


EXPERIMENTS = {
    "table1": Experiment(
        partial(_of_recipes, "table1", TABLE_1_RECIPES | AUTHORS_RECIPES),
        quick_rows=("MAGNA, tuned", authors_row("GCN")),
    ),
    "table2": Experiment(
        table2_cells,
        ("ogbn-arxiv",),
        seeds=10,
        quick=("train.patience=5", "model.hidden_channels=16"),
        quick_rows=("GCN",),
        quick_datasets=("ogbn-arxiv",),
    ),
    "table6": Experiment(table6_cells, quick_rows=("Diff-GCN", "Diff-GCN + LN + FF")),
    "ablations": Experiment(ablations_cells, quick_rows=("MAGNA, tuned", "No Diffusion")),
    "switches": Experiment(switches_cells, quick_rows=("MAGNA, tuned", "model.K=1")),
    "random-splits": Experiment(
        random_splits_cells, seeds=10, quick=("train.patience=10",), quick_rows=("MAGNA", "GAT")
    ),
    "table3": Experiment(
        table3_cells,
        tuple(KNOWLEDGE_GRAPHS),
        also=("families",),
        seeds=3,
        quick=("train.patience=20",),
        quick_rows=("MAGNA, tuned", "DistMult"),
        quick_datasets=("families",),
    ),
    "fig4c": Experiment(
        partial(sweep_cells, "fig4c", "model.K", SWEPT_HOPS),
        ("cora",),
        also=("citeseer", "pubmed"),
        seeds=10,
        quick_rows=("tuned, K=1", "tuned, K=6"),
    ),
    "fig4d": Experiment(
        partial(sweep_cells, "fig4d", "model.alpha", SWEPT_ALPHAS),
        ("cora",),
        also=("citeseer", "pubmed"),
        seeds=10,
        quick_rows=("tuned, alpha=0.05", "tuned, alpha=0.5"),
    ),
}


def quick_cells(name: str, datasets: Sequence[str] | None = None, rows: Sequence[str] | None = None) -> list[Cell]:
    """Cells of the quick form of a table; others than its data sets and rows are refused, as they would take long."""
    if name not in EXPERIMENTS:
        raise ArgumentError("table", name, list(EXPERIMENTS))
    experiment = EXPERIMENTS[name]
    for what, asked, allowed in (
        ("data set", datasets, experiment.quick_datasets),
        ("row", rows, experiment.quick_rows),
    ):
        for each in asked or ():
            if each not in allowed:
                raise ArgumentError(f"{what} of {name} with --quick", each, allowed)
    chosen = cells(name, datasets or experiment.quick_datasets, rows or experiment.quick_rows)
    return [
        replace(cell, config=cell.config.with_values(experiment.quick))
        for cell in chosen
        if cell.split is None or cell.split < QUICK_SPLITS
    ]


def cells(name: str, datasets: Sequence[str] | None = None, rows: Sequence[str] | None = None) -> list[Cell]:
    """Cells of a table, on all data sets of the paper or on some, in all rows or in some.

    >>> len(cells("random-splits", []))
    0
    """
    if name not in EXPERIMENTS:
        raise ArgumentError("table", name, list(EXPERIMENTS))
    experiment = EXPERIMENTS[name]
    allowed = (*experiment.datasets, *experiment.also)
    for dataset in datasets or ():
        if dataset not in allowed:
            raise ArgumentError(f"data set of {name}", dataset, allowed)
    chosen = experiment.datasets if datasets is None else datasets
    every = [cell for dataset in chosen for cell in experiment.cells(dataset)]
    known = list(dict.fromkeys(cell.row for cell in every))
    wanted = known if rows is None else [row.removesuffix(" (ours)") for row in rows]  # as the table has it
    for row in wanted:
        if row not in known:
            raise ArgumentError(f"row of {name} on {', '.join(chosen)}", row, known)
    return [cell for cell in every if cell.row in wanted]
