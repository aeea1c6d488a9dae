"""Cells of each table of the paper, made from the recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from magna.config.schema import Config, load_recipe, recipe_names
from magna.errors import ArgumentError
from magna.paper.cell import Cell
from magna.paper.node_systems import EFFORTS, QUICK_EFFORT, SYSTEMS, WITH, WITHOUT, Effort, rows_of, system_config
from magna.paper.published import CITATION_GRAPHS, KNOWLEDGE_GRAPHS
from magna.paper.rows import (
    ABLATED_PARTS,
    AUTHORS_RECIPES,
    CONTROLLED_GRAPHS,
    CONTROLS,
    NARROW_BLOCKS,
    SEARCHED_GRAPHS,
    SEARCHED_RECIPES,
    SPLIT_RECIPES,
    SWEPT_ALPHAS,
    SWEPT_HOPS,
    SWEPT_MODELS,
    SWITCHES,
    TABLE_1_RECIPES,
    TABLE_2_RECIPES,
    TABLE_3_RECIPES,
    TABLE_6_RECIPES,
    TUNED,
    authors_row,
    sweep_row,
)

NUM_SPLITS = 10
QUICK_SPLITS = 2
LINK_EFFORT = Effort(trials=6, seeds=3)


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
    return Cell(table, dataset, TUNED, load_recipe(dataset))


def ablations_cells(dataset: str) -> Iterator[Cell]:
    start = base(dataset)
    yield start
    yield from ablated(start, "ablations", ABLATED_PARTS)


def table3_cells(dataset: str) -> Iterator[Cell]:
    """The recipes of a knowledge graph, and the tuned one under each control; on a small graph, searched systems."""
    searched = SEARCHED_RECIPES if dataset in SEARCHED_GRAPHS else {}
    if dataset in CONTROLLED_GRAPHS:
        recipes = {row: text for row, text in TABLE_3_RECIPES.items() if row not in searched}
        yield from _of_recipes("table3", recipes, dataset)
        yield from ablated(base(dataset, "table3"), "table3", CONTROLS)
    for cell in _of_recipes("table3", searched, dataset):
        yield replace(cell, effort=LINK_EFFORT, is_settled=False)


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


def node_cells(table: str, dataset: str) -> Iterator[Cell]:
    """Every node model with the settings that its search starts from."""
    for row in rows_of(table):
        config = system_config(table, dataset, row)
        yield Cell(table, dataset, row, config, SYSTEMS[row].fixed, effort=EFFORTS[dataset], is_settled=False)


def sweep_cells(table: str, key: str, values: Sequence[float], dataset: str) -> Iterator[Cell]:
    """The tuned recipe and the paper's blocks at width 64, each with every value of one setting."""
    for row, recipe, changes in zip(SWEPT_MODELS, (dataset, f"{dataset}-paper"), ((), NARROW_BLOCKS), strict=True):
        start = Cell(table, dataset, row, load_recipe(recipe))
        for value in values:
            yield changed(start, table, sweep_row(row, key, value), (*changes, f"{key}={value}"))


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

    @property
    def every(self) -> tuple[str, ...]:
        """All data sets that it can have."""
        return (*self.datasets, *self.also)


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
    **{
        table: Experiment(
            partial(node_cells, table), quick=("train.epochs=100", "train.patience=25"), quick_rows=("MAGNA", "GCN")
        )
        for table in (WITHOUT, WITH)
    },
    "ablations": Experiment(ablations_cells, quick_rows=("MAGNA, tuned", "No Diffusion")),
    "switches": Experiment(switches_cells, quick_rows=("MAGNA, tuned", "model.K=1")),
    "random-splits": Experiment(
        random_splits_cells, seeds=10, quick=("train.patience=10",), quick_rows=("MAGNA", "GAT")
    ),
    "table3": Experiment(
        table3_cells,
        tuple(KNOWLEDGE_GRAPHS),
        also=SEARCHED_GRAPHS,
        seeds=3,
        quick=("train.patience=20",),
        quick_rows=("MAGNA, tuned", "DistMult"),
        quick_datasets=("families",),
    ),
    "fig4c": Experiment(
        partial(sweep_cells, "fig4c", "model.K", SWEPT_HOPS),
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


def quick(name: str, cell: Cell) -> Cell:
    """A cell that shows the form of a table in a short time, after a small search or none."""
    searched = cell.effort is not None and cell.config.task.SHARES_BATCH
    config = cell.config.with_values(EXPERIMENTS[name].quick)
    return replace(cell, config=config, effort=QUICK_EFFORT if searched else None, is_settled=not searched)


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
    return [quick(name, cell) for cell in chosen if cell.split is None or cell.split < QUICK_SPLITS]


def cells(name: str, datasets: Sequence[str] | None = None, rows: Sequence[str] | None = None) -> list[Cell]:
    """Cells of a table, on all data sets of the paper or on some, in all rows or in some.

    >>> len(cells("random-splits", []))
    0
    """
    if name not in EXPERIMENTS:
        raise ArgumentError("table", name, list(EXPERIMENTS))
    experiment = EXPERIMENTS[name]
    allowed = experiment.every
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
