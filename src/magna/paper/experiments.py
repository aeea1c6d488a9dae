"""Cells of each table of the paper, made from the recipes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from magna.config.schema import Config, load_recipe, recipe_names
from magna.config.spaces import keys
from magna.errors import ArgumentError
from magna.paper.node_systems import EFFORTS, QUICK_EFFORT, SYSTEMS, WITH, WITHOUT, Effort, rows_of, system_config
from magna.paper.published import CITATION_GRAPHS, KNOWLEDGE_GRAPHS, PAPER_LINK_BASELINES

NUM_SPLITS = 10


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
    effort: Effort | None = None  # of the search for its settings; None: it needs none
    is_settled: bool = True  # False before the search: the config has no chosen settings yet

    @property
    def trials(self) -> int:
        """Trials of a search that has not ended."""
        return 0 if self.is_settled or self.effort is None else self.effort.trials

    @property
    def path(self) -> str:
        """File of the cell below the folder of its table."""
        return cell_path(self.table, self.dataset, self.row, self.split)


def cell_path(table: str, dataset: str, row: str, split: int | None) -> str:
    """File of a cell while it is trained.

    >>> cell_path("random-splits", "cora", "Diff-GCN", 3)
    'random-splits/cora/diff-gcn/split-3.json'
    """
    name = re.sub(r"[^a-z0-9.]+", "-", row.lower()).strip("-")
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
# The systems of the paper's Table 3 on graphs that two cores can train. A short search chooses the settings of each.
SEARCHED_RECIPES = {
    "MAGNA + DistMult": "{} model.decoder=distmult",
    "MAGNA + ComplEx": "{}",
    **{system: f"{{}}-{system.lower()}" for system in PAPER_LINK_BASELINES},
}
SEARCHED_GRAPHS = ("families", "wn18rr-v1", "fb15k-237-v1")
CONTROLLED_GRAPHS = (*KNOWLEDGE_GRAPHS, "families")
LINK_EFFORT = Effort(trials=6, seeds=3)
SWEPT_HOPS = (1, 2, 3, 4, 6, 8, 10)  # Fig. 4c
SWEPT_ALPHAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)  # Fig. 4d
SWEPT_MODELS = ("tuned", "paper's blocks")
NARROW_BLOCKS = ("model.hidden_channels=64",)  # the paper's blocks in the width of the tuned recipes
SPLIT_RECIPES = {"MAGNA": "{}", "GAT": "{}-gat", "Diff-GCN": "{}-diff-gcn"}

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

# One change of the tuned recipe for each difference between the paper and its authors' code, by its point in
# docs/explanation/switches.md, and for each addition of this package. A change that a recipe already has is left out.
# fmt: off
_BY_POINT = {
    "1": ("model.projection=shared", "model.projection=separate", "model.tanh=true", "model.tanh=false"),
    "2": ("model.head_form=full", "model.head_form=split", "model.out_projection=false", "model.bias=true"),
    "3": ("model.top_k=none", "model.top_k=5"),
    "4": ("model.edge_dropout=0.0", "model.edge_dropout=0.2"),
    "5": ("model.dropout=0.0", "model.dropout=0.3"),
    "6": (
        "model.feature_dropout=0.0", "model.feature_dropout=0.3", "model.input_dropout=0.0",
        "model.output_dropout=0.0", "model.output_dropout=0.3", "model.ffn_output_dropout=0.0",
        "model.ffn_output_dropout=0.3",
    ),
    "7": (
        "model.input_projection=false", "model.residual_dropout=0.0", "model.final_norm=none",
        "model.final_norm=layer", "model.classifier_dropout=0.0", "model.classifier_dropout=0.5",
    ),
    "8": ("model.norm=layer", "model.norm=unbiased", "model.norm_eps=1e-12"),
    "9": ("model.feed_forward=true", "model.ffn_dropout=0.0", "model.ffn_dropout=0.1"),
    "10": ("model.init=official", "model.init=glorot"),
    "11": ("data.normalise_features=true", "data.normalise_features=false", "model.embed_dropout=0.0"),
    "12": ("data.self_loops=false", "data.self_loops=true"),
    "13": ("train.clip=0.0", "train.clip=1.0"),
    "15": (
        "model.negative_slope=0.2", "model.negative_slope=0.5", "model.K=1", "model.K=3", "model.K=6", "model.K=10",
        "model.alpha=0.05", "model.alpha=0.1", "model.alpha=0.5",
    ),
    "30": ("model.mode=exact model.dropout=0.0 model.feature_dropout=0.0",),
    "Eq. 3": ("model.hop_weights=alpha", "model.hop_weights=theta"),
    "ours": (
        "task.consistency=0.0", "task.consistency=1.0", "task.passes=4", "model.node_dropout=0.0",
        "model.node_dropout=0.3",
    ),
}
# fmt: on
SWITCHES = tuple((point, text) for point, texts in _BY_POINT.items() for text in texts)


def base(dataset: str, table: str = "table1") -> Cell:
    """The tuned recipe: a row of Table 1 or 3, and the base of ablations, switches and controls."""
    return Cell(table, dataset, "MAGNA, tuned", load_recipe(dataset))


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
    quick: tuple[str, ...] = ("train.epochs=3",)
    quick_skip: tuple[str, ...] = ()  # in addition, for a recipe with shallow embeddings
    quick_rows: tuple[str, ...] | None = None  # the rows of the quick form; None: all
    quick_datasets: tuple[str, ...] | None = None

    @property
    def every(self) -> tuple[str, ...]:
        """All data sets that it can have."""
        return (*self.datasets, *self.also)


EXPERIMENTS = {
    "table1": Experiment(partial(_of_recipes, "table1", TABLE_1_RECIPES)),
    **{
        table: Experiment(
            partial(node_cells, table), quick=("train.epochs=100", "train.patience=25"), quick_rows=("MAGNA", "GCN")
        )
        for table in (WITHOUT, WITH)
    },
    "ablations": Experiment(ablations_cells),
    "switches": Experiment(switches_cells),
    "random-splits": Experiment(random_splits_cells, seeds=10),
    "table3": Experiment(
        table3_cells,
        tuple(KNOWLEDGE_GRAPHS),
        also=SEARCHED_GRAPHS,
        seeds=3,
        quick=(
            *("train.epochs=1", "model.hidden_channels=16", "model.entity_channels=16", "model.heads=2"),
            "model.channels=16",
        ),
        quick_skip=("model.skip_channels=16",),
    ),
    "fig4c": Experiment(
        partial(sweep_cells, "fig4c", "model.K", SWEPT_HOPS),
        seeds=10,
        quick=("train.patience=25",),
        quick_rows=("tuned, K=1", "tuned, K=6"),
        quick_datasets=("cora",),
    ),
    "fig4d": Experiment(
        partial(sweep_cells, "fig4d", "model.alpha", SWEPT_ALPHAS),
        ("cora",),
        also=("citeseer", "pubmed"),
        seeds=10,
        quick=("train.patience=25",),
        quick_rows=("tuned, alpha=0.05", "tuned, alpha=0.5"),
    ),
}


def quick(name: str, cell: Cell) -> Cell:
    """A cell that shows the form of a table in a short time."""
    experiment = EXPERIMENTS[name]
    skip = experiment.quick_skip if getattr(cell.config.model, "skip_channels", 0) else ()
    known = set(keys(cell.config))
    settings = [each for each in experiment.quick + skip if each.partition("=")[0] in known]
    config = cell.config.with_values(settings, drop_idle=True)
    of_nodes = cell.effort is not None and config.task.SHARES_BATCH
    return replace(cell, config=config, effort=QUICK_EFFORT if of_nodes else None, is_settled=not of_nodes)


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
